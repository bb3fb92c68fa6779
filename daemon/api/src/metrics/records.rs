//! The engine's work, rejected objects, and the files on disk.
//!
//! Invariant: as for all metrics, see the parent.

use holdfast_core::snapshot::Snapshot;

use holdfast_agent::engine::steps::StepMetrics;
use holdfast_agent::exposition::Exposition;
use holdfast_agent::readings::Readings;
use holdfast_agent::recorder::History;
use holdfast_agent::state::SnapshotWrite;
use holdfast_kubernetes::event_recorder::EventCounts;

/// Writes the engine's work, the state of history and snapshot, and the number of rejected objects.
pub(super) fn write(out: &mut Exposition, readings: &Readings, snapshot: &Snapshot) {
    write_counters(out, snapshot);
    write_steps(out, &readings.liveness.steps);
    write_history(out, &readings.history);
    write_rejections(out, snapshot);
    write_state(out, &readings.last_write.borrow());
}

/// Writes the outcomes of our Events. These series exist only if the daemon writes Events to the cluster.
pub(super) fn write_announced_events(out: &mut Exposition, announced: &EventCounts) {
    let help = "Events for the cluster, by outcome.";
    out.labelled_metric("holdfast_kubernetes_events_total", "counter", help, "outcome", announced.totals());
}

fn write_counters(out: &mut Exposition, snapshot: &Snapshot) {
    let counters = &snapshot.counters;
    out.counter("holdfast_batches_total", "Batches applied.", counters.batches);
    out.counter("holdfast_events_total", "Events applied.", counters.events);
    out.counter("holdfast_ops_total", "Map writes accepted.", counters.ops);
    out.counter("holdfast_ops_failed_total", "Map writes refused.", counters.ops_failed);
    let help = "Map writes not tried because their service had not changed. Anything but 0 is a defect.";
    out.counter("holdfast_cross_service_ops_total", help, counters.cross_service);
    let help = "Steps left out because an entry that must exist was missing. Anything but 0 is a defect.";
    out.counter("holdfast_impossible_total", help, counters.impossible);
    let help = "Map entries that another process changed; each is written again.";
    out.counter("holdfast_drift_total", help, counters.drift);
    out.counter("holdfast_changes_total", "Change records made.", counters.changes);
    let help = "Change records that did not fit the recorder's queue.";
    out.counter("holdfast_changes_dropped_total", help, counters.changes_dropped);
}

fn write_steps(out: &mut Exposition, steps: &StepMetrics) {
    let help = "How long the engine took for steps that wrote to the maps, or tried to.";
    out.histogram("holdfast_step_duration_seconds", help, &steps.durations);
}

fn write_history(out: &mut Exposition, history: &History) {
    let recorded = history.status();
    let fill = history.fill();
    out.counter("holdfast_history_records_total", "Changes that were recorded.", recorded.records);
    let help = "Places in the history where records are missing.";
    out.counter("holdfast_history_gaps_total", help, recorded.gaps);
    let help = "Records that the disk rejected; memory has them.";
    out.counter("holdfast_history_unwritten_total", help, recorded.file.lost);
    let help = "Writes of the history that failed.";
    out.counter("holdfast_history_write_failures_total", help, recorded.file.failures);
    let help = "Whether the last write of the history failed.";
    out.gauge("holdfast_history_failed", help, u8::from(recorded.file.error.is_some()));
    out.gauge("holdfast_history_disk_bytes", "The history on disk.", recorded.file.bytes);
    out.gauge("holdfast_history_memory_bytes", "The history in memory, about.", fill.bytes);
    out.gauge("holdfast_history_watchers", "Watchers of the history.", history.watchers());
}

fn write_rejections(out: &mut Exposition, snapshot: &Snapshot) {
    let rejections = &snapshot.rejections;
    let count = |objects: usize| u64::try_from(objects).unwrap_or(u64::MAX);
    let now = count(rejections.named.values().filter(|it| !it.is_ignored_kind()).count() + rejections.more);
    out.gauge("holdfast_rejected_objects", "Objects that are rejected now.", now);
    out.gauge("holdfast_waiting_objects", "Objects that wait for space.", count(rejections.waiting));
    out.counter("holdfast_rejections_total", "Rejections.", rejections.total);
    out.counter(
        "holdfast_rejections_unnamed_total",
        "Rejections that are counted without a name.",
        rejections.dropped,
    );
}

fn write_state(out: &mut Exposition, written: &SnapshotWrite) {
    let help = "When the snapshot was last written; 0: not by this process.";
    out.gauge("holdfast_state_written_timestamp_seconds", help, written.at.map_or(0, |at| at.0));
    out.gauge("holdfast_state_bytes", "The size of the snapshot.", written.bytes);
    let help = "Services that the snapshot does not have, because each is too large.";
    out.gauge("holdfast_state_left_out_services", help, written.left_out.count);
    let help = "Whether the last write of the snapshot failed.";
    out.gauge("holdfast_state_failed", help, u8::from(written.error.is_some()));
}
