//! The metrics, as Prometheus reads them.
//!
//! Invariant: the number of series does not depend on the cluster. Labels have the closed sets of values of the rules,
//! and every series is there from the first scrape on, so that a rate never begins with its first error. Scrapes follow
//! one another, because the API has one thread. No metrics library is needed: all numbers are read off a snapshot.

mod apiserver;
mod daemon;
mod datapath;
mod holds;
mod records;
mod table;

use std::fmt::{Display, Write as _};

use crate::readings::Readings;
use holdfast_core::snapshot::Snapshot;

/// The exposition format, version 0.0.4.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

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
    let mut out = Exposition(String::new());
    daemon::write(&mut out, readings, snapshot, ready);
    table::write(&mut out, snapshot);
    holds::write(&mut out, snapshot, &readings.probes);
    datapath::write(&mut out, readings, snapshot);
    if let Some(view) = readings.apiserver() {
        apiserver::write(&mut out, &view, &readings.watches.now());
    }
    if let Some(announced) = &readings.announced {
        records::announced(&mut out, announced);
    }
    records::write(&mut out, readings, snapshot);
    daemon::usage(&mut out, &readings.about);
    out.0
}

fn count<T: PartialEq, const N: usize>(counts: &mut [u64; N], all: &[T; N], found: &T) {
    if let Some((_, count)) = all.iter().zip(counts).find(|(known, _)| *known == found) {
        *count += 1;
    }
}
