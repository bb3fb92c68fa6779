//! What the disk does not take, and what a restart of the daemon would lose for it.
//!
//! Invariant: it names a loss only where the disk lacks something, and it calls a restart safe only if clients keep
//! what they have.

use std::time::Instant;

use holdfast_agent::readings::{Readings, StartOutcome};
use holdfast_core::drains::Drain;
use holdfast_core::hold::Hold;
use holdfast_core::keys::Source;
use holdfast_core::snapshot::{ServiceView, Snapshot};
use holdfast_kubernetes::source::is_away;
use holdfast_status::rfc3339::Rfc3339;
use schemars::JsonSchema;
use serde::Serialize;

use super::drains::{NAMED_MAX, describe_drain};

/// The wall clocks of a write and of a hold are read apart, each in whole seconds. In doubt the disk lacks the hold.
const CLOCKS_DIFFER_SECONDS: i64 = 2;

/// What the disk does not take.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Unwritten")]
pub(super) struct Unwritten {
    /// The folder that takes no write: `[state] path`.
    path: String,
    /// Since when; null if that is not known.
    since: Option<Rfc3339>,
    /// The errors, each once.
    errors: Vec<String>,
    /// What the disk lacks.
    lacks: Vec<String>,
    /// What a restart of the daemon does to clients, in a sentence.
    restart: String,
    /// What a restart loses.
    loses: Vec<String>,
}

impl Unwritten {
    /// `None`: the disk takes everything.
    pub(super) fn from_readings(readings: &Readings, snapshot: &Snapshot) -> Option<Self> {
        let written = readings.last_write.borrow().clone();
        let history = readings.history.status().file;
        let drains = readings.drains.borrow().clone();
        let problem = readings.drains_problem();
        let path = readings.files.state.display().to_string();
        let failures = [
            (written.error.as_deref(), written.failing_since),
            (history.error.as_deref(), history.failing_since),
            (problem.as_deref(), drains.failing_since()),
        ];
        let mut errors: Vec<String> =
            failures.iter().filter_map(|(why, _)| Some(strip_file(why.as_ref()?, &path))).collect();
        errors.sort();
        errors.dedup();
        if errors.is_empty() {
            return None;
        }
        let since = failures.iter().filter(|(why, _)| why.is_some()).filter_map(|(_, since)| *since).min();
        let records = history.error.as_ref().map_or(0, |_| history.lost);
        let records = (records > 0).then(|| count(records, "history record"));
        let table = written.error.as_ref().map(|_| "the newest table".to_owned());
        let orders = problem.as_ref().map(|_| "the last orders to drain".to_owned());
        let lacks = table.into_iter().chain(records.clone()).chain(orders).collect();
        let at_risk = written.error.as_ref().map(|_| list_unwritten_holds(snapshot, written.at));
        let loses = [list_drains("drain", drains.lost()), list_drains("end of a drain", drains.revived())];
        let loses = loses.into_iter().flatten().filter(|_| problem.is_some()).chain(records).collect();
        let restart = describe_restart(readings, snapshot, &at_risk.unwrap_or_default());
        Some(Self { path, since: since.map(Rfc3339), errors, lacks, restart, loses })
    }
}

/// The error without the file's name in the folder, which the answer names once.
fn strip_file(error: &str, folder: &str) -> String {
    let inside = error.strip_prefix(folder).filter(|rest| rest.starts_with('/'));
    inside.and_then(|rest| rest.split_once(": ")).map_or(error, |(_, why)| why).to_owned()
}

fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn list_drains(what: &str, drains: impl Iterator<Item = Drain>) -> Option<String> {
    let named: Vec<String> = drains.map(|drain| describe_drain(&drain)).collect();
    let more = named.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let shown = named.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    (!named.is_empty())
        .then(|| format!("the {what}{} of {shown}{more}", if named.len() > 1 { "s" } else { "" }))
}

/// The services with a list that has been held since the disk took the table last: a restart may not know that list.
fn list_unwritten_holds(
    snapshot: &Snapshot,
    written: Option<holdfast_core::facts::Timestamp>,
) -> Vec<String> {
    let clock = snapshot.clock();
    let is_new = |view: &ServiceView| {
        let mut holds = view.ports.iter().filter_map(|port| port.hold.as_ref());
        let begun = |hold: &Hold| clock.wall_at(hold.begun).0 + CLOCKS_DIFFER_SECONDS;
        holds.any(|hold| written.is_none_or(|written| begun(hold) >= written.0))
    };
    let held = snapshot.held.iter().filter_map(|id| snapshot.services.get(*id));
    held.filter(|view| is_new(view)).map(|view| view.key.name.to_string()).collect()
}

/// What clients notice of a restart.
fn describe_restart(readings: &Readings, snapshot: &Snapshot, held: &[String]) -> String {
    let datapath = readings.datapath();
    let unpinned = datapath.unpinned_hooks();
    if let Some(refused) = &*readings.refused_reload.borrow() {
        return describe_start(refused.start).to_owned();
    }
    if !unpinned.is_empty() {
        return format!(
            "a restart interrupts clients: the programs at {} are not pinned, and end with the daemon",
            unpinned.join(", ")
        );
    }
    if let Some(first) = held.first() {
        let more = if held.len() > 1 { format!(" and {} more", held.len() - 1) } else { String::new() };
        return format!(
            "a restart is not safe: it may refuse the clients of {first}{more}, whose backends are held and not on \
             the disk"
        );
    }
    let meanwhile = match datapath.status() {
        Some(_) => "a restart is safe for clients: the kernel serves meanwhile",
        None => "a restart touches no client, as no traffic is carried here",
    };
    format!("{meanwhile}{}", describe_sources(readings, snapshot))
}

/// What a start does with the file of a refused reload. Clients keep what the kernel has if it fails.
const fn describe_start(outcome: StartOutcome) -> &'static str {
    match outcome {
        StartOutcome::Fails => {
            "a restart fails, because the last reload was refused: clients keep what the kernel has, and no change is \
             followed"
        }
        StartOutcome::Unknown => {
            "a restart may fail, because the last reload was refused: `holdfast check-config` says whether the file is \
             legal"
        }
    }
}

/// Where the state comes from after a restart.
fn describe_sources(readings: &Readings, snapshot: &Snapshot) -> String {
    let has = |source| snapshot.sources.contains_key(&source);
    let has_blocks = snapshot.services.iter().any(|view| view.key.source == Source::Config);
    let is_silent = is_away(&readings.watches.current(), Instant::now());
    let sources = [
        (has(Source::Manifests), "manifests"),
        (has_blocks, "[[service]] blocks"),
        (has(Source::Kubernetes) && !is_silent, "the apiserver's objects"),
    ];
    let named: Vec<&str> = sources.iter().filter(|(is_used, _)| *is_used).map(|(_, name)| *name).collect();
    let read =
        if named.is_empty() { String::new() } else { format!(", and {} are read again", named.join(", ")) };
    let waits = if has(Source::Kubernetes) && is_silent {
        "; what the apiserver said last stays in the kernel until it answers"
    } else {
        ""
    };
    format!("{read}{waits}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_agent::readings::RefusedReload;
    use tokio::sync::watch;

    use super::*;
    use crate::fixture::{many, readings};

    /// The daemon may find a file that it does not take, also where nobody knows of a fault in it.
    #[test]
    fn after_a_refused_reload_no_restart_is_called_safe() {
        for (start, expected) in
            [(StartOutcome::Fails, "a restart fails"), (StartOutcome::Unknown, "a restart may fail")]
        {
            let mut readings = readings(watch::channel(Arc::new(many(1, 1))).1);
            let refused = RefusedReload { start, ..RefusedReload::from_reason("no such key") };
            readings.refused_reload = watch::channel(Some(refused)).1;
            let said = describe_restart(&readings, &many(1, 1), &[]);
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
