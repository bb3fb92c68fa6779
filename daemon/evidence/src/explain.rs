//! The evidence of an explanation besides tables and maps, read from the running daemon once for each answer.
//!
//! Invariant: no packet and no request is sent, and nothing is judged here.

use holdfast_diagnose::evidence::Listener;
use holdfast_diagnose::explain::{
    ClosedHealthPort, DialTarget, ExplainEvidence, NewsObstacles, OtherProcess, ReadBack, ResolvedQuery,
    find_failing_backends, is_about,
};
use holdfast_diagnose::node_ports::describe_node_port_listener;
use holdfast_status::record::Record;
use holdfast_status::views::node_ports::NodePortListener;
use holdfast_status::views::refusals::find_frontends;

use holdfast_agent::readings::{ClosedPort, Readings, counters};
use holdfast_agent::recorder::{RecordQuery, latest_records};

/// The most records of a service or an address that are shown.
const RECORDS_MAX: usize = 5;

/// Gathers the evidence for this query.
pub fn gather_evidence(readings: &Readings, query: &ResolvedQuery, read: &ReadBack) -> ExplainEvidence {
    let entries = read.iter().filter_map(|(_, entry)| entry.as_ref().ok()?.as_ref());
    ExplainEvidence {
        apiserver: readings.apiserver(),
        obstacles: gather_obstacles(readings),
        closed_ports: list_closed_ports(readings),
        node_port_listeners: list_other_processes(readings),
        do_checks_fail: readings.checks.has_unusable(),
        refusals: find_frontends(query.snapshot(), readings.refusals.snapshot().latest),
        failing: find_failing_backends(query.snapshot(), &readings.datapath()),
        taken_at: readings.now(),
        checks: query
            .service_names()
            .into_iter()
            .map(|name| (name.clone(), readings.checks.service_checks(name)))
            .collect(),
        names: query
            .service_names()
            .into_iter()
            .filter_map(|name| Some((name.clone(), readings.names.service_row(name)?)))
            .collect(),
        announced: readings.routes.borrow().addresses.clone(),
        histories: query
            .service_names()
            .into_iter()
            .map(|name| (name.clone(), readings.history.service_records(name, RECORDS_MAX)))
            .collect(),
        past: query.unknown_target().map(|dialled| address_records(readings, dialled)).unwrap_or_default(),
        datapath: readings.datapath(),
        counters: counters(readings.port_counts().as_ref(), entries.map(|entry| entry.port.index)),
    }
}

/// What may keep news of a service from this node.
pub fn gather_obstacles(readings: &Readings) -> NewsObstacles {
    let file = || readings.files.config.display().to_string();
    let refused = readings.refused_reload.borrow().as_ref().map(|it| (it.why.clone(), file()));
    NewsObstacles::new(refused, readings.apiserver().as_deref())
}

/// The processes at node ports, as `status` names them.
fn list_other_processes(readings: &Readings) -> Vec<OtherProcess> {
    let snapshot = readings.snapshot();
    let one = |found: &NodePortListener| {
        let holder = Listener::from(found);
        OtherProcess {
            meaning: describe_node_port_listener(&snapshot.node, &found.service, &holder),
            name: holder.describe_process(),
            service: found.service.clone(),
            listener: found.listener,
        }
    };
    readings.node_port_listeners.borrow().iter().map(one).collect()
}

/// The health check ports of Services that are not open; the named ones.
pub(crate) fn list_closed_ports(readings: &Readings) -> Vec<ClosedHealthPort> {
    let (closed, _) = readings.closed_ports.named_ports();
    let row = |it: ClosedPort| {
        Some(ClosedHealthPort { service: it.service?, address: it.address, reason: it.reason })
    };
    closed.into_iter().filter_map(row).collect()
}

fn address_records(readings: &Readings, dialled: &DialTarget) -> Vec<Record> {
    let text = dialled.address.to_string();
    let lines = readings.history.select(&RecordQuery::default());
    // Parsing a record costs far more than a search for the text, and almost no record has it.
    let likely = lines.iter().rev().filter(|line| line.json.contains(&text));
    latest_records(likely.filter_map(|line| line.record()).filter(|it| is_about(it, dialled)), RECORDS_MAX)
}
