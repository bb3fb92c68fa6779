//! `POST /drain` and `POST /undrain`: an operator takes new clients from backends, or gives them back.
//!
//! Invariant: only over the unix socket, and only for root or the daemon's user: the group may read and reload files,
//! but an order to drain moves clients. The answer shows the effect on the current lists, and the exit code of the
//! command line shows whether clients still get such a backend.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_core::drains::{Drain, DrainOrder};
use holdfast_status::age::add_ages;
use holdfast_status::rfc3339::Rfc3339;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::{DrainEffect, NAMED_MAX, describe_drain};
use crate::admin_listener::RequestContext;
use crate::client_requests::Peer;
use crate::form::Form;
use crate::guard::requested_format;
use crate::parameters;
use crate::query::Query;
use crate::reload::{is_post, refuse_other_methods};
use crate::response::{self, ApiError};
use holdfast_agent::drains::{AcceptedOrder, Order, OrderOutcome};
use holdfast_evidence::diagnose::EXIT_HEADER;

pub(crate) const DRAIN_PATH: &str = "/drain";

pub(crate) const UNDRAIN_PATH: &str = "/undrain";

/// How long an order may take; up to three seconds of it for the disk.
const ORDER_TIME_MAX: Duration = Duration::from_secs(6);

/// How long the answer waits for the lists: the engine executes an order within milliseconds, unless everything changes
/// at once.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(2);

/// The note for a drain without a backend.
const NO_SERVICE: &str = "no service lists it now: is it spelled as in `holdfast backends`? It stays drained, and where a service \
                          lists it later, it gets no client there; `holdfast undrain` with the same words takes it back";

/// The outcome of an order.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ordered")]
pub(crate) struct DrainOrderJson {
    /// The address, with a port if the order has one.
    backend: String,
    /// The only service, as `namespace/name`; null: all.
    service: Option<String>,
    /// Whether it is drained now.
    drained: bool,
    /// Whether the order changed nothing.
    unchanged: bool,
    /// The user that drained it before, if any.
    by: Option<String>,
    /// When it was drained before, if it was.
    since: Option<Rfc3339>,
    /// How many services have such a backend now.
    services: usize,
    /// The first of them, as `namespace/name`.
    named: Vec<String>,
    /// After a drain: services in which clients still get such a backend, because each other one is drained, has weight
    /// 0 or is not ready: a drain never makes a list empty.
    still_used: Vec<String>,
    /// How many of the services do not follow the order yet.
    pending: usize,
    /// The first other drains of some of these backends.
    also_drained: Vec<String>,
    /// Why a restart of the daemon would lose the order; null if it would not.
    memory_problem: Option<String>,
}

pub(crate) async fn drain(visit: State<RequestContext>, peer: Extension<Peer>, request: Request) -> Response {
    handle_order(visit.0, peer.0, request, true).await
}

pub(crate) async fn undrain(
    visit: State<RequestContext>,
    peer: Extension<Peer>,
    request: Request,
) -> Response {
    handle_order(visit.0, peer.0, request, false).await
}

async fn handle_order(visit: RequestContext, peer: Peer, request: Request, is_on: bool) -> Response {
    let form = requested_format(&request);
    if !is_post(&request) {
        return refuse_other_methods();
    }
    let wanted = check_allowed(peer).and_then(|()| parse_drain(&request));
    // A request cannot be held across the await.
    drop(request);
    match wanted {
        Ok(drain) => {
            execute_order(&visit, peer, &drain, (is_on, form)).await.unwrap_or_else(ApiError::into_response)
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn execute_order(
    visit: &RequestContext,
    peer: Peer,
    drain: &Drain,
    (is_on, form): (bool, Form),
) -> Result<Response, ApiError> {
    let taken = submit_order(visit, peer, drain, is_on).await?;
    let reach = wait_for_effect(visit, drain, &taken).await;
    let json = DrainOrderJson::new(drain, is_on, taken, &reach);
    let exit = u16::from(json.has_finding());
    let mut response = response::render_response(StatusCode::OK, form, &json, || {
        add_ages(&json.text(), visit.readings.now())
    });
    response.headers_mut().insert(HeaderName::from_static(EXIT_HEADER), HeaderValue::from(exit));
    Ok(response)
}

fn check_allowed(peer: Peer) -> Result<(), ApiError> {
    if may_order(peer) {
        return Ok(());
    }
    let hint = "run it as root, for example with sudo; `holdfast drain` shows the drains to every user";
    Err(ApiError::new(StatusCode::FORBIDDEN, "only root may drain backends", hint))
}

async fn submit_order(
    visit: &RequestContext,
    peer: Peer,
    drain: &Drain,
    is_on: bool,
) -> Result<AcceptedOrder, ApiError> {
    let asked = send_order(&visit.actions.drains, peer, drain.clone(), is_on);
    match tokio::time::timeout(ORDER_TIME_MAX, asked).await {
        Ok(Some(Ok(taken))) => Ok(taken),
        Ok(Some(Err(why))) => {
            let hint =
                "take back what is no longer needed: `holdfast drain` lists all, `holdfast undrain` ends one";
            Err(ApiError::new(StatusCode::CONFLICT, why.to_string(), hint))
        }
        Ok(None) | Err(_) => {
            let hint = "it starts, stops or hangs, or other requests are first; `holdfast drain` shows what is in force";
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon accepts no order now", hint))
        }
    }
}

/// Root, or the daemon's own user.
pub(crate) fn may_order(peer: Peer) -> bool {
    peer.uid == 0 || peer.uid == nix::unistd::geteuid().as_raw()
}

fn parse_drain(request: &Request) -> Result<Drain, ApiError> {
    let query = Query::read(request.uri().query().unwrap_or_default(), parameters::DRAIN)?;
    let hint =
        "give it, with a port if only that is meant, such as 10.0.0.5, 10.0.0.5:8080 or [fd00::5]:8080";
    let refused = |error| ApiError::new(StatusCode::BAD_REQUEST, error, hint);
    let backend = query.flows.backend.ok_or_else(|| refused("no backend is given"))?;
    let port =
        backend.port.map(TryInto::try_into).transpose().map_err(|_| refused("no backend has port 0"))?;
    if backend.address.is_unspecified() || backend.address.is_multicast() {
        return Err(refused("no backend can have this address"));
    }
    Ok(Drain::new(backend.address, port, query.filter.service))
}

async fn send_order(
    orders: &mpsc::Sender<Order>,
    peer: Peer,
    drain: Drain,
    is_on: bool,
) -> Option<OrderOutcome> {
    let (answer, answered) = oneshot::channel();
    let Peer { uid, pid } = peer;
    orders.try_send(Order { uid, pid, drain, is_on, answer }).ok()?;
    answered.await.ok()
}

/// The effect of the drain, once the lists follow the order or the wait is too long.
async fn wait_for_effect(visit: &RequestContext, drain: &Drain, taken: &AcceptedOrder) -> DrainEffect {
    let mut snapshots = visit.readings.snapshots.clone();
    let begun = tokio::time::Instant::now();
    let mut reach = DrainEffect::from_snapshot(&visit.readings.snapshot(), drain, &taken.drains);
    while reach.pending > 0 {
        let changed = tokio::time::timeout_at(begun + SETTLE_TIME_MAX, snapshots.changed()).await;
        if !matches!(changed, Ok(Ok(()))) {
            break;
        }
        // The engine waits while its published snapshot is borrowed.
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        reach.refresh(&snapshot, drain, &taken.drains);
    }
    reach
}

impl DrainOrderJson {
    fn new(drain: &Drain, is_on: bool, taken: AcceptedOrder, reach: &DrainEffect) -> Self {
        let AcceptedOrder { drains, before, problem } = taken;
        Self {
            backend: drain.to_string(),
            service: drain.service().map(ToString::to_string),
            drained: is_on,
            unchanged: before.is_some() == is_on,
            by: before.as_ref().map(DrainOrder::to_string),
            since: before.map(|before| Rfc3339(before.at)),
            services: reach.services.len(),
            named: reach.service_names(),
            still_used: if is_on { reach.still_used_names() } else { Vec::new() },
            pending: reach.pending,
            also_drained: other_drains(drain, drains.iter().map(|(other, _)| other)),
            memory_problem: problem,
        }
    }

    /// Whether the outcome differs from what the operator may expect. An address without a service may be misspelled,
    /// and the intended one still gets clients.
    const fn has_finding(&self) -> bool {
        let is_still_drained = !self.drained && !self.also_drained.is_empty();
        let reaches_none = self.drained && self.services == 0;
        let is_lost_by_restart = self.memory_problem.is_some();
        !self.still_used.is_empty()
            || is_still_drained
            || reaches_none
            || is_lost_by_restart
            || self.pending > 0
    }

    fn text(&self) -> String {
        let of = self.service.as_ref().map(|service| format!(" of {service}")).unwrap_or_default();
        let first = format!("{}{of} {}", self.backend, self.describe_outcome());
        let lines = [
            Some(first),
            self.describe_services(),
            self.describe_remaining_use(),
            self.describe_pending(),
            self.describe_memory_problem(),
        ];
        lines.into_iter().flatten().map(|line| line + "\n").collect()
    }

    /// The part of the outcome that the operator may not expect.
    fn describe_remaining_use(&self) -> Option<String> {
        let them = self.still_used.join(", ");
        let used = format!(
            "still used by {them}: no other backend there takes clients, and a drain empties no list"
        );
        let others = format!("still drained by: {}", self.also_drained.join("; "));
        match (self.drained, self.still_used.is_empty(), self.also_drained.is_empty()) {
            (true, false, _) => Some(used),
            (false, _, false) => Some(others),
            (true, true, _) | (false, _, true) => None,
        }
    }

    fn describe_pending(&self) -> Option<String> {
        let count = self.pending;
        (count > 0).then(|| format!("not yet in force in {count} of them; check with `holdfast drain`"))
    }

    fn describe_memory_problem(&self) -> Option<String> {
        let problem = self.memory_problem.as_ref()?;
        Some(format!("not on disk yet, so a restart of the daemon would lose it: {problem}"))
    }

    fn describe_outcome(&self) -> String {
        let by = self.by.as_deref().unwrap_or("an unknown user");
        let since = self.since.map(|since| format!(" since {since}")).unwrap_or_default();
        match (self.drained, self.unchanged) {
            (true, false) if self.services == 0 => "is drained, but is no backend now".to_owned(),
            (true, false) if !self.still_used.is_empty() => {
                "is drained: it gets new clients only where no other backend takes them, and keeps those that it has"
                    .to_owned()
            }
            (true, false) => "is drained: it gets no new client, and keeps those that it has".to_owned(),
            (true, true) => format!("is drained already, by {by}{since}"),
            (false, false) => format!("is no longer drained; it was by {by}{since}"),
            (false, true) => "is not drained".to_owned(),
        }
    }

    fn describe_services(&self) -> Option<String> {
        let more = self.services.saturating_sub(self.named.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        match (self.services, self.drained) {
            (0, true) => Some(NO_SERVICE.to_owned()),
            (0, false) => None,
            (1, _) => Some(format!("1 service has it: {}", self.named.join(", "))),
            (count, _) => Some(format!("{count} services have it: {}{more}", self.named.join(", "))),
        }
    }
}

fn other_drains(drain: &Drain, drains: impl Iterator<Item = Drain>) -> Vec<String> {
    let is_near =
        |other: &Drain| other.address() == drain.address() && other != drain && other.overlaps(drain);
    drains.filter(is_near).take(NAMED_MAX).map(|other| describe_drain(&other)).collect()
}
