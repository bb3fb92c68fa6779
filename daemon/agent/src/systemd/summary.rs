//! One line about everything, for `systemctl status`.
//!
//! Invariant: it visits no services except those with a held list.

use std::sync::Arc;

use crate::readings::Readings;
use holdfast_core::snapshot::{ServiceState, ServiceView, Snapshot, Verdict};
use holdfast_status::views::apiserver::{ApiserverView, Usage};

/// The line: the numbers of services, backends and services with a held list, and the apiserver in use.
pub(super) fn status_line(readings: &Readings, snapshot: &Snapshot) -> String {
    let totals = snapshot.services.totals();
    let served = totals.states().find(|(state, _)| *state == ServiceState::Served);
    let services = served.map_or(0, |(_, count)| count);
    let backends = totals.backends().used();
    let holds = |view: &&Arc<ServiceView>| view.frontends.iter().any(|row| row.verdict == Verdict::Held);
    let held = snapshot.held.iter().filter_map(|id| snapshot.services.get(*id)).filter(holds).count();
    let apiserver =
        readings.apiserver.as_ref().map(|views| describe_apiserver(&views.borrow())).unwrap_or_default();
    format!("{services} services, {backends} backends, {held} held{apiserver}")
}

/// The apiserver in use; without one, why, if known.
fn describe_apiserver(view: &ApiserverView) -> String {
    let credentials = view.credentials.iter().filter_map(|it| it.problem.as_ref());
    let endpoints = view.endpoints.iter().filter_map(|it| it.last_error.as_ref());
    match (view.usage(), credentials.chain(endpoints).next()) {
        (Usage::InUse(used) | Usage::Idle(used), _) => format!("; apiserver {}", used.address),
        (Usage::Untried | Usage::Unreachable, Some((why, _))) => format!("; no apiserver in use: {why}"),
        (Usage::Untried, None) => "; no apiserver tried yet".to_owned(),
        (Usage::Unreachable, None) => "; no apiserver in use".to_owned(),
    }
}
