//! The metrics, as Prometheus reads them.
//!
//! Invariant: the number of series does not depend on the cluster. Labels have the closed sets of values of the rules, and
//! every series is there from the first scrape on, so that a rate never begins with its first error. Scrapes follow one
//! another, because the API has one thread. Deliberately absent: a metrics library; all numbers are read off a snapshot, and
//! nothing is left for a registry to keep.

use std::fmt::{Display, Write as _};
use std::time::Instant;

use holdfast_core::keys::Source;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{ServiceState, ServiceView, Snapshot, Status, Verdict};

use super::datapath::fills;
use super::{About, Readings, backends, process};
use crate::apiserver::{State, Tier, View};
use crate::datapath::{DatapathView, spelled};
use crate::sources::kubernetes::{self as watching, Watch};
use crate::state::Written;

/// The exposition format, version 0.0.4.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const STATES: [ServiceState; 6] = ServiceState::ALL;
const TYPES: [FrontendType; 5] = FrontendType::ALL;
const VERDICTS: [Verdict; 9] = Verdict::ALL;
const BACKEND_STATES: [&str; 4] = ["active", "draining", "held", "unused"];
const STATUSES: [&str; 3] = ["pending", "done", "error"];

#[derive(Debug, Default)]
struct Counts {
    services: [u64; STATES.len()],
    frontends: [[u64; VERDICTS.len()]; TYPES.len()],
    statuses: [u64; STATUSES.len()],
    backends: [u64; BACKEND_STATES.len()],
}

fn count<T: PartialEq, const N: usize>(counts: &mut [u64; N], all: &[T; N], found: &T) {
    if let Some((_, count)) = all.iter().zip(counts).find(|(known, _)| *known == found) {
        *count += 1;
    }
}

impl Counts {
    fn of(snapshot: &Snapshot) -> Self {
        let mut counts = Self::default();
        snapshot.services.iter().for_each(|view| counts.add(view));
        counts
    }

    fn add(&mut self, view: &ServiceView) {
        count(&mut self.services, &STATES, &view.state);
        for frontend in &view.frontends {
            if let Some((_, verdicts)) =
                TYPES.iter().zip(&mut self.frontends).find(|(kind, _)| **kind == frontend.kind)
            {
                count(verdicts, &VERDICTS, &frontend.verdict);
            }
            let status = match frontend.status {
                Status::Pending => "pending",
                Status::Done => "done",
                Status::Error(_) => "error",
            };
            count(&mut self.statuses, &STATUSES, &status);
        }
        for row in view.ports.iter().flat_map(|port| port.rows.all()) {
            count(&mut self.backends, &BACKEND_STATES, &backends::state(row));
        }
    }
}

struct Exposition(String);

impl Exposition {
    /// Begins a metric. Writing to a String cannot fail.
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (place, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{text}\"", if place == 0 { "{" } else { "," });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "counter", help);
        self.sample(name, &[], value);
    }
}

/// All metrics of one snapshot and of this moment.
pub(super) fn exposition(readings: &Readings, snapshot: &Snapshot, ready: bool) -> String {
    let (about, view) = (&readings.about, readings.datapath());
    let mut out = Exposition(String::new());
    out.begin("holdfast_build_info", "gauge", "Always 1; the labels say what runs.");
    out.sample("holdfast_build_info", &[("version", about.version), ("datapath", view.kind())], 1);
    daemon(&mut out, snapshot, ready);
    tables(&mut out, &Counts::of(snapshot));
    maps(&mut out, snapshot);
    kernel(&mut out, snapshot, &view);
    refusals(&mut out, readings);
    if let Some(view) = readings.apiserver() {
        apiserver(&mut out, &view);
        watches(&mut out, &readings.watches.now());
    }
    work(&mut out, snapshot);
    rejections(&mut out, snapshot);
    state(&mut out, &readings.written.borrow());
    history(&mut out, readings);
    usage(&mut out, about);
    out.0
}

fn daemon(out: &mut Exposition, snapshot: &Snapshot, ready: bool) {
    out.gauge("holdfast_ready", "Whether the datapath follows the sources.", u8::from(ready));
    out.begin("holdfast_source_synced", "gauge", "Whether a source has delivered its first whole list.");
    for source in Source::ALL {
        if let Some(synced) = snapshot.sources.get(&source) {
            out.sample("holdfast_source_synced", &[("source", source.as_str())], u8::from(*synced));
        }
    }
    let help =
        "Whether what is served was remembered from before a restart, and a source has not delivered since.";
    out.gauge("holdfast_stale", help, u8::from(snapshot.stale_since.is_some()));
    let help = "When the newest view was published.";
    out.gauge("holdfast_snapshot_timestamp_seconds", help, snapshot.published.0);
}

fn state(out: &mut Exposition, written: &Written) {
    let help = "When the snapshot was last written; 0: not by this process.";
    out.gauge("holdfast_state_written_timestamp_seconds", help, written.at.map_or(0, |at| at.0));
    out.gauge("holdfast_state_bytes", "The size of the snapshot.", written.bytes);
    let help = "Whether the last write of the snapshot failed.";
    out.gauge("holdfast_state_failed", help, u8::from(written.error.is_some()));
}

fn history(out: &mut Exposition, readings: &Readings) {
    let (recorded, fill) = (readings.history.recorded(), readings.history.fill());
    out.counter("holdfast_history_records_total", "Changes that were recorded.", recorded.records);
    let help = "Places in the history where records are missing.";
    out.counter("holdfast_history_gaps_total", help, recorded.gaps);
    let help = "Records that memory has and the disk did not take.";
    out.counter("holdfast_history_unwritten_total", help, recorded.file.lost);
    let help = "Writes of the history that failed.";
    out.counter("holdfast_history_write_failures_total", help, recorded.file.failures);
    let help = "Whether the last write of the history failed.";
    out.gauge("holdfast_history_failed", help, u8::from(recorded.file.error.is_some()));
    out.gauge("holdfast_history_disk_bytes", "The history on disk.", recorded.file.bytes);
    out.gauge("holdfast_history_memory_bytes", "The history in memory, about.", fill.bytes);
    out.gauge("holdfast_history_watchers", "Who watches.", readings.history.watchers());
}

fn tables(out: &mut Exposition, counts: &Counts) {
    out.begin("holdfast_services", "gauge", "Services by state.");
    for (state, count) in STATES.iter().zip(counts.services) {
        out.sample("holdfast_services", &[("state", state.as_str())], count);
    }
    out.begin("holdfast_frontends", "gauge", "Frontends by type and by what a new connection gets.");
    for (kind, verdicts) in TYPES.iter().zip(counts.frontends) {
        for (verdict, count) in VERDICTS.iter().zip(verdicts) {
            let labels = [("type", kind.as_str()), ("verdict", verdict.as_str())];
            out.sample("holdfast_frontends", &labels, count);
        }
    }
    out.begin(
        "holdfast_frontends_programmed",
        "gauge",
        "Frontends by whether the maps hold what they should.",
    );
    for (status, count) in STATUSES.iter().zip(counts.statuses) {
        out.sample("holdfast_frontends_programmed", &[("status", status)], count);
    }
    out.begin("holdfast_backends", "gauge", "Endpoints of all ports, by whether they get traffic.");
    for (state, count) in BACKEND_STATES.iter().zip(counts.backends) {
        out.sample("holdfast_backends", &[("state", state)], count);
    }
}

fn maps(out: &mut Exposition, snapshot: &Snapshot) {
    let fill = &snapshot.fill;
    out.gauge("holdfast_map_frontends", "Frontends in the maps.", fill.frontends);
    out.gauge("holdfast_map_ports", "Port indices in use.", fill.ports);
    out.gauge("holdfast_map_slots", "Slots in use, in whole blocks.", fill.slots.iter().sum::<u64>());
    out.gauge("holdfast_retries", "Services waiting for another try.", fill.retries);
}

/// Programs and maps in the kernel; with memory maps there is nothing to tell.
fn kernel(out: &mut Exposition, snapshot: &Snapshot, view: &DatapathView) {
    let Some(status) = view.status() else { return };
    let fills = fills(status, &snapshot.fill);
    out.begin("holdfast_map_used", "gauge", "Entries in use.");
    fills.iter().for_each(|fill| out.sample("holdfast_map_used", &[("map", fill.map)], fill.used));
    out.begin("holdfast_map_size", "gauge", "Entries that the map has room for; it grows.");
    fills.iter().for_each(|fill| out.sample("holdfast_map_size", &[("map", fill.map)], fill.size));
    out.begin("holdfast_map_limit", "gauge", "Entries that the map may grow to.");
    fills.iter().for_each(|fill| out.sample("holdfast_map_limit", &[("map", fill.map)], fill.limit));
    out.counter("holdfast_map_growths_total", "How often the maps have grown.", status.growths);
    let help = "Hooks whose program or pin somebody else removed.";
    out.gauge("holdfast_broken_hooks", help, status.broken_hooks.len());
    let help = "Whether grace periods do not end, so that nothing is reused.";
    out.gauge("holdfast_grace_failed", help, u8::from(status.grace_failure.is_some()));
    let swept = status.stale_sockets.clone().unwrap_or_default();
    let help = "Sockets that were ended because their backend had left.";
    out.counter("holdfast_stale_sockets_ended_total", help, swept.ended);
    let help = "Whether some sockets cannot be looked at.";
    out.gauge("holdfast_stale_sockets_failed", help, u8::from(swept.failure.is_some()));
    let help = "Refusals that nobody read in time; they are in no other number.";
    out.counter("holdfast_refusals_lost_total", help, status.refusals_lost);
}

fn refusals(out: &mut Exposition, readings: &Readings) {
    out.begin("holdfast_refusals_total", "counter", "Clients that were not served, by what they met.");
    for (denial, count) in readings.refusals.totals() {
        out.sample("holdfast_refusals_total", &[("verdict", spelled(denial))], count);
    }
}

const TIERS: [Tier; 3] = [Tier::Configured, Tier::Kubelet, Tier::Learned];
const ENDPOINT_STATES: [State; 4] = [State::Unknown, State::Healthy, State::Recovering, State::Failed];

/// The way to the apiserver; where none is used there is nothing to tell.
fn apiserver(out: &mut Exposition, view: &View) {
    out.begin("holdfast_apiserver_endpoints", "gauge", "Known addresses of apiservers by tier and state.");
    for tier in TIERS {
        for state in ENDPOINT_STATES {
            let here = view.endpoints.iter().filter(|it| it.tier == tier && it.state == state).count();
            let labels = [("tier", tier.as_str()), ("state", state.as_str())];
            out.sample("holdfast_apiserver_endpoints", &labels, here);
        }
    }
    let connections: usize = view.endpoints.iter().map(|it| it.connections).sum();
    out.gauge("holdfast_apiserver_connections", "Connections to apiservers.", connections);
    let help = "Requests that went on to another endpoint.";
    out.counter("holdfast_apiserver_failovers_total", help, view.failovers);
    let problems = view.credentials.iter().filter(|it| it.problem.is_some()).count();
    out.gauge("holdfast_apiserver_credentials_failed", "Credentials that cannot be read.", problems);
    if let Some(expires) = view.credentials.iter().filter_map(|it| it.expires).min() {
        let help = "When the first of the credentials ends.";
        out.gauge("holdfast_apiserver_credentials_expiry_timestamp_seconds", help, expires.0);
    }
}

/// One metric of a watch.
type OfWatch = (&'static str, &'static str, &'static str, fn(&Watch) -> u64);

const OF_WATCHES: [OfWatch; 7] = [
    ("holdfast_watch_established", "gauge", "Whether it hears of each change.", |it| {
        u64::from(it.state == watching::State::Watching)
    }),
    ("holdfast_watch_bad_objects", "gauge", "Objects whose last version could not be understood.", |it| {
        u64::try_from(it.bad).unwrap_or(u64::MAX)
    }),
    ("holdfast_watch_lists_total", "counter", "Whole lists that were read.", |it| it.lists),
    ("holdfast_watch_restarts_total", "counter", "Lists and watches that went badly.", |it| it.restarts),
    ("holdfast_watch_events_total", "counter", "Events that changed something.", |it| it.events),
    ("holdfast_watch_losses_total", "counter", "Lists that removed more than half of everything.", |it| {
        it.losses
    }),
    ("holdfast_watch_differences_total", "counter", "Comparisons that found a watch to have lied.", |it| {
        it.differences
    }),
];

fn watches(out: &mut Exposition, watches: &[Watch]) {
    for (name, kind, help, value) in OF_WATCHES {
        out.begin(name, kind, help);
        watches.iter().for_each(|it| out.sample(name, &[("kind", &it.what.to_string())], value(it)));
    }
    let name = "holdfast_watch_silence_seconds";
    out.begin(name, "gauge", "For how long nothing has come; an apiserver writes once a minute.");
    for watch in watches {
        if let Some(silence) = watch.silence(Instant::now()) {
            out.sample(name, &[("kind", &watch.what.to_string())], silence.as_secs());
        }
    }
}

fn work(out: &mut Exposition, snapshot: &Snapshot) {
    let counters = &snapshot.counters;
    out.counter("holdfast_batches_total", "Batches applied.", counters.batches);
    out.counter("holdfast_events_total", "Events applied.", counters.events);
    out.counter("holdfast_ops_total", "Map writes accepted.", counters.ops);
    out.counter("holdfast_ops_failed_total", "Map writes refused.", counters.ops_failed);
    let help = "Map writes not tried because their service had not changed. Anything but 0 is a defect.";
    out.counter("holdfast_cross_service_ops_total", help, counters.cross_service);
    let help = "Things in the maps that somebody else had changed; each is written anew.";
    out.counter("holdfast_drift_total", help, counters.drift);
    out.counter("holdfast_changes_total", "Change records made.", counters.changes);
    let help = "Change records that the recorder had no room for.";
    out.counter("holdfast_changes_dropped_total", help, counters.changes_dropped);
}

fn rejections(out: &mut Exposition, snapshot: &Snapshot) {
    let rejections = &snapshot.rejections;
    let now = u64::try_from(rejections.named.len()).unwrap_or(u64::MAX);
    out.gauge("holdfast_rejected_objects", "Objects that are rejected now, as far as they are named.", now);
    out.counter("holdfast_rejections_total", "Rejections.", rejections.total);
    out.counter(
        "holdfast_rejections_unnamed_total",
        "Rejections with no room for a name.",
        rejections.dropped,
    );
}

/// The names that every Prometheus client gives them.
fn usage(out: &mut Exposition, about: &About) {
    let usage = process::usage();
    let help = "When the process started.";
    out.gauge("process_start_time_seconds", help, about.started.0);
    if let Some(bytes) = usage.resident_bytes {
        out.gauge("process_resident_memory_bytes", "Resident memory.", bytes);
    }
    if let Some(milliseconds) = usage.cpu_milliseconds {
        let seconds = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
        out.counter("process_cpu_seconds_total", "User and system time.", seconds);
    }
}
