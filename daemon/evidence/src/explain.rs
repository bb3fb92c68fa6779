//! What an explanation rests on beside tables and maps, read from the running daemon once for each answer.
//!
//! Invariant: no packet and no request is sent for an explanation, and nothing is judged here. The table of flows is
//! read only where a service of the answer has a port by UDP.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_datapath::FlowFilter;
use holdfast_diagnose::explain::{DialTarget, ExplainEvidence, ReadBack, ResolvedQuery, is_about};
use holdfast_status::record::Record;

use holdfast_agent::readings::{Readings, counters};
use holdfast_agent::recorder::{RecordQuery, latest_records};

/// The most records that are shown of a service or an address.
const RECORDS_MAX: usize = 5;

/// The most flows that are looked at.
const FLOWS_MAX: usize = 1_000;

/// What the answer to this question needs to know.
pub fn gather_evidence(readings: &Readings, walk: &ResolvedQuery, read: &ReadBack) -> ExplainEvidence {
    let entries = read.iter().filter_map(|(_, entry)| entry.as_ref().ok()?.as_ref());
    ExplainEvidence {
        apiserver: readings.apiserver(),
        refusals: readings.refusals.snapshot().latest,
        refusing: if walk.has_udp_port() { list_refusing_backends(readings) } else { BTreeSet::new() },
        checks: walk
            .service_names()
            .into_iter()
            .map(|name| (name.clone(), readings.checks.service_checks(name)))
            .collect(),
        names: walk
            .service_names()
            .into_iter()
            .filter_map(|name| Some((name.clone(), readings.names.service_row(name)?)))
            .collect(),
        announced: readings.routes.borrow().addresses.clone(),
        histories: walk
            .service_names()
            .into_iter()
            .map(|name| (name.clone(), readings.history.service_records(name, RECORDS_MAX)))
            .collect(),
        past: walk.unknown_target().map(|dialled| address_records(readings, dialled)).unwrap_or_default(),
        datapath: readings.datapath(),
        counters: counters(readings.port_counts().as_ref(), entries.map(|entry| entry.port.index)),
    }
}

/// The backends that refuse a client now, of any service, as far as [`FLOWS_MAX`] flows show them.
fn list_refusing_backends(readings: &Readings) -> BTreeSet<SocketAddr> {
    let Some(table) = readings.flow_table() else { return BTreeSet::new() };
    let refused = FlowFilter { refused: true, ..FlowFilter::default() };
    table.find_flows(&refused, FLOWS_MAX).matches.iter().map(|flow| flow.backend).collect()
}

fn address_records(readings: &Readings, dialled: &DialTarget) -> Vec<Record> {
    let text = dialled.address.to_string();
    let lines = readings.history.select(&RecordQuery::default());
    // Reading a record costs far more than looking for the text in it, and almost none has it.
    let likely = lines.iter().rev().filter(|line| line.json.contains(&text));
    latest_records(likely.filter_map(|line| line.record()).filter(|it| is_about(it, dialled)), RECORDS_MAX)
}
