//! The metrics, as Prometheus reads them.
//!
//! Invariant: the number of series does not depend on the cluster, except for problems of single services, which have a
//! bound. Labels have closed sets of values, and every other series exists from the first scrape on, so that a rate
//! never begins with its first error. Scrapes at one listener run one after another, because it has one thread. No
//! metrics library is needed: every number is read at the moment of the scrape.

mod apiserver;
mod conditions;
mod daemon;
mod datapath;
mod dns;
mod flows;
mod holds;
mod records;
mod table;

use holdfast_agent::exposition::{Exposition, process};
use holdfast_agent::readings::Readings;
use holdfast_core::snapshot::Snapshot;
use holdfast_evidence::event_watcher::EventCounters;

/// Renders all metrics from one snapshot at this moment.
pub(super) fn render_metrics(
    (readings, overheard): (&Readings, &EventCounters),
    snapshot: &Snapshot,
    ready: bool,
) -> String {
    let mut out = Exposition::default();
    daemon::write(&mut out, readings, snapshot, ready);
    table::write(&mut out, snapshot);
    holds::write(&mut out, snapshot, &readings.probes);
    holds::write_checks(&mut out, &readings.checks);
    dns::write(&mut out, &readings.names);
    conditions::write(&mut out, snapshot, (&readings.closed_ports, overheard));
    datapath::write(&mut out, readings, snapshot);
    flows::write(&mut out, &readings.datapath(), readings.flow_table().as_ref());
    if let Some(view) = readings.apiserver() {
        apiserver::write(&mut out, &view, &readings.watches.current());
    }
    if let Some(announced) = &readings.announced {
        records::write_announced_events(&mut out, announced);
    }
    overheard.write_metrics(&mut out);
    records::write(&mut out, readings, snapshot);
    process::write(&mut out, readings.about.started);
    out.into_text()
}

fn count_value<T: PartialEq, const N: usize>(counts: &mut [u64; N], all: &[T; N], found: &T) {
    if let Some((_, count)) = all.iter().zip(counts).find(|(known, _)| *known == found) {
        *count += 1;
    }
}
