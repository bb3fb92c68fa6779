//! `POST /reload`: a client has the configuration read again.
//!
//! Invariant: a reload is asked for over the unix socket only: its folder and mode say which users may ask, and the log
//! names the user and the process that did. The daemon answers when the new configuration is in force, or says why the
//! old one stays. A request has no body: what is in force is what the file says.

use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::answer::{self, Refusal};
use super::door::Visit;
use super::form::Form;
use super::guard::form_of;
use super::wishes::{Peer, ReloadWish, Reloaded};

/// The path of this wish.
pub(super) const PATH: &str = "/reload";

/// How many places for reloads that wait are kept for root: the members of the socket's group may fill the others.
const FOR_ROOT: usize = 1;

/// How long the answer may take: some files are read, and nothing else.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(8);

/// The answer to a reload: the new configuration is in force.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Reloaded")]
pub(super) struct ReloadedJson {
    reloaded: bool,
    /// Keys with new values that wait for a restart.
    restart_needed_for: Vec<&'static str>,
}

/// Answers the wish over the unix socket.
pub(super) async fn reload(
    State(visit): State<Visit>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let form = form_of(&request);
    if !is_post(&request) {
        return only_post();
    }
    match tokio::time::timeout(ANSWER_TIME_MAX, ask(&visit.acts.reloads, peer)).await {
        Ok(Some(Ok(reloaded))) => answered(reloaded, form),
        Ok(Some(Err(why))) => {
            let hint = "the old configuration stays in force; mend the file and reload again";
            Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why, hint).into_response()
        }
        Ok(None) | Err(_) => {
            let hint = "it starts, stops or hangs, or others asked first; see `systemctl status holdfast`";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon takes no reload now", hint)
                .into_response()
        }
    }
}

async fn ask(wishes: &mpsc::Sender<ReloadWish>, peer: Peer) -> Option<Result<Reloaded, String>> {
    if peer.uid != 0 && wishes.capacity() <= FOR_ROOT {
        return None;
    }
    let (answer, answered) = oneshot::channel();
    wishes.try_send(ReloadWish { peer, answer }).ok()?;
    answered.await.ok()
}

fn answered(reloaded: Reloaded, form: Form) -> Response {
    let json = ReloadedJson { reloaded: true, restart_needed_for: reloaded.waiting };
    answer::either(StatusCode::OK, form, &json, || match json.restart_needed_for.join(", ").as_str() {
        "" => "reloaded\n".to_owned(),
        keys => format!("reloaded; these keys take effect with the next restart: {keys}\n"),
    })
}

pub(super) fn is_post(request: &Request) -> bool {
    request.method() == Method::POST
}

pub(super) fn only_post() -> Response {
    let refusal =
        Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this path changes something", "ask for it with POST");
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

/// Refuses every wish over TCP, where any process of this host may ask.
pub(super) async fn only_by_socket() -> Response {
    let hint =
        "use the unix socket, as `holdfast reload`, `holdfast drain` and `holdfast apiserver forget` do";
    Refusal::new(StatusCode::FORBIDDEN, "nothing can be changed over TCP", hint).into_response()
}
