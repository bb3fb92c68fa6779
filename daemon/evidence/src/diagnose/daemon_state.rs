//! This daemon's own state, for a diagnosis.
//!
//! Invariant: no other process is queried.

use std::sync::Arc;
use std::time::Instant;

use holdfast_core::keys::Source;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::KnownServices;
use holdfast_diagnose::evidence::{DaemonState, WatchStatus};
use holdfast_status::views::checks::CheckStatuses;

use crate::explain::{gather_obstacles, list_closed_ports};
use holdfast_agent::readings::{Readings, counters};
use holdfast_kubernetes::source::{State, Watch};

pub fn gather_daemon_state(readings: &Readings, known: &KnownServices) -> DaemonState {
    let now = Instant::now();
    let watch = |it: Watch| WatchStatus {
        zone_problem: it.zone_problem(&known.snapshot().node.name),
        what: it.what.as_str().to_owned(),
        state: it.state.as_str().to_owned(),
        silent: it.last_received.map(|received| now.saturating_duration_since(received)),
        // A watch that is up has overcome its last error.
        error: it.last_error.filter(|_| it.state != State::Watching).map(|error| error.text.to_string()),
    };
    let ports = known.views().iter().flat_map(|view| view.ports.iter());
    DaemonState {
        unready: readings.unready_reason(known.snapshot()),
        stalled: readings.liveness.stalled_for(),
        watches: readings.watches.current().into_iter().map(watch).collect(),
        apiserver: readings.apiserver(),
        datapath: readings.datapath(),
        counters: counters(readings.port_counts().as_ref(), ports.filter_map(|port| port.index)),
        proxies: Arc::clone(&readings.proxies.borrow()),
        filters: Arc::clone(&readings.filters.borrow()),
        announced: readings.routes.borrow().addresses.clone(),
        denied: readings.refusals.snapshot().latest,
        checks: health_checks(readings, known),
        obstacles: gather_obstacles(readings),
        closed_ports: list_closed_ports(readings),
        node_port_listeners: readings.node_port_listeners.borrow().to_vec(),
    }
}

fn health_checks(readings: &Readings, known: &KnownServices) -> CheckStatuses {
    let is_config = |view: &&Arc<ServiceView>| view.key.source == Source::Config;
    let views: Vec<&Arc<ServiceView>> = known.views().iter().filter(is_config).collect();
    if views.is_empty() {
        return CheckStatuses::default();
    }
    let mut checks = readings.checks.service_checks(known.name());
    let ports = || views.iter().flat_map(|view| view.ports.iter());
    checks.retain(|backend, _| ports().any(|port| port.rows.find(*backend).is_some()));
    checks
}
