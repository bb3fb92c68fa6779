//! Services, frontends, endpoints, and one number to compare nodes by.
//!
//! Invariant: as for all metrics, see the parent. No service has a series of its own here; `/frontends` lists all.

use holdfast_core::digest::{config_digest, digest};
use holdfast_core::keys::Source;
use holdfast_core::lifecycle::BalancerState;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::totals::{BackendCounts, StatusCounts, Totals};
use holdfast_diagnose::explain::{EndpointState, LoadBalancer, WriteStatus};

use super::count_value;
use holdfast_agent::exposition::Exposition;

/// Writes how many services, frontends and endpoints are in which state.
pub(super) fn write(out: &mut Exposition, snapshot: &Snapshot) {
    let totals = snapshot.services.totals();
    write_totals(out, totals);
    write_balancers(out, snapshot);
    write_drains(out, snapshot, totals.backends().drained);
    if snapshot.sources.contains_key(&Source::Kubernetes) {
        let help = "A digest of the apiserver's objects; nodes with the same objects have the same digest.";
        out.gauge("holdfast_table_digest", help, digest(&snapshot.services));
    }
    if snapshot.sources.contains_key(&Source::Config) {
        let help =
            "A digest of the configuration's services; nodes with the same services have the same digest.";
        out.gauge("holdfast_configured_digest", help, config_digest(&snapshot.services));
    }
}

/// Writes the drains of operators, and how many drained backends clients still get.
fn write_drains(out: &mut Exposition, snapshot: &Snapshot, counts: [u64; 2]) {
    out.gauge("holdfast_drains", "Drains that operators of this node have in force.", snapshot.drains.len());
    let help =
        "Drained endpoints, by whether clients still get them because no other endpoint takes clients.";
    out.begin("holdfast_drained_backends", "gauge", help);
    for (used, count) in ["no", "yes"].into_iter().zip(counts) {
        out.sample("holdfast_drained_backends", &[("used", used)], count);
    }
}

fn write_totals(out: &mut Exposition, totals: &Totals) {
    out.labelled_metric("holdfast_services", "gauge", "Services by state.", "state", totals.states());
    out.begin("holdfast_frontends", "gauge", "Frontends by type and by what a new connection gets.");
    for (kind, verdict, count) in totals.frontends() {
        let labels = [("type", kind.as_str()), ("verdict", verdict.as_str())];
        out.sample("holdfast_frontends", &labels, count);
    }
    let help = "Frontends whose verdict is not serving, by its reason.";
    out.labelled_metric("holdfast_frontends_not_serving", "gauge", help, "reason", totals.reasons());
    let help = "Frontends by whether the maps are as intended.";
    let StatusCounts { pending, done, error } = totals.statuses();
    let of_statuses = WriteStatus::ALL.map(|status| match status {
        WriteStatus::Pending => (status, pending),
        WriteStatus::Done => (status, done),
        WriteStatus::Error => (status, error),
    });
    out.labelled_metric("holdfast_frontends_programmed", "gauge", help, "status", of_statuses);
    let help = "Endpoints of all ports, by whether they get traffic.";
    let BackendCounts { active, draining, held, unused, .. } = totals.backends();
    let of_states = EndpointState::ALL.map(|state| match state {
        EndpointState::Active => (state, active),
        EndpointState::Draining => (state, draining),
        EndpointState::Held => (state, held),
        EndpointState::Unused => (state, unused),
    });
    out.labelled_metric("holdfast_backends", "gauge", help, "state", of_states);
}

fn write_balancers(out: &mut Exposition, snapshot: &Snapshot) {
    let mut counts = [0; BalancerState::ALL.len()];
    let now = snapshot.clock();
    for balancer in snapshot.services.with_balancer().filter_map(|view| LoadBalancer::from_view(view, now)) {
        count_value(&mut counts, &BalancerState::ALL, &balancer.state.0);
    }
    let help = "Load balancers of Services, by the state in the Services.";
    let of_balancers = BalancerState::ALL.into_iter().zip(counts);
    out.labelled_metric("holdfast_load_balancers", "gauge", help, "state", of_balancers);
}
