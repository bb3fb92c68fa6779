//! The process, and whether it is well.
//!
//! Invariant: as for all metrics, see the parent.

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;

use super::super::process;
use super::Exposition;
use crate::readings::{About, Readings};

pub(super) fn write(out: &mut Exposition, readings: &Readings, snapshot: &Snapshot, ready: bool) {
    let labels = [("version", readings.about.version), ("datapath", readings.datapath().kind())];
    out.begin("holdfast_build_info", "gauge", "Always 1; the labels say what runs.");
    out.sample("holdfast_build_info", &labels, 1);
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
    let help = "For how long the engine has not moved although it should; 0: it moves.";
    let stalled = readings.liveness.stalled().map_or(0, |still| still.as_secs());
    out.gauge("holdfast_engine_stalled_seconds", help, stalled);
    let help = "Whether the last reload was refused, so that an older configuration than that of the file is in force.";
    out.gauge("holdfast_reload_refused", help, u8::from(readings.refused_reload.borrow().is_some()));
}

/// The names that every Prometheus client gives them.
pub(super) fn usage(out: &mut Exposition, about: &About) {
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
