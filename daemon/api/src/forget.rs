//! `POST /apiserver/forget`: drops a learned address of an apiserver.
//!
//! Invariant: like a reload, only over the unix socket, and the log names the user and the process. An address that the
//! cluster or the configuration lists stays, with the reason. No request forgets all addresses at once.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::admin_listener::RequestContext;
use super::client_requests::{ForgetOutcome, ForgetRequest, Peer};
use super::form::Form;
use super::guard::requested_format;
use super::parameters;
use super::query::Query;
use super::reload::{is_post, refuse_other_methods};
use super::response::{self, ApiError};

pub(super) const PATH: &str = "/apiserver/forget";

/// How long the answer may take; up to three seconds of it for the disk.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(8);

/// The answer for a forgotten address.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Forgotten")]
pub(super) struct ForgetResponse {
    /// The forgotten address, with its port.
    forgotten: String,
    /// Why the address is not gone from the disk yet; null if it is.
    memory_problem: Option<String>,
}

/// Handles the request over the unix socket.
pub(super) async fn forget(
    State(visit): State<RequestContext>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let form = requested_format(&request);
    if !is_post(&request) {
        return refuse_other_methods();
    }
    let address = match parse_address(&request) {
        Ok(address) => address,
        Err(refusal) => return refusal.into_response(),
    };
    if visit.readings.apiserver().is_none() {
        let hint = "`endpoints` under [apiserver] names the apiservers; `holdfast apiserver` shows them";
        return ApiError::new(StatusCode::CONFLICT, "this node uses no apiserver", hint).into_response();
    }
    match tokio::time::timeout(ANSWER_TIME_MAX, send_request(&visit.actions.forgets, peer, address)).await {
        Ok(Some(Ok(problem))) => render_outcome(address, problem, form),
        Ok(Some(Err(why))) => {
            let hint = "`holdfast apiserver` shows each address with its source";
            ApiError::new(StatusCode::CONFLICT, why.to_string(), hint).into_response()
        }
        Ok(None) | Err(_) => {
            let hint = "the daemon starts, stops or hangs; ask `holdfast status`";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon cannot forget an address now", hint)
                .into_response()
        }
    }
}

fn parse_address(request: &Request) -> Result<SocketAddr, ApiError> {
    let query = Query::read(request.uri().query().unwrap_or_default(), parameters::FORGET)?;
    query.filter.endpoint.map(|dialled| dialled.address).ok_or_else(|| {
        let hint = "give it with its port, such as `?endpoint=10.0.0.1:6443`";
        ApiError::new(StatusCode::BAD_REQUEST, "no address is given", hint)
    })
}

async fn send_request(
    wishes: &mpsc::Sender<ForgetRequest>,
    peer: Peer,
    address: SocketAddr,
) -> Option<ForgetOutcome> {
    let (answer, answered) = oneshot::channel();
    wishes.try_send(ForgetRequest { peer, address, answer }).ok()?;
    answered.await.ok()
}

fn render_outcome(address: SocketAddr, memory_problem: Option<String>, form: Form) -> Response {
    let but = memory_problem.as_ref().map(|problem| format!(", but not on disk yet: {problem}"));
    let text = format!("{address} is forgotten{}\n", but.unwrap_or_default());
    let json = ForgetResponse { forgotten: address.to_string(), memory_problem };
    response::render_response(StatusCode::OK, form, &json, || text)
}
