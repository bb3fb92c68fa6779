//! Clients that programs refused or dropped at the service's own frontends in the last minutes.
//!
//! Invariant: only what the programs told of this service's own addresses counts. Clients that found no room are told
//! by `flows.room`.

use std::sync::Arc;

use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::FrontendView;
use holdfast_status::datapath::Denial;
use serde_json::json;

use crate::case::Case;
use crate::command::{Command, Word};
use crate::finding::{Judgement, Remedy};
use crate::shown::{count, some, span};
use holdfast_status::views::refusals::{Cause, Denied};

/// A denial that is older says nothing about now: the programs tell each minute of a client that goes on trying.
pub(super) const LATELY_SECONDS: i64 = 300;

/// The clients that were denied in the last minutes at a frontend of the service.
pub(super) fn lately<'a>(case: &Case<'a>) -> Vec<&'a Arc<Denied>> {
    let since = case.taken().0.saturating_sub(LATELY_SECONDS);
    let is_own = |it: &&Arc<Denied>| case.frontends().any(|frontend| is_at(frontend, it));
    case.denied().iter().filter(|it| it.last.0 >= since).filter(is_own).collect()
}

/// Whether the client dialled this frontend. A node port is dialled at any address of the node; a port that no service
/// has is dialled at a cluster IP that this one has.
fn is_at(frontend: &FrontendView, denied: &Denied) -> bool {
    let (key, is_node_port) = (&denied.refusal.frontend, frontend.kind == FrontendType::NodePort);
    if denied.refusal.cause == Cause::NoSuchPort {
        return frontend.address == key.address;
    }
    frontend.port == key.port
        && frontend.protocol.transport() == Some(key.transport)
        && (is_node_port || frontend.address == key.address)
}

pub(super) fn refusals(case: &Case<'_>) -> Judgement {
    if case.datapath().status().is_none() {
        return Judgement::skipped("Tables are in memory only, so no program refuses clients.");
    }
    let all = lately(case);
    let select = |cause| all.iter().copied().filter(|it| it.refusal.cause == cause).collect::<Vec<_>>();
    let (unserved, kept_out) = (select(Cause::NoBackend), select(Cause::Source));
    let astray = select(Cause::NoSuchPort);
    let judgement = match (unserved.is_empty(), kept_out.is_empty(), astray.is_empty()) {
        (false, true, _) => Judgement::warning(format!("{}.", unserved_told(case, &unserved))),
        (true, false, _) => Judgement::warning(format!("{}.", kept_out_told(case, &kept_out))),
        (false, false, _) => Judgement::warning(format!(
            "{}. {}.",
            unserved_told(case, &unserved),
            kept_out_told(case, &kept_out)
        )),
        (true, true, false) => Judgement::info(format!("{}.", astray_told(case, &astray))),
        (true, true, true) => return none(case),
    };
    judgement.with("clients", all.len()).with("latest", listed(&all)).remedies(remedies(&unserved, &kept_out))
}

/// How many clients there were, how often they tried, and when they tried last.
fn tried(case: &Case<'_>, denied: &[&Arc<Denied>]) -> String {
    let times: u64 = denied.iter().map(|it| it.count).sum();
    let last = denied.iter().map(|it| case.age(it.last)).min().unwrap_or_default();
    format!("{times} times, the last time {} ago", span(last))
}

fn unserved_told(case: &Case<'_>, denied: &[&Arc<Denied>]) -> String {
    let how = match denied.iter().all(|it| it.refusal.denial == Denial::Dropped) {
        true => "dropped",
        false => "refused",
    };
    let clients = count(denied.len(), "client");
    let verb = if denied.len() == 1 { "was" } else { "were" };
    format!("{clients} {verb} {how} {}, because no backend was there for them", tried(case, denied))
}

fn kept_out_told(case: &Case<'_>, denied: &[&Arc<Denied>]) -> String {
    let sources = denied.iter().filter_map(|it| it.refusal.arrival.map(|arrival| arrival.source.ip()));
    let verb = if denied.len() == 1 { "was" } else { "were" };
    format!(
        "{} outside {verb} dropped {}, because loadBalancerSourceRanges do not cover {}",
        count(denied.len(), "client"),
        tried(case, denied),
        some(sources)
    )
}

fn astray_told(case: &Case<'_>, denied: &[&Arc<Denied>]) -> String {
    let ports = denied.iter().map(|it| it.refusal.frontend);
    format!("Clients dialled ports that the service does not have ({}): {}", tried(case, denied), some(ports))
}

fn remedies(unserved: &[&Arc<Denied>], kept_out: &[&Arc<Denied>]) -> Vec<Remedy> {
    let show = Command::of(&["holdfast", "refusals"].map(Word::Ours));
    let mut remedies = Vec::new();
    if !unserved.is_empty() {
        remedies.push(Remedy::safe("See which clients those were; the history says what changed.").by(show));
    }
    if !kept_out.is_empty() {
        remedies
            .push(Remedy::safe("If these clients are to be served, add them to loadBalancerSourceRanges."));
    }
    remedies
}

/// The judgement where the programs told of no client.
fn none(case: &Case<'_>) -> Judgement {
    let lost = case.datapath().status().map_or(0, |status| status.refusals_lost);
    let counted = case.view().and_then(|view| case.counters().service(view));
    untold(lost, counted.map_or(0, |it| it.refused))
}

fn untold(lost: u64, refused: u64) -> Judgement {
    if lost == 0 || refused == 0 {
        return Judgement::ok("No client was refused or dropped in the last five minutes.");
    }
    Judgement::unknown(
        "No client is listed as refused, but some refusals on this node were not told, and its ports have refused \
         clients since they are there.",
    )
    .with("lost", lost)
    .with("refused", refused)
}

fn listed(denied: &[&Arc<Denied>]) -> serde_json::Value {
    let one = |it: &&Arc<Denied>| {
        json!({
            "frontend": it.refusal.frontend.to_string(),
            "cause": it.refusal.cause.as_str(),
            "source": it.refusal.arrival.map(|arrival| arrival.source.ip().to_string()),
            "times": it.count,
        })
    };
    json!(denied.iter().rev().take(crate::limits::NAMED_MAX).map(one).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;

    #[test]
    fn a_refusal_that_may_be_untold_is_not_taken_for_none() {
        for (lost, refused, expected) in
            [(0, 0, State::Ok), (9, 0, State::Ok), (0, 9, State::Ok), (9, 9, State::Unknown)]
        {
            assert_eq!(untold(lost, refused).state, expected, "{lost} {refused}");
        }
    }
}
