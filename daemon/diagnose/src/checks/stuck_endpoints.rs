//! Endpoints that stay too long in a state that should be short: unready, terminating, flapping.
//!
//! Invariant: core decides how long is too long.

use std::net::IpAddr;

use holdfast_core::lifecycle::endpoints::{self, EndpointFinding, ReadinessChange};
use holdfast_core::list::Row;
use holdfast_core::time::Uptime;
use serde_json::json;

use crate::case::Case;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_duration, join_names};
use holdfast_status::record::{Changed, Record};

/// The history's word for an endpoint that may get traffic.
const READY: &str = "ready";

fn list_rows<'a>(case: &Case<'a>) -> impl Iterator<Item = Row> + use<'a> {
    case.ports().flat_map(|port| port.rows.iter())
}

/// Changes of readiness in the history. Their times count from now.
fn readiness_changes(case: &Case<'_>) -> Vec<ReadinessChange> {
    let record_changes = |record: &Record| {
        let at = Uptime(case.age(record.time.seconds()).saturating_neg());
        let changed =
            record.triggers.iter().filter_map(|it| it.endpoints.as_ref()).flat_map(|it| &it.changed);
        let to_change = |it: &Changed| {
            Some(ReadinessChange { address: parse_address(&it.address)?, at, is_ready: it.after == READY })
        };
        changed.filter_map(to_change).collect::<Vec<_>>()
    };
    case.history().iter().flat_map(record_changes).collect()
}

fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

fn judge_finding(found: Option<EndpointFinding>, well: &str, words: &str, remedy: &str) -> Judgement {
    let Some(found) = found else { return Judgement::ok(well) };
    let named = found.evidence.iter().filter_map(|it| {
        let age = it.age.map(|age| format!(" (for {})", format_duration(age))).unwrap_or_default();
        Some(format!("{}{age}", it.address?))
    });
    let addresses: Vec<String> =
        found.evidence.iter().filter_map(|it| it.address).map(|it| it.to_string()).collect();
    let more = if found.more > 0 { format!(", and {} others", found.more) } else { String::new() };
    Judgement::warning(format!("{words}: {}{more}.", join_names(named)))
        .with("addresses", json!(addresses))
        .with("more", found.more)
        .remedy(Remedy::safe(remedy))
}

pub(super) fn check_never_ready(case: &Case<'_>) -> Judgement {
    judge_finding(
        endpoints::find_never_ready(list_rows(case), &readiness_changes(case), case.taken_at()),
        "No endpoint has stayed unready for long.",
        "Listed for long and not seen ready since",
        "Look at the pod's readiness probe, its Events and its log.",
    )
    .likely()
}

pub(super) fn check_flapping(case: &Case<'_>) -> Judgement {
    judge_finding(
        endpoints::find_flapping(&readiness_changes(case), Uptime(0)),
        "No endpoint becomes ready and unready again and again.",
        "Ready and unready again and again",
        "Give the readiness probe more time or more tries, or the pod more CPU.",
    )
}

pub(super) fn check_stuck_terminating(case: &Case<'_>) -> Judgement {
    judge_finding(
        endpoints::find_stuck_terminating(list_rows(case), case.taken_at()),
        "No endpoint has been terminating for long.",
        "Terminating for too long",
        "Look what keeps the pod: a finalizer, a long grace period, a node that is gone.",
    )
}
