//! The maps and programs, and rejected clients.
//!
//! Invariant: as for all metrics, see the parent. A refusal is counted by its verdict only: the programs do not have
//! the reason, and a table of reasons per refusal would have no bound. `/refusals` names the reason, and
//! `holdfast_frontends_not_serving` counts frontends by it.

use holdfast_core::snapshot::Snapshot;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::refusals::denial_word;

use super::super::datapath::map_fills;
use crate::failing_backends;
use holdfast_agent::exposition::Exposition;
use holdfast_agent::readings::Readings;

/// Writes how full the maps are, whether the programs are whole, and how many clients were rejected.
pub(super) fn write(out: &mut Exposition, readings: &Readings, snapshot: &Snapshot) {
    write_maps(out, snapshot);
    write_kernel(out, snapshot, &readings.datapath());
    write_refusals(out, readings);
}

fn write_maps(out: &mut Exposition, snapshot: &Snapshot) {
    let fill = &snapshot.fill;
    out.gauge("holdfast_map_frontends", "Frontends in the maps.", fill.frontends);
    out.gauge("holdfast_map_ports", "Port indices in use.", fill.ports);
    out.gauge("holdfast_map_slots", "Slots in use, in whole blocks.", fill.slots.iter().sum::<u64>());
    out.gauge("holdfast_retries", "Services waiting for another try.", fill.retries);
    out.begin(
        "holdfast_check_differences",
        "gauge",
        "Differences that the last comparison found in the maps.",
    );
    out.sample("holdfast_check_differences", &[], snapshot.checked.map_or(0, |checked| checked.differences));
    let help = "When the maps were last compared with what was written; 0: not by this process.";
    out.gauge("holdfast_check_timestamp_seconds", help, snapshot.checked.map_or(0, |checked| checked.at.0));
}

/// Writes the state of programs and maps in the kernel; for maps in memory, writes nothing.
fn write_kernel(out: &mut Exposition, snapshot: &Snapshot, view: &DatapathView) {
    let Some(status) = view.status() else { return };
    let fills = map_fills(status, &snapshot.fill);
    out.begin("holdfast_map_used", "gauge", "Entries in use.");
    fills.iter().for_each(|fill| out.sample("holdfast_map_used", &[("map", fill.map)], fill.used));
    out.begin("holdfast_map_size", "gauge", "The current capacity of the map; it grows.");
    fills.iter().for_each(|fill| out.sample("holdfast_map_size", &[("map", fill.map)], fill.size));
    out.begin("holdfast_map_limit", "gauge", "Entries that the map may grow to.");
    fills.iter().for_each(|fill| out.sample("holdfast_map_limit", &[("map", fill.map)], fill.limit));
    out.counter("holdfast_map_growths_total", "How often the maps have grown.", status.growths);
    let help = "Hooks whose program or pin another process removed.";
    out.gauge("holdfast_broken_hooks", help, status.broken_hooks.len());
    let help = "Broken hooks without a program of ours: clients there reach no service.";
    out.gauge("holdfast_detached_hooks", help, status.detached_hooks.len());
    let help = "Hooks and devices whose programs serve without their pins: they end with this daemon.";
    out.gauge("holdfast_unpinned", help, view.unpinned_hooks().len());
    let help = "Whether grace periods do not end, so that nothing is reused.";
    out.gauge("holdfast_grace_failed", help, u8::from(status.grace_failure.is_some()));
    let swept = status.stale_sockets.clone().unwrap_or_default();
    let help = "Sockets that were ended because their backend had left.";
    out.counter("holdfast_stale_sockets_ended_total", help, swept.ended);
    let help = "Whether some sockets cannot be checked.";
    out.gauge("holdfast_stale_sockets_failed", help, u8::from(swept.failure.is_some()));
    let help = "Backends that have failed clients within half a minute.";
    let failing = failing_backends::count_failing(status);
    out.labelled_metric("holdfast_failing_backends", "gauge", help, "how", failing);
    let help = "Refusals that were too many to be reported, or that were not read in time; they are in no other number.";
    out.counter("holdfast_refusals_lost_total", help, status.refusals_lost);
}

fn write_refusals(out: &mut Exposition, readings: &Readings) {
    out.begin("holdfast_refusals_total", "counter", "Clients that were not served, by verdict.");
    for (denial, count) in readings.refusals.totals() {
        out.sample("holdfast_refusals_total", &[("verdict", denial_word(denial))], count);
    }
}
