//! Results of this node's test connections.
//!
//! Invariant: a probe is one connection at one moment from this host. Other hosts and pods may see another result; the
//! sentences say so where it matters.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::{Protocol, Transport};
use holdfast_status::datapath::ForeignPrograms;
use serde_json::json;

use super::backend_failures::{
    describe_harm, describe_probes, gets_clients, interpret_failures, judge_unused,
};
use super::endpoints::LISTEN_AT_THE_NODE;
use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::{Probe, ProbeKind, ProbeOutcome};
use crate::explain::{FailingBackend, list_failing};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, join_names};
use crate::limits::{NAMED_MAX, PODS_MAX};
use holdfast_status::views::apiserver::ApiserverState;

impl ProbeOutcome {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Connected => "connected",
            Self::Refused => "refused",
            Self::TimedOut => "timed out",
            Self::Unreachable(_) => "unreachable",
            Self::NotPermitted => "not permitted",
            Self::Elsewhere(_) => "led elsewhere",
            Self::NotTried(_) => "not tried",
        }
    }

    const fn was_tried(&self) -> bool {
        !matches!(self, Self::NotTried(_))
    }
}

fn list_tried<'a>(case: &Case<'a>, of_backends: bool) -> Vec<&'a Probe> {
    let wanted =
        |it: &&Probe| matches!(it.kind, ProbeKind::Backend { .. }) == of_backends && it.outcome.was_tried();
    case.probes().filter(wanted).collect()
}

fn filter_failed<'a>(case: &Case<'_>, tried: &[&'a Probe]) -> Vec<&'a Probe> {
    tried.iter().copied().filter(|it| !is_successful(case, it)).collect()
}

/// Whether the connection reached its target. A kernel may name the backend as the peer, not the frontend.
fn is_successful(case: &Case<'_>, probe: &Probe) -> bool {
    match &probe.outcome {
        ProbeOutcome::Connected => true,
        ProbeOutcome::Elsewhere(at) => case.is_backend(*at),
        _ => false,
    }
}

/// Whether connections to frontends fail or reach an address that is no backend, while each tried backend answers.
pub(super) fn is_intercepted(case: &Case<'_>) -> bool {
    let frontends = list_tried(case, false);
    let backends = list_tried(case, true);
    let all_answer = !backends.is_empty() && filter_failed(case, &backends).is_empty();
    let fails_otherwise = |it: &&Probe| it.outcome != ProbeOutcome::NotPermitted;
    all_answer && filter_failed(case, &frontends).iter().any(fails_otherwise)
}

/// Remedies against programs of others. The first finds their owner.
pub(super) fn foreign_program_remedies(status: &holdfast_status::datapath::Status) -> Vec<Remedy> {
    let all = || status.shared_hooks.iter().flat_map(|it| it.before.iter().chain(&it.after));
    let show = all().next().and_then(|id| {
        let words = ["bpftool", "prog", "show", "id"].map(CommandWord::Literal);
        Command::from_words(&[&words[..], &[CommandWord::Number(u64::from(*id))]].concat())
    });
    let tree = status
        .cgroup
        .as_ref()
        .and_then(|_| Command::from_words(&["bpftool", "cgroup", "tree"].map(CommandWord::Literal)));
    vec![
        Remedy::safe("Look whose program it is.").with_command(show),
        Remedy::safe("Look which programs are attached to the cgroup.").with_command(tree),
        Remedy::disruptive("Switch off the component that attached it, or its translation of services."),
    ]
}

const FRONTENDS_QUESTION: &str = "Whether its frontends answer";
const BACKENDS_QUESTION: &str = "Whether its backends answer";

/// Judges backends that were not dialled by what their clients met.
fn judge_clients(case: &Case<'_>) -> Option<Judgement> {
    let failing = list_failing(case.table(), case.view()?, case.datapath());
    let FailingBackend { backend, sentence: first, .. } = failing.first()?;
    let others: BTreeSet<_> = failing.iter().map(|it| it.backend).filter(|it| it != backend).collect();
    let more = match others.len() {
        0 => String::new(),
        1 => " Another one failed clients, too.".to_owned(),
        more => format!(" {more} others failed clients, too."),
    };
    let dial = Remedy::safe("Run this diagnosis without `--no-probe`: it dials each backend.");
    Some(Judgement::error(format!("{first}.{more}")).remedy(dial))
}

/// Clients may come another way than this host's test connections: pods have a loopback of their own, and a policy or
/// a firewall may stop them alone.
pub(super) fn check_client_failures(case: &Case<'_>) -> Judgement {
    let Some(view) = case.view() else { return Judgement::not_applicable("It is not known here.") };
    let tried = list_tried(case, true);
    if tried.is_empty() {
        return Judgement::not_applicable(
            "No backend was dialled; probe.backend says what their clients met.",
        );
    }
    let failed: BTreeSet<SocketAddr> = filter_failed(case, &tried).iter().map(|it| it.to).collect();
    let failing = list_failing(case.table(), view, case.datapath());
    let unknown = failing.iter().find(|it| !failed.contains(&it.backend));
    let Some(FailingBackend { backend, sentence, .. }) = unknown else {
        return Judgement::ok("No backend that answers this host has failed a client lately.");
    };
    let is_local = backend.ip().is_loopback();
    let answers = match (tried.iter().any(|it| it.to == *backend), is_local) {
        (true, true) => {
            " It answers this host now. It is at this host's own loopback, which pods and other machines do not reach."
        }
        (true, false) => {
            " It answers this host now: it was mended since, or these clients reach it another way."
        }
        (false, _) => "",
    };
    let remedy = match is_local {
        true => LISTEN_AT_THE_NODE,
        false => {
            "Dial the service from where such a client is, a pod or a machine outside, and diagnose it again."
        }
    };
    Judgement::warning(format!("{sentence}.{answers}")).remedy(Remedy::safe(remedy))
}

/// Judges frontends or backends that were not dialled.
fn judge_untried(case: &Case<'_>, what: &str) -> Judgement {
    let of_backends = what == BACKENDS_QUESTION;
    if let Some(judgement) = of_backends.then(|| judge_clients(case)).flatten() {
        return judgement;
    }
    if let Some((_, why)) = list_not_tried(case, of_backends).first() {
        let sentence = format!("{what} was not tried: {why}.");
        return match of_backends || !are_parts_judged(case) {
            true => Judgement::unknown(sentence),
            false => Judgement::not_applicable(format!(
                "{sentence} Programs and maps are as they should be; probe.backend judges the backends."
            )),
        };
    }
    match case.probes_lookup().answer() {
        None => judge_unavailable(case.probes_lookup(), what),
        Some(_) if has_only_protocol(case, &Protocol::UDP) => {
            Judgement::not_applicable("UDP cannot be probed like that; see probe.udp.")
        }
        Some(_) if of_backends && has_sctp(case) => Judgement::unknown(SCTP_NOT_TRIED),
        Some(all) if of_backends && all.iter().any(|it| matches!(it.kind, ProbeKind::Backend { .. })) => {
            Judgement::ok("Its backends are apiservers, and each answers this daemon.")
        }
        Some(_) => Judgement::not_applicable("There was nothing to be tried."),
    }
}

const SCTP_NOT_TRIED: &str =
    "Whether its backends answer by SCTP was not tried: no socket of this host is served by it.";

fn has_only_protocol(case: &Case<'_>, protocol: &Protocol) -> bool {
    case.frontends().next().is_some() && case.frontends().all(|it| it.protocol == *protocol)
}

fn has_sctp(case: &Case<'_>) -> bool {
    case.frontends().any(|it| it.protocol == Protocol::SCTP)
}

/// The addresses that were not dialled, with reasons. It leaves out apiservers that answer this daemon anyway.
fn list_not_tried<'a>(case: &Case<'a>, of_backends: bool) -> Vec<(SocketAddr, &'static str)> {
    let untried = |it: &'a Probe| match it.outcome {
        ProbeOutcome::NotTried(why) if matches!(it.kind, ProbeKind::Backend { .. }) == of_backends => {
            Some((it.to, why))
        }
        _ => None,
    };
    let untried = case.probes().filter_map(untried);
    untried.filter(|(at, _)| !(of_backends && is_healthy_apiserver(case, *at))).collect()
}

fn is_healthy_apiserver(case: &Case<'_>, at: SocketAddr) -> bool {
    let view = case.apiserver().as_deref();
    view.is_some_and(|view| {
        view.endpoints.iter().any(|it| it.address == at && it.state == ApiserverState::Healthy)
    })
}

/// Whether every part that a connection to a frontend needs was judged by itself: the programs are attached, the maps
/// match the table, and the backends were tried.
fn are_parts_judged(case: &Case<'_>) -> bool {
    let is_served = case.datapath().status().is_some_and(|status| {
        status.bare_redirects().is_empty()
            && status.behind_hooks.is_empty()
            && !status.waiting
            && status.cgroup.is_some()
    });
    let rows = case.map_rows().answer();
    let is_written = rows.is_some_and(|rows| rows.iter().all(|row| row.difference.is_none()));
    is_served && is_written && list_not_tried(case, true).is_empty() && count_backends_left(case) == 0
}

/// Number of TCP frontends in the maps that were not dialled, because there are too many.
fn count_frontends_left(case: &Case<'_>) -> usize {
    let dialled = case.probes().filter(|it| it.kind == ProbeKind::Frontend).count();
    let tcp = case.frontends().filter(|it| it.protocol == Protocol::TCP && it.verdict.is_in_maps());
    if dialled < PODS_MAX { 0 } else { tcp.count().saturating_sub(dialled) }
}

/// Number of TCP backends that get clients and were not dialled, because there are too many.
fn count_backends_left(case: &Case<'_>) -> usize {
    let dialled: BTreeSet<SocketAddr> = case.probes().map(|it| it.to).collect();
    let tcp = case.ports().filter(|port| port.key.transport == Transport::Tcp);
    let chosen = tcp.flat_map(|port| port.rows.iter()).filter(|row| row.is_chosen() && !row.is_held());
    let left: BTreeSet<SocketAddr> =
        chosen.map(|row| row.backend()).filter(|it| !dialled.contains(it)).collect();
    left.len()
}

pub(super) fn check_frontend(case: &Case<'_>) -> Judgement {
    let all = list_tried(case, false);
    if all.is_empty() {
        return judge_untried(case, FRONTENDS_QUESTION);
    }
    let failed = filter_failed(case, &all);
    let Some(first) = failed.first() else {
        let left = count_frontends_left(case);
        let summary = format!("Each of {} answers from this host", format_count(all.len(), "frontend"));
        return match left {
            0 => Judgement::ok(format!("{summary}.")),
            left => Judgement::unknown(format!(
                "{summary}; {left} more were not tried. Ask for one port (--port)."
            )),
        };
    };
    let behind = list_tried(case, true);
    let all_answer = !behind.is_empty() && behind.iter().all(|it| it.outcome == ProbeOutcome::Connected);
    let judgement = match &first.outcome {
        ProbeOutcome::NotPermitted => Judgement::error(format!(
            "{} is not permitted to this host: a program of somebody else forbids it{}.",
            first.to,
            describe_shared_hooks(case)
        ))
        .remedies(case.datapath().status().map(foreign_program_remedies).unwrap_or_default()),
        ProbeOutcome::Elsewhere(at) => Judgement::error(format!(
            "{} leads this host to {at}, which is no backend of it: somebody else translates it{}.",
            first.to,
            describe_shared_hooks(case)
        ))
        .remedy(Remedy::safe("See self.hooks and foreign.* for who that may be.")),
        _ if all_answer => Judgement::error(format!(
            "{}, although each backend answers: the fault is on this node.",
            describe_probes(&failed)
        ))
        .remedy(Remedy::safe("See self.hooks, self.maps, view.table-kernel and foreign.*.")),
        _ => Judgement::error(format!("{} from this host.", describe_probes(&failed)))
            .remedy(Remedy::safe("See the findings on its endpoints.")),
    };
    judgement.with("failed", to_json(&failed))
}

fn describe_shared_hooks(case: &Case<'_>) -> String {
    let shared = case.datapath().status().map(|status| status.shared_hooks.clone()).unwrap_or_default();
    let one = |it: &ForeignPrograms| {
        format!("{}: program {}", it.hook, join_names(it.before.iter().chain(&it.after)))
    };
    match shared.is_empty() {
        true => String::new(),
        false => format!(" (others have programs at {})", join_names(shared.iter().map(one))),
    }
}

fn to_json(probes: &[&Probe]) -> serde_json::Value {
    let one = |it: &&Probe| json!({ "to": it.to.to_string(), "result": it.outcome.as_str() });
    json!(probes.iter().take(NAMED_MAX).map(one).collect::<Vec<_>>())
}

pub(super) fn check_backend(case: &Case<'_>) -> Judgement {
    let all = list_tried(case, true);
    if all.is_empty() {
        return judge_untried(case, BACKENDS_QUESTION);
    }
    let failed = filter_failed(case, &all);
    if failed.is_empty() {
        return judge_answering(case, all.len());
    }
    let who = match (failed.len(), all.len()) {
        (1, 1) => "Its one backend fails".to_owned(),
        (1, of) => format!("1 of {of} backends fails"),
        (number, of) => format!("{number} of {of} backends fail"),
    };
    let failure = format!("{who}: {}.", describe_probes(&failed));
    let met: Vec<&Probe> = failed.iter().copied().filter(|it| gets_clients(case, it.to)).collect();
    if met.is_empty() {
        return judge_unused(case, &failed, &failure)
            .with("failed", to_json(&failed))
            .with("tried", all.len());
    }
    let (meaning, remedies) = interpret_failures(case, &all, &failed);
    let harm = describe_harm(case, &met);
    let sentence = format!("{failure} {harm}{meaning}");
    // A NetworkPolicy may keep this host out and let clients in.
    let has_policies = case.policies_lookup().answer().is_some_and(|number| *number > 0);
    // A client that is refused fails now. One that waits may meet a policy against this host alone.
    let is_met = met.iter().any(|it| it.outcome == ProbeOutcome::Refused);
    let is_error = (is_met || failed.len() == all.len()) && !has_policies;
    let judgement = match has_policies {
        true => Judgement::warning(format!(
            "{sentence} A NetworkPolicy may keep this host out and let clients in."
        ))
        .possible(),
        false => Judgement::error_if(is_error, sentence),
    };
    let judgement = judgement.with("failed", to_json(&failed)).with("tried", all.len()).remedies(remedies);
    // A backend that refuses is reachable. Silence may come from a policy, unless it is known that there is none.
    let may_be_kept_out = failed.iter().any(|it| it.outcome != ProbeOutcome::Refused);
    let is_open = may_be_kept_out && case.policies_lookup().answer().is_none();
    if is_open { judgement.likely() } else { judgement }
}

/// Judges tried backends that all answer. Others may not have been tried.
fn judge_answering(case: &Case<'_>, tried: usize) -> Judgement {
    let answer = match tried {
        1 => "1 backend was tried and answers this host".to_owned(),
        tried => format!("{tried} backends were tried and answer this host"),
    };
    let (not_tried, left) = (list_not_tried(case, true), count_backends_left(case));
    if let Some((_, why)) = not_tried.first() {
        let named = join_names(not_tried.iter().map(|(at, _)| at));
        return Judgement::unknown(format!("{answer}; {named} was not tried: {why}."));
    }
    match (left, has_sctp(case)) {
        (0, false) => Judgement::ok(format!("Each of {} answers this host.", format_count(tried, "backend"))),
        (0, true) => Judgement::unknown(format!("{answer}. {SCTP_NOT_TRIED}")),
        (left, _) => Judgement::unknown(format!(
            "{answer}; {left} more were not tried, so that no diagnosis dials too many. Ask for one port (--port)."
        )),
    }
}
