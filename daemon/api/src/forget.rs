//! `POST /apiserver/forget`: drops a learned address of an apiserver.
//!
//! Invariant: as for a reload, only over the unix socket, and the log names the user and the process that asked. What
//! the cluster or the configuration names stays, with the reason. There is no way to forget all addresses at once.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::answer::{self, Refusal};
use super::door::Visit;
use super::form::Form;
use super::guard::form_of;
use super::parameters;
use super::query::Query;
use super::reload::{is_post, only_post};
use super::wishes::{ForgetWish, Forgotten, Peer};

/// The path of this wish.
pub(super) const PATH: &str = "/apiserver/forget";

/// How long the answer may take, of which the disk may take three seconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(8);

/// The answer that an address is forgotten.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Forgotten")]
pub(super) struct ForgottenJson {
    /// The address that is forgotten, with its port.
    forgotten: String,
    /// Why the address is not gone from the disk yet; null if it is.
    memory_problem: Option<String>,
}

/// Answers the wish over the unix socket.
pub(super) async fn forget(
    State(visit): State<Visit>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let form = form_of(&request);
    if !is_post(&request) {
        return only_post();
    }
    let address = match wanted(&request) {
        Ok(address) => address,
        Err(refusal) => return refusal.into_response(),
    };
    match tokio::time::timeout(ANSWER_TIME_MAX, ask(&visit.acts.forgets, peer, address)).await {
        Ok(Some(Ok(problem))) => answered(address, problem, form),
        Ok(Some(Err(why))) => {
            let hint = "`holdfast apiserver` shows each address with its source";
            Refusal::new(StatusCode::CONFLICT, why.to_string(), hint).into_response()
        }
        Ok(None) | Err(_) => {
            let hint = "no apiserver is used, or the daemon starts, stops or hangs; ask `holdfast status`";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon forgets no address now", hint)
                .into_response()
        }
    }
}

fn wanted(request: &Request) -> Result<SocketAddr, Refusal> {
    let query = Query::read(request.uri().query().unwrap_or_default(), parameters::FORGET)?;
    query.filter.endpoint.map(|dialled| dialled.address).ok_or_else(|| {
        let hint = "give it with its port, such as `?endpoint=10.0.0.1:6443`";
        Refusal::new(StatusCode::BAD_REQUEST, "no address is given", hint)
    })
}

async fn ask(wishes: &mpsc::Sender<ForgetWish>, peer: Peer, address: SocketAddr) -> Option<Forgotten> {
    let (answer, answered) = oneshot::channel();
    wishes.try_send(ForgetWish { peer, address, answer }).ok()?;
    answered.await.ok()
}

fn answered(address: SocketAddr, memory_problem: Option<String>, form: Form) -> Response {
    let but = memory_problem.as_ref().map(|problem| format!(", but not on disk yet: {problem}"));
    let text = format!("{address} is forgotten{}\n", but.unwrap_or_default());
    let json = ForgottenJson { forgotten: address.to_string(), memory_problem };
    answer::either(StatusCode::OK, form, &json, || text)
}
