//! Whether apiserver, table and kernel agree, and what clients meet.
//!
//! Invariant: verdicts, reasons and their sentences are the product's own words.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_core::facts::SliceFacts;
use holdfast_core::keys::{PortKey, Source};
use holdfast_core::list::{Row, Scope};
use holdfast_core::resolve::{DesiredFrontend, FrontendQuota, resolve};
use holdfast_core::snapshot::{FrontendView, PortView, Reason, Verdict};
use serde_json::json;

use super::endpoints::see_endpoints_remedy;
use super::host::frontend_address;
use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::ObservedSlice;
use crate::explain::describe_reason;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, join_names};
use crate::limits::NAMED_MAX;

/// For this long a difference from the apiserver is only lag.
const LAG_SECONDS: u64 = 5;

/// Addresses with the conditions that decide whether they get traffic.
type EndpointSet = BTreeSet<(std::net::IpAddr, bool, bool)>;

fn api_endpoint_set(slice: &ObservedSlice) -> EndpointSet {
    let endpoints = slice.endpoints.iter();
    endpoints
        .filter_map(|it| Some((it.address?, it.ready.unwrap_or(true), it.terminating.unwrap_or(false))))
        .collect()
}

fn known_endpoint_set(slice: &SliceFacts) -> EndpointSet {
    slice.endpoints.iter_brief().map(|(address, it)| (address, it.ready, it.terminating)).collect()
}

pub(super) fn check_api_cache(case: &Case<'_>) -> Judgement {
    let Some(seen) = case.slices_lookup().answer() else {
        return judge_unavailable(
            case.slices_lookup(),
            "Whether this node has the slices that the apiserver has",
        );
    };
    let seen: BTreeMap<&str, EndpointSet> =
        seen.iter().map(|slice| (slice.name.as_str(), api_endpoint_set(slice))).collect();
    let known = case.all_slices();
    let known: BTreeMap<&str, EndpointSet> =
        known.map(|slice| (slice.key.name.name(), known_endpoint_set(slice))).collect();
    let names: BTreeSet<&str> = seen.keys().chain(known.keys()).copied().collect();
    let differs = |name: &&str| {
        let none = EndpointSet::new();
        seen.get(name).unwrap_or(&none) != known.get(name).unwrap_or(&none)
    };
    let differing: Vec<&str> = names.into_iter().filter(differs).collect();
    if differing.is_empty() {
        return Judgement::ok("This node has the slices that the apiserver has.");
    }
    let silent = case
        .watches()
        .iter()
        .filter(|it| it.what == "endpointslices")
        .any(|it| it.error.is_some() || it.silent.is_none_or(|silent| silent.as_secs() > LAG_SECONDS));
    let sentence = format!("The apiserver has other endpoints than this node in {}.", join_names(&differing));
    let judgement = match silent {
        true => Judgement::error(sentence)
            .remedy(Remedy::safe("See self.watch and self.control: the news has not come."))
            .remedy(verify_remedy()),
        false => Judgement::info(format!("{sentence} The news is on its way.")),
    };
    judgement.with("slices", json!(differing.iter().take(NAMED_MAX).collect::<Vec<_>>()))
}

fn verify_remedy() -> Remedy {
    Remedy::safe("Compare everything; this repairs the differences.").with_command(Command::from_words(&[
        CommandWord::Literal("holdfast"),
        CommandWord::Literal("verify"),
    ]))
}

/// Backends, each with the lists that contain it.
type BackendSet = BTreeSet<(SocketAddr, bool, bool)>;

fn collect_backends(rows: impl IntoIterator<Item = Row>) -> BackendSet {
    let of_row = |row: Row| (row.backend(), row.is_in(Scope::Cluster), row.is_in(Scope::Local));
    rows.into_iter().map(of_row).collect()
}

/// Judges the table by applying the rules again to the watched objects. It skips held lists, which differ from what the
/// rules make.
pub(super) fn check_cache_table(case: &Case<'_>) -> Judgement {
    let Some(view) = case.view().filter(|view| view.facts.is_some()) else {
        return Judgement::not_applicable("There is nothing that rules could be applied to.");
    };
    let snapshot = case.table();
    let given = (&*snapshot.node, &*snapshot.settings, &*snapshot.drains);
    // The quota of frontends depends on other services, so the ones that exist are taken as they are.
    let shown: BTreeSet<_> = view.frontends.iter().map(|it| (it.address, it.port, &it.protocol)).collect();
    let has = |it: &DesiredFrontend| shown.contains(&(it.address, it.port, &it.protocol));
    let most = view.frontends.len();
    let part = FrontendQuota { most, external_ips: most, is_present: &has };
    let desired = resolve(view.facts.as_deref(), &view.slices, given, part);
    let is_held = |port: &PortView| port.hold.is_some() || port.rows.iter().any(|row| row.is_held());
    let held = view.ports.iter().filter(|port| is_held(port)).count();
    let wanted = |key: &PortKey| {
        let port = desired.ports.iter().find(|port| port.key == *key);
        port.map(|port| collect_backends(port.rows.iter().copied())).unwrap_or_default()
    };
    let compared = view.ports.iter().filter(|port| !is_held(port));
    let differs = compared.filter(|port| collect_backends(port.rows.iter()) != wanted(&port.key));
    let differing: Vec<String> = differs.map(|port| port.key.to_string()).collect();
    let unused =
        view.ports.iter().flat_map(|port| port.rows.iter().filter_map(|row| port.unused_reason(&row)));
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    unused.for_each(|why| *reasons.entry(why.as_str()).or_default() += 1);
    let judgement = match (differing.is_empty(), held) {
        (false, _) => Judgement::error(format!(
            "The table has other backends than the rules make of its slices, for {}: a fault of holdfast.",
            join_names(&differing)
        ))
        .remedy(verify_remedy())
        .remedy(Remedy::safe("Report it, with `holdfast explain` and `holdfast history` of this service.")),
        (true, 0) => Judgement::ok("The table has what the rules make of its slices."),
        (true, held) => Judgement::info(format!(
            "The table has what the rules make of its slices, except for {held} held lists; see hold.state."
        )),
    };
    judgement.with("unused", json!(reasons)).with("held", held)
}

pub(super) fn check_table_kernel(case: &Case<'_>) -> Judgement {
    let Some(rows) = case.map_rows().answer() else {
        return judge_unavailable(case.map_rows(), "What the maps hold");
    };
    let differing: Vec<_> = rows.iter().filter(|row| row.difference.is_some()).collect();
    let words = differing
        .iter()
        .map(|row| format!("{}: {}", row.frontend, row.difference.as_deref().unwrap_or_default()));
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        true => judge_matching(rows.len(), *case.unread_map_rows()).with("frontends", rows.len()),
        false => Judgement::error(format!(
            "{} of {} frontends are not in the maps as they should be: {}.",
            words.len(),
            rows.len(),
            join_names(&words)
        ))
        .with("differences", json!(words.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(verify_remedy())
        .remedy(Remedy::safe("See self.maps for why a write failed.")),
    }
}

fn judge_matching(read: usize, left: usize) -> Judgement {
    match left {
        0 => Judgement::ok("The maps hold what the table wants."),
        left => Judgement::unknown(format!(
            "The maps hold what the table wants for {}; {left} more were not read. Ask for one port (--port).",
            format_count(read, "frontend")
        )),
    }
}

pub(super) fn check_drift(case: &Case<'_>) -> Judgement {
    match case.table().counters.drift {
        0 => Judgement::ok("No other program has changed the maps since the start."),
        times => Judgement::warning(format!(
            "Another program has changed the maps {times} times since the start; holdfast repaired them."
        ))
        .with("times", times)
        .remedy(Remedy::safe("Find the program that writes to pinned maps below /sys/fs/bpf/holdfast.")),
    }
}

pub(super) fn check_hold(case: &Case<'_>) -> Judgement {
    let held: Vec<&FrontendView> = case.frontends().filter(|it| it.verdict == Verdict::Held).collect();
    let Some(first) = held.first() else { return Judgement::ok("No list is held.") };
    let since = holdfast_status::rfc3339::Rfc3339(first.since);
    Judgement::warning(format!(
        "Its list is held since {since}: new connections go to the last known backends, because {}.",
        describe_reason(first.reason)
    ))
    .with("reason", first.reason.map(Reason::as_str))
    .with("since", since.to_string())
    .remedy(
        Remedy::safe("Find out who withdrew the endpoints; the history names the writer.").with_command(
            Command::from_words(&[
                CommandWord::Literal("holdfast"),
                CommandWord::Literal("history"),
                CommandWord::Literal("--since"),
                CommandWord::Literal("1h"),
            ]),
        ),
    )
}

pub(crate) fn worst_frontend<'a>(case: &Case<'a>) -> Option<&'a FrontendView> {
    case.frontends().max_by(|a, b| {
        a.verdict
            .severity()
            .cmp(&b.verdict.severity())
            .then_with(|| frontend_address(b).cmp(&frontend_address(a)))
    })
}

/// Where to look for why it has no usable backend. Only an apiserver knows pods.
fn see_cause_remedy(case: &Case<'_>) -> Remedy {
    match case.source() {
        Some(Source::Manifests) => {
            Remedy::safe("See slices.exist and slices.counts for what to write into the manifests.")
        }
        Some(Source::Config) => see_endpoints_remedy(case),
        _ => Remedy::safe("See the findings on pods and slices for why."),
    }
}

pub(super) fn check_verdict(case: &Case<'_>) -> Judgement {
    let (Some(view), Some(frontend)) = (case.view(), worst_frontend(case)) else {
        return Judgement::not_applicable("It has no frontend on this node.");
    };
    let sentence = crate::explain::sentence_of(view, frontend, case.table());
    let judgement = match frontend.verdict {
        Verdict::Serving | Verdict::Bypassed => Judgement::ok(sentence),
        Verdict::Passing => Judgement::info(sentence),
        Verdict::Held | Verdict::Draining => Judgement::warning(sentence).remedy(see_cause_remedy(case)),
        Verdict::Conflict | Verdict::Unprogrammed => Judgement::error(sentence)
            .remedy(Remedy::safe("See the findings on the Service and its frontends.")),
        Verdict::Refusing | Verdict::Dropping => Judgement::error(sentence).remedy(see_cause_remedy(case)),
    };
    let dialled: SocketAddr = frontend_address(frontend);
    judgement
        .with("frontend", dialled.to_string())
        .with("verdict", frontend.verdict.as_str())
        .with("reason", frontend.reason.map(Reason::as_str))
}
