//! What connections of this node found out.
//!
//! Invariant: a probe is one connection at one moment from this host. What other hosts and pods meet may differ, and
//! the sentences say so where it matters.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::{Protocol, Transport};
use holdfast_core::snapshot::Verdict;
use holdfast_status::datapath::Beside;
use serde_json::json;

use crate::case::{Case, missing};
use crate::command::{Command, Word};
use crate::finding::{self, Judgement, Remedy};
use crate::limits::{NAMED_MAX, PODS_MAX};
use crate::material::{Probe, ProbeOf, ProbeOutcome};
use crate::shown::{count, some};
use holdfast_status::views::apiserver::State;

impl ProbeOutcome {
    /// The outcome in a word or two.
    pub fn word(&self) -> &str {
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

fn tried<'a>(case: &Case<'a>, of_backends: bool) -> Vec<&'a Probe> {
    let wanted =
        |it: &&Probe| matches!(it.of, ProbeOf::Backend { .. }) == of_backends && it.outcome.was_tried();
    case.probes().filter(wanted).collect()
}

fn failed<'a>(case: &Case<'_>, tried: &[&'a Probe]) -> Vec<&'a Probe> {
    tried.iter().copied().filter(|it| !is_well(case, it)).collect()
}

/// Whether the connection came where it was meant to. A kernel may name the backend as the peer, and not the frontend.
fn is_well(case: &Case<'_>, probe: &Probe) -> bool {
    match &probe.outcome {
        ProbeOutcome::Connected => true,
        ProbeOutcome::Elsewhere(at) => case.is_backend(*at),
        _ => false,
    }
}

/// Whether connections to frontends fail or come to an address that is no backend, while each backend that was tried
/// answers.
pub(super) fn is_led_astray(case: &Case<'_>) -> bool {
    let frontends = tried(case, false);
    let backends = tried(case, true);
    let all_answer = !backends.is_empty() && failed(case, &backends).is_empty();
    let is_astray = |it: &&Probe| it.outcome != ProbeOutcome::NotPermitted;
    all_answer && failed(case, &frontends).iter().any(is_astray)
}

/// What to do about programs of others: first to find out where they come from.
pub(super) fn remedies_of_others(status: &holdfast_status::datapath::Status) -> Vec<Remedy> {
    let all = || status.shared_hooks.iter().flat_map(|it| it.before.iter().chain(&it.after));
    let show = all().next().and_then(|id| {
        let words = ["bpftool", "prog", "show", "id"].map(Word::Ours);
        Command::of(&[&words[..], &[Word::Number(u64::from(*id))]].concat())
    });
    let tree =
        status.cgroup.as_ref().and_then(|_| Command::of(&["bpftool", "cgroup", "tree"].map(Word::Ours)));
    vec![
        Remedy::safe("Look whose program it is.").by(show),
        Remedy::safe("Look which programs are attached to the cgroup.").by(tree),
        Remedy::disruptive("Switch off the component that attached it, or its translation of services."),
    ]
}

fn said(probes: &[&Probe]) -> String {
    some(probes.iter().map(|it| format!("{} {}", it.to, it.outcome.word())))
}

const FRONTENDS: &str = "Whether its frontends answer";
const BACKENDS: &str = "Whether its backends answer";

/// The judgement where no connection was tried.
fn untried(case: &Case<'_>, what: &str) -> Judgement {
    let of_backends = what == BACKENDS;
    if let Some((_, why)) = not_tried(case, of_backends).first() {
        let sentence = format!("{what} was not tried: {why}.");
        return match of_backends || !parts_are_well(case) {
            true => Judgement::unknown(sentence),
            false => Judgement::skipped(format!(
                "{sentence} Programs, maps and backends were looked at one by one, and are well."
            )),
        };
    }
    match case.asked_probes().answer() {
        None => missing(case.asked_probes(), what),
        Some(_) if is_all(case, &Protocol::UDP) => {
            Judgement::skipped("UDP cannot be probed like that; see probe.udp.")
        }
        Some(_) if of_backends && has_sctp(case) => Judgement::unknown(SCTP),
        Some(all) if of_backends && all.iter().any(|it| matches!(it.of, ProbeOf::Backend { .. })) => {
            Judgement::ok("Its backends are apiservers, and each answers this daemon.")
        }
        Some(_) => Judgement::skipped("There was nothing to be tried."),
    }
}

const SCTP: &str =
    "Whether its backends answer by SCTP was not tried: no socket of this host is served by it.";

fn is_all(case: &Case<'_>, protocol: &Protocol) -> bool {
    case.frontends().next().is_some() && case.frontends().all(|it| it.protocol == *protocol)
}

fn has_sctp(case: &Case<'_>) -> bool {
    case.frontends().any(|it| it.protocol == Protocol::SCTP)
}

/// The addresses that were not dialled, each with the reason; without apiservers that answer this daemon anyway.
fn not_tried<'a>(case: &Case<'a>, of_backends: bool) -> Vec<(SocketAddr, &'static str)> {
    let untried = |it: &'a Probe| match it.outcome {
        ProbeOutcome::NotTried(why) if matches!(it.of, ProbeOf::Backend { .. }) == of_backends => {
            Some((it.to, why))
        }
        _ => None,
    };
    let untried = case.probes().filter_map(untried);
    untried.filter(|(at, _)| !(of_backends && is_apiserver_that_answers(case, *at))).collect()
}

fn is_apiserver_that_answers(case: &Case<'_>, at: SocketAddr) -> bool {
    let view = case.apiserver().as_deref();
    view.is_some_and(|view| view.endpoints.iter().any(|it| it.address == at && it.state == State::Healthy))
}

/// Whether everything that a connection to a frontend needs was looked at by itself and is well: the programs are
/// attached, the maps hold what the table wants, and each backend that clients are led to answers.
fn parts_are_well(case: &Case<'_>) -> bool {
    let is_served = case.datapath().status().is_some_and(|status| {
        status.bare_hooks.is_empty()
            && status.behind_hooks.is_empty()
            && !status.waiting
            && status.cgroup.is_some()
    });
    let rows = case.map_rows().answer();
    let is_written = rows.is_some_and(|rows| rows.iter().all(|row| row.difference.is_none()));
    is_served && is_written && backend(case).state == finding::State::Ok
}

/// How many frontends over TCP are in the maps and were not dialled, because there are too many of them.
fn frontends_left(case: &Case<'_>) -> usize {
    let dialled = case.probes().filter(|it| it.of == ProbeOf::Frontend).count();
    let is_absent = |verdict| {
        matches!(verdict, Verdict::Passing | Verdict::Bypassed | Verdict::Conflict | Verdict::Unprogrammed)
    };
    let tcp = case.frontends().filter(|it| it.protocol == Protocol::TCP && !is_absent(it.verdict));
    if dialled < PODS_MAX { 0 } else { tcp.count().saturating_sub(dialled) }
}

/// How many backends over TCP get clients and were not dialled, because there are too many of them.
fn left_untried(case: &Case<'_>) -> usize {
    let dialled: BTreeSet<SocketAddr> = case.probes().map(|it| it.to).collect();
    let tcp = case.ports().filter(|port| port.key.transport == Transport::Tcp);
    let chosen = tcp.flat_map(|port| port.rows.iter()).filter(|row| row.is_chosen() && !row.is_held());
    let left: BTreeSet<SocketAddr> =
        chosen.map(|row| row.backend()).filter(|it| !dialled.contains(it)).collect();
    left.len()
}

pub(super) fn frontend(case: &Case<'_>) -> Judgement {
    let all = tried(case, false);
    if all.is_empty() {
        return untried(case, FRONTENDS);
    }
    let failed = failed(case, &all);
    let Some(first) = failed.first() else {
        let left = frontends_left(case);
        let told = format!("Each of {} answers from this host", count(all.len(), "frontend"));
        return match left {
            0 => Judgement::ok(format!("{told}.")),
            left => {
                Judgement::unknown(format!("{told}; {left} more were not tried. Ask for one port (--port)."))
            }
        };
    };
    let behind = tried(case, true);
    let all_answer = !behind.is_empty() && behind.iter().all(|it| it.outcome == ProbeOutcome::Connected);
    let judgement = match &first.outcome {
        ProbeOutcome::NotPermitted => Judgement::error(format!(
            "{} is not permitted to this host: a program of somebody else forbids it{}.",
            first.to,
            programs(case)
        ))
        .remedies(case.datapath().status().map(remedies_of_others).unwrap_or_default()),
        ProbeOutcome::Elsewhere(at) => Judgement::error(format!(
            "{} leads this host to {at}, which is no backend of it: somebody else translates it{}.",
            first.to,
            programs(case)
        ))
        .remedy(Remedy::safe("See self.hooks and foreign.* for who that may be.")),
        _ if all_answer => Judgement::error(format!(
            "{}, although each backend answers: the fault is on this node.",
            said(&failed)
        ))
        .remedy(Remedy::safe("See self.hooks, self.maps, view.table-kernel and foreign.*.")),
        _ => Judgement::error(format!("{} from this host.", said(&failed)))
            .remedy(Remedy::safe("See the findings on its endpoints.")),
    };
    judgement.with("failed", listed(&failed))
}

fn programs(case: &Case<'_>) -> String {
    let shared = case.datapath().status().map(|status| status.shared_hooks.clone()).unwrap_or_default();
    let one = |it: &Beside| format!("{}: program {}", it.hook, some(it.before.iter().chain(&it.after)));
    match shared.is_empty() {
        true => String::new(),
        false => format!(" (others have programs at {})", some(shared.iter().map(one))),
    }
}

fn listed(probes: &[&Probe]) -> serde_json::Value {
    let one = |it: &&Probe| json!({ "to": it.to.to_string(), "result": it.outcome.word() });
    json!(probes.iter().take(NAMED_MAX).map(one).collect::<Vec<_>>())
}

pub(super) fn backend(case: &Case<'_>) -> Judgement {
    let all = tried(case, true);
    if all.is_empty() {
        return untried(case, BACKENDS);
    }
    let failed = failed(case, &all);
    if failed.is_empty() {
        return answering(case, all.len());
    }
    let (meaning, remedy) = reading(&all, &failed);
    let who = match (failed.len(), all.len()) {
        (1, 1) => "Its one backend fails".to_owned(),
        (1, of) => format!("1 of {of} backends fails"),
        (number, of) => format!("{number} of {of} backends fail"),
    };
    let sentence = format!("{who}: {}. {meaning}", said(&failed));
    // Where policies rule, this host may be kept out while clients are let in.
    let has_policies = case.asked_policies().answer().is_some_and(|number| *number > 0);
    let is_error = failed.len() == all.len() && !has_policies;
    let judgement = match has_policies {
        true => Judgement::warning(format!(
            "{sentence} A NetworkPolicy may keep this host out and let clients in."
        ))
        .possible(),
        false => Judgement::error_if(is_error, sentence),
    };
    let judgement =
        judgement.with("failed", listed(&failed)).with("tried", all.len()).remedy(Remedy::safe(remedy));
    // A backend that refuses is there; silence may be a policy's, as long as it is not known that there is none.
    let may_be_kept_out = failed.iter().any(|it| it.outcome != ProbeOutcome::Refused);
    let is_open = may_be_kept_out && case.asked_policies().answer().is_none();
    if is_open { judgement.likely() } else { judgement }
}

/// The judgement where each backend that was tried answers: others may not have been tried.
fn answering(case: &Case<'_>, tried: usize) -> Judgement {
    let answer = match tried {
        1 => "1 backend was tried and answers this host".to_owned(),
        tried => format!("{tried} backends were tried and answer this host"),
    };
    let (not_tried, left) = (not_tried(case, true), left_untried(case));
    if let Some((_, why)) = not_tried.first() {
        let named = some(not_tried.iter().map(|(at, _)| at));
        return Judgement::unknown(format!("{answer}; {named} was not tried: {why}."));
    }
    match (left, has_sctp(case)) {
        (0, false) => Judgement::ok(format!("Each of {} answers this host.", count(tried, "backend"))),
        (0, true) => Judgement::unknown(format!("{answer}. {SCTP}")),
        (left, _) => Judgement::unknown(format!(
            "{answer}; {left} more were not tried, so that no diagnosis dials too many. Ask for one port (--port)."
        )),
    }
}

/// What it means that these probes failed, and what to look at.
fn reading(all: &[&Probe], failed: &[&Probe]) -> (String, &'static str) {
    let is_all = failed.len() == all.len();
    let of = |local: bool| all.iter().filter(move |it| it.of == ProbeOf::Backend { local });
    let fails =
        |local: bool| of(local).count() > 0 && of(local).all(|it| it.outcome != ProbeOutcome::Connected);
    let ports: BTreeSet<u16> = failed.iter().map(|it| it.to.port()).collect();
    if failed.iter().all(|it| it.outcome == ProbeOutcome::Refused) {
        let meaning = format!("The application does not listen on {} (the target port).", some(&ports));
        return (
            meaning,
            "Look at which port the application listens, and correct targetPort or the application.",
        );
    }
    let (meaning, remedy) = match (is_all, fails(true), fails(false)) {
        (_, false, true) if of(true).count() > 0 => (
            "Those here answer and those on other nodes do not.",
            "Look at the network between nodes: tunnel or routes of the CNI plug-in, firewalls.",
        ),
        (_, true, false) if of(false).count() > 0 => (
            "Those on other nodes answer and those here do not.",
            "Look at NetworkPolicies and at this host's firewall.",
        ),
        (false, ..) => (
            "As many of a client's connections fail.",
            "Look at those pods and their nodes: are they up, does a NetworkPolicy or a firewall stand before them?",
        ),
        (true, ..) => (
            "None can be reached from this host.",
            "Look at the pods, at the network between nodes, at NetworkPolicies and firewalls.",
        ),
    };
    (meaning.to_owned(), remedy)
}
