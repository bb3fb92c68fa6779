//! Whether apiserver, table and kernel say the same, and what clients meet.
//!
//! Invariant: verdicts and reasons are the product's own words, and so are their sentences.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_core::facts::SliceFacts;
use holdfast_core::keys::PortKey;
use holdfast_core::list::{Row, Scope};
use holdfast_core::resolve::{DesiredFrontend, FrontendQuota, resolve};
use holdfast_core::snapshot::{FrontendView, PortView, Reason, Verdict};
use serde_json::json;

use super::host::at;
use crate::case::{Case, missing};
use crate::command::{Command, Word};
use crate::finding::{Judgement, Remedy};
use crate::limits::NAMED_MAX;
use crate::material::SliceSeen;
use crate::shown::{count, some};
use crate::why::why;

/// How long a difference with the apiserver is only news on its way.
const LAG_SECONDS: u64 = 5;

/// Addresses with what decides whether they get traffic.
type Listed = BTreeSet<(std::net::IpAddr, bool, bool)>;

fn as_seen(slice: &SliceSeen) -> Listed {
    let endpoints = slice.endpoints.iter();
    endpoints
        .filter_map(|it| Some((it.address?, it.ready.unwrap_or(true), it.terminating.unwrap_or(false))))
        .collect()
}

fn as_known(slice: &SliceFacts) -> Listed {
    slice.endpoints.iter_brief().map(|(address, it)| (address, it.ready, it.terminating)).collect()
}

pub(super) fn api_cache(case: &Case<'_>) -> Judgement {
    let Some(seen) = case.asked_slices().answer() else {
        return missing(case.asked_slices(), "Whether this node has the slices that the apiserver has");
    };
    let seen: BTreeMap<&str, Listed> =
        seen.iter().map(|slice| (slice.name.as_str(), as_seen(slice))).collect();
    let known = case.all_slices();
    let known: BTreeMap<&str, Listed> = known.map(|slice| (slice.key.name.name(), as_known(slice))).collect();
    let names: BTreeSet<&str> = seen.keys().chain(known.keys()).copied().collect();
    let differs = |name: &&str| {
        let none = Listed::new();
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
    let sentence = format!("The apiserver has other endpoints than this node in {}.", some(&differing));
    let judgement = match silent {
        true => Judgement::error(sentence)
            .remedy(Remedy::safe("See self.watch and self.control: the news has not come."))
            .remedy(verify()),
        false => Judgement::info(format!("{sentence} The news is on its way.")),
    };
    judgement.with("slices", json!(differing.iter().take(NAMED_MAX).collect::<Vec<_>>()))
}

fn verify() -> Remedy {
    Remedy::safe("Have everything compared; what differs is mended by that.")
        .by(Command::of(&[Word::Ours("holdfast"), Word::Ours("verify")]))
}

/// What decides which backends get traffic: each with the lists that it is in.
type Chosen = BTreeSet<(SocketAddr, bool, bool)>;

fn chosen(rows: impl IntoIterator<Item = Row>) -> Chosen {
    let of_row = |row: Row| (row.backend(), row.is_in(Scope::Cluster), row.is_in(Scope::Local));
    rows.into_iter().map(of_row).collect()
}

/// Judges the table by the rules, applied anew to what the watches brought. A list that is held differs from what the
/// rules make, and is left out.
pub(super) fn cache_table(case: &Case<'_>) -> Judgement {
    let Some(view) = case.view().filter(|view| view.facts.is_some()) else {
        return Judgement::skipped("There is nothing that rules could be applied to.");
    };
    let snapshot = case.table();
    let given = (&*snapshot.node, &*snapshot.settings, &*snapshot.drains);
    // How many frontends a service may have depends on others, so those that it has are taken as they are.
    let shown: BTreeSet<_> = view.frontends.iter().map(|it| (it.address, it.port, &it.protocol)).collect();
    let has = |it: &DesiredFrontend| shown.contains(&(it.address, it.port, &it.protocol));
    let most = view.frontends.len();
    let part = FrontendQuota { most, external_ips: most, is_present: &has };
    let desired = resolve(view.facts.as_deref(), &view.slices, given, part);
    let is_held = |port: &PortView| port.hold.is_some() || port.rows.iter().any(|row| row.is_held());
    let held = view.ports.iter().filter(|port| is_held(port)).count();
    let wanted = |key: &PortKey| {
        let port = desired.ports.iter().find(|port| port.key == *key);
        port.map(|port| chosen(port.rows.iter().copied())).unwrap_or_default()
    };
    let compared = view.ports.iter().filter(|port| !is_held(port));
    let differs = compared.filter(|port| chosen(port.rows.iter()) != wanted(&port.key));
    let differing: Vec<String> = differs.map(|port| port.key.to_string()).collect();
    let unused =
        view.ports.iter().flat_map(|port| port.rows.iter().filter_map(|row| port.unused_reason(&row)));
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    unused.for_each(|why| *reasons.entry(why.as_str()).or_default() += 1);
    let judgement = match (differing.is_empty(), held) {
        (false, _) => Judgement::error(format!(
            "The table has other backends than the rules make of its slices, for {}: a fault of holdfast.",
            some(&differing)
        ))
        .remedy(verify())
        .remedy(Remedy::safe("Report it, with `holdfast explain` and `holdfast history` of this service.")),
        (true, 0) => Judgement::ok("The table has what the rules make of its slices."),
        (true, held) => Judgement::info(format!(
            "The table has what the rules make of its slices, but for {held} kept lists; see hold.state."
        )),
    };
    judgement.with("unused", json!(reasons)).with("held", held)
}

pub(super) fn table_kernel(case: &Case<'_>) -> Judgement {
    let Some(rows) = case.map_rows().answer() else {
        return missing(case.map_rows(), "What the maps hold");
    };
    let differing: Vec<_> = rows.iter().filter(|row| row.difference.is_some()).collect();
    let words = differing
        .iter()
        .map(|row| format!("{}: {}", row.frontend, row.difference.as_deref().unwrap_or_default()));
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        true => as_wanted(rows.len(), *case.map_rows_left()).with("frontends", rows.len()),
        false => Judgement::error(format!(
            "{} of {} frontends are not in the maps as they should be: {}.",
            words.len(),
            rows.len(),
            some(&words)
        ))
        .with("differences", json!(words.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(verify())
        .remedy(Remedy::safe("See self.maps for why a write failed.")),
    }
}

fn as_wanted(read: usize, left: usize) -> Judgement {
    match left {
        0 => Judgement::ok("The maps hold what the table wants."),
        left => Judgement::unknown(format!(
            "The maps hold what the table wants for {}; {left} more were not read. Ask for one port (--port).",
            count(read, "frontend")
        )),
    }
}

pub(super) fn drift(case: &Case<'_>) -> Judgement {
    match case.table().counters.drift {
        0 => Judgement::ok("Nobody else has changed the maps since the start."),
        times => Judgement::warning(format!(
            "Somebody else has changed the maps {times} times since the start; it was mended."
        ))
        .with("times", times)
        .remedy(Remedy::safe("Look who writes to pinned maps below /sys/fs/bpf/holdfast.")),
    }
}

pub(super) fn hold(case: &Case<'_>) -> Judgement {
    let held: Vec<&FrontendView> = case.frontends().filter(|it| it.verdict == Verdict::Held).collect();
    let Some(first) = held.first() else { return Judgement::ok("No list is held.") };
    let since = holdfast_status::rfc3339::Rfc3339(first.since);
    Judgement::warning(format!(
        "Its list is held since {since}: new connections go to the last known backends, because {}.",
        why(first.reason)
    ))
    .with("reason", first.reason.map(Reason::as_str))
    .with("since", since.to_string())
    .remedy(Remedy::safe("Find out who withdrew the endpoints; the history names the writer.").by(
        Command::of(&[
            Word::Ours("holdfast"),
            Word::Ours("history"),
            Word::Ours("--since"),
            Word::Ours("1h"),
        ]),
    ))
}

/// The frontend that is worst for its clients.
pub(crate) fn worst<'a>(case: &Case<'a>) -> Option<&'a FrontendView> {
    case.frontends()
        .max_by(|a, b| a.verdict.severity().cmp(&b.verdict.severity()).then_with(|| at(b).cmp(&at(a))))
}

pub(super) fn verdict(case: &Case<'_>) -> Judgement {
    let (Some(view), Some(frontend)) = (case.view(), worst(case)) else {
        return Judgement::skipped("It has no frontend on this node.");
    };
    let sentence = crate::why::sentence_of(view, frontend, case.table());
    let judgement = match frontend.verdict {
        Verdict::Serving | Verdict::Bypassed => Judgement::ok(sentence),
        Verdict::Passing => Judgement::info(sentence),
        Verdict::Held | Verdict::Draining => {
            Judgement::warning(sentence).remedy(Remedy::safe("See the findings on pods and slices for why."))
        }
        Verdict::Refusing | Verdict::Dropping | Verdict::Conflict | Verdict::Unprogrammed => {
            Judgement::error(sentence).remedy(Remedy::safe("See the findings on pods and slices for why."))
        }
    };
    let dialled: SocketAddr = at(frontend);
    judgement
        .with("frontend", dialled.to_string())
        .with("verdict", frontend.verdict.as_str())
        .with("reason", frontend.reason.map(Reason::as_str))
}
