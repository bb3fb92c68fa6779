//! `POST /reload`: a client has the configuration read again.
//!
//! Invariant: only the unix socket accepts a reload: its folder and mode decide which users may request one, and the
//! log names the user and the process. The daemon answers when the new configuration is in force, or says why the old
//! one stays. A request has no body: the file decides what comes into force.

use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::admin_listener::RequestContext;
use super::client_requests::{Peer, ReloadOutcome, ReloadRequest};
use super::form::Form;
use super::guard::requested_format;
use super::response::{self, ApiError};

pub(super) const PATH: &str = "/reload";

/// How many waiting reloads are reserved for root: the members of the socket's group may fill the others.
const ROOT_PERMITS: usize = 1;

/// How long the answer may take: the daemon reads some files, and nothing else.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(8);

/// The answer to a reload: the new configuration is in force.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Reloaded")]
pub(super) struct ReloadResponse {
    reloaded: bool,
    /// Keys with new values that wait for a restart.
    restart_needed_for: Vec<&'static str>,
}

/// Handles the request over the unix socket.
pub(super) async fn reload(
    State(visit): State<RequestContext>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let form = requested_format(&request);
    if !is_post(&request) {
        return refuse_other_methods();
    }
    match tokio::time::timeout(ANSWER_TIME_MAX, send_request(&visit.actions.reloads, peer)).await {
        Ok(Some(Ok(reloaded))) => render_outcome(reloaded, form),
        Ok(Some(Err(why))) => {
            let hint = "the old configuration stays in force; mend the file and reload again";
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why, hint).into_response()
        }
        Ok(None) | Err(_) => {
            let hint =
                "it starts, stops or hangs, or other requests are first; see `systemctl status holdfast`";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon accepts no reload now", hint)
                .into_response()
        }
    }
}

async fn send_request(
    wishes: &mpsc::Sender<ReloadRequest>,
    peer: Peer,
) -> Option<Result<ReloadOutcome, String>> {
    if peer.uid != 0 && wishes.capacity() <= ROOT_PERMITS {
        return None;
    }
    let (answer, answered) = oneshot::channel();
    wishes.try_send(ReloadRequest { peer, answer }).ok()?;
    answered.await.ok()
}

fn render_outcome(reloaded: ReloadOutcome, form: Form) -> Response {
    let json = ReloadResponse { reloaded: true, restart_needed_for: reloaded.restart_keys };
    response::render_response(StatusCode::OK, form, &json, || {
        match json.restart_needed_for.join(", ").as_str() {
            "" => "reloaded\n".to_owned(),
            keys => format!("reloaded; these keys take effect with the next restart: {keys}\n"),
        }
    })
}

pub(super) fn is_post(request: &Request) -> bool {
    request.method() == Method::POST
}

pub(super) fn refuse_other_methods() -> Response {
    let refusal = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this path changes something", "use POST");
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

/// Refuses every change over TCP, where any process of this host may connect.
pub(super) async fn refuse_over_tcp() -> Response {
    let hint =
        "use the unix socket, as `holdfast reload`, `holdfast drain` and `holdfast apiserver forget` do";
    ApiError::new(StatusCode::FORBIDDEN, "nothing can be changed over TCP", hint).into_response()
}
