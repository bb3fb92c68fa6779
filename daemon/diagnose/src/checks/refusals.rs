//! Clients that the programs refused or dropped at the service's own frontends in the last minutes.
//!
//! Invariant: only clients that reached one of this service's own frontends count, and those that dialled another port
//! of its cluster IP. `flows.room` reports clients that were dropped for lack of capacity.

use std::sync::Arc;

use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::FrontendView;
use holdfast_status::datapath::{Denial, Refusal};
use serde_json::json;

use super::policy::build_admission_remedies;
use crate::case::Case;
use crate::command::{Command, CommandWord};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, format_duration, join_names};
use holdfast_status::views::refusals::{
    Cause, DenialAtFrontend, DeniedClient, find_frontends, programmed_key,
};

/// The recently denied clients of the service's frontends.
pub(super) fn recent_denials(case: &Case<'_>) -> Vec<Arc<DeniedClient>> {
    let recent = case.denials().iter().filter(|it| it.is_recent(case.taken_at())).cloned().collect();
    let all = find_frontends(case.table(), recent).into_iter();
    all.filter(|it| is_own(case, it)).map(|it| it.client).collect()
}

/// Whether the client reached a frontend of this service, or dialled a port of its cluster IP that no service has.
fn is_own(case: &Case<'_>, denied: &DenialAtFrontend) -> bool {
    let Refusal { cause, frontend, .. } = &denied.client.refusal;
    if *cause == Cause::NoSuchPort {
        let is_cluster_ip = |it: &FrontendView| it.kind == FrontendType::ClusterIp && it.verdict.is_in_maps();
        return case.frontends().any(|it| is_cluster_ip(it) && it.address == frontend.address);
    }
    denied.reached.is_some() && case.frontends().any(|it| programmed_key(it) == denied.reached)
}

pub(super) fn check_refusals(case: &Case<'_>) -> Judgement {
    if case.datapath().status().is_none() {
        return Judgement::not_applicable("Tables are in memory only, so no program refuses clients.");
    }
    let every = recent_denials(case);
    let client = case.scope().client;
    let is_asked = |it: &&Arc<DeniedClient>| {
        client.is_none_or(|client| it.refusal.arrival.is_some_and(|arrival| arrival.source.ip() == client))
    };
    let all: Vec<_> = every.iter().filter(is_asked).collect();
    if let (Some(client), true, false) = (client, all.is_empty(), every.is_empty()) {
        return Judgement::ok(format!(
            "{client} was neither refused nor dropped in the last five minutes; others were (without --client)."
        ));
    }
    let select = |cause| all.iter().copied().filter(|it| it.refusal.cause == cause).collect::<Vec<_>>();
    let (unserved, kept_out) = (select(Cause::NoBackend), select(Cause::Source));
    let unknown_ports = select(Cause::NoSuchPort);
    let judgement = match (unserved.is_empty(), kept_out.is_empty(), unknown_ports.is_empty()) {
        (false, true, _) => Judgement::warning(format!("{}.", describe_unserved(case, &unserved))),
        (true, false, _) => judge_excluded(case, &kept_out),
        (false, false, _) => Judgement::warning(format!(
            "{}. {}.",
            describe_unserved(case, &unserved),
            describe_excluded(case, &kept_out)
        )),
        (true, true, false) => Judgement::info(format!("{}.", describe_unknown_ports(case, &unknown_ports))),
        (true, true, true) => return judge_no_denial(case),
    };
    judgement
        .with("clients", all.len())
        .with("latest", to_json(&all))
        .remedies(build_remedies(case, &unserved, &kept_out))
}

/// Clients outside the source ranges are kept out as the Service asks. It is a problem of whoever asks about one.
fn judge_excluded(case: &Case<'_>, kept_out: &[&Arc<DeniedClient>]) -> Judgement {
    let sentence = format!("{}.", describe_excluded(case, kept_out));
    match case.scope().client {
        Some(_) => Judgement::warning(sentence),
        None => Judgement::info(sentence),
    }
}

fn describe_attempts(case: &Case<'_>, denied: &[&Arc<DeniedClient>]) -> String {
    let times: u64 = denied.iter().map(|it| it.count).sum();
    let last = denied.iter().map(|it| case.age(it.last)).min().unwrap_or_default();
    format!("{times} times, the last time {} ago", format_duration(last))
}

fn describe_unserved(case: &Case<'_>, denied: &[&Arc<DeniedClient>]) -> String {
    let how = match denied.iter().all(|it| it.refusal.denial == Denial::Dropped) {
        true => "dropped",
        false => "refused",
    };
    let clients = format_count(denied.len(), "client");
    let (verb, whom) = if denied.len() == 1 { ("was", "it") } else { ("were", "them") };
    format!(
        "{clients} {verb} {how} {}, because there was no backend for {whom}",
        describe_attempts(case, denied)
    )
}

fn describe_excluded(case: &Case<'_>, denied: &[&Arc<DeniedClient>]) -> String {
    let sources = denied.iter().filter_map(|it| it.refusal.arrival.map(|arrival| arrival.source.ip()));
    let packets: u64 = denied.iter().map(|it| it.count).sum();
    let last = denied.iter().map(|it| case.age(it.last)).min().unwrap_or_default();
    let unit = if packets == 1 { "packet" } else { "packets" };
    format!(
        "{packets} {unit} of {} outside {verb} dropped, the last {} ago: {} {is} not in loadBalancerSourceRanges",
        format_count(denied.len(), "client"),
        format_duration(last),
        join_names(sources),
        is = if denied.len() == 1 { "is" } else { "are" },
        verb = if packets == 1 { "was" } else { "were" },
    )
}

fn describe_unknown_ports(case: &Case<'_>, denied: &[&Arc<DeniedClient>]) -> String {
    let ports = denied.iter().map(|it| it.refusal.frontend);
    format!(
        "Clients dialled ports that the service does not have ({}): {}",
        describe_attempts(case, denied),
        join_names(ports)
    )
}

fn build_remedies(
    case: &Case<'_>,
    unserved: &[&Arc<DeniedClient>],
    kept_out: &[&Arc<DeniedClient>],
) -> Vec<Remedy> {
    let show = Command::from_words(&["holdfast", "refusals"].map(CommandWord::Literal));
    let mut remedies = Vec::new();
    if !unserved.is_empty() {
        remedies.push(
            Remedy::safe("See which clients those were; the history says what changed.").with_command(show),
        );
    }
    if !kept_out.is_empty() {
        remedies.extend(build_admission_remedies(case));
    }
    remedies
}

fn judge_no_denial(case: &Case<'_>) -> Judgement {
    let lost = case.datapath().status().map_or(0, |status| status.refusals_lost);
    let counted = case.view().and_then(|view| case.counters().service_clients(view));
    judge_unreported(lost, counted.map_or(0, |it| it.refused))
}

fn judge_unreported(lost: u64, refused: u64) -> Judgement {
    if lost == 0 || refused == 0 {
        return Judgement::ok(
            "holdfast itself refused and dropped no client of it in the last five minutes.",
        );
    }
    Judgement::unknown(
        "No client is listed as refused, but the programs lost some refusals on this node, and its ports have \
         refused clients.",
    )
    .with("lost", lost)
    .with("refused", refused)
}

fn to_json(denied: &[&Arc<DeniedClient>]) -> serde_json::Value {
    let one = |it: &&Arc<DeniedClient>| {
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
    fn lost_refusals_and_refused_clients_make_the_result_unknown() {
        for (lost, refused, expected) in
            [(0, 0, State::Ok), (9, 0, State::Ok), (0, 9, State::Ok), (9, 9, State::Unknown)]
        {
            assert_eq!(judge_unreported(lost, refused).state, expected, "{lost} {refused}");
        }
    }
}
