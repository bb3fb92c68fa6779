//! What is served: services, frontends, endpoints, and one number to compare nodes by.
//!
//! Invariant: as for all metrics, see the parent. No service has a series of its own here; `/frontends` lists all.

use holdfast_core::digest::digest;
use holdfast_core::keys::Source;
use holdfast_core::lifecycle::State as BalancerState;
use holdfast_core::list::Row;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, PortView, Reason, ServiceState, ServiceView, Snapshot, Verdict};
use holdfast_core::time::Now;
use holdfast_judgement::why::{EndpointState, LoadBalancer, WriteStatus, state, status};

use super::count;
use crate::exposition::Exposition;

const STATES: [ServiceState; 6] = ServiceState::ALL;
const TYPES: [FrontendType; 5] = FrontendType::ALL;
const VERDICTS: [Verdict; 9] = Verdict::ALL;
const BACKEND_STATES: [EndpointState; 4] = EndpointState::ALL;
const STATUSES: [WriteStatus; 3] = WriteStatus::ALL;
const BALANCER_STATES: [BalancerState; 12] = BalancerState::ALL;

#[derive(Debug, Default)]
struct Counts {
    services: [u64; STATES.len()],
    frontends: [[u64; VERDICTS.len()]; TYPES.len()],
    reasons: [u64; Reason::ALL.len()],
    statuses: [u64; STATUSES.len()],
    backends: [u64; BACKEND_STATES.len()],
    /// Those that are drained: in no list, and in one.
    drained: [u64; 2],
    balancers: [u64; BALANCER_STATES.len()],
}

impl Counts {
    fn of(snapshot: &Snapshot) -> Self {
        let mut counts = Self::default();
        let now = snapshot.clock();
        snapshot.services.iter().for_each(|view| counts.add(view, now));
        counts
    }

    fn add(&mut self, view: &ServiceView, now: Now) {
        count(&mut self.services, &STATES, &view.state);
        if let Some(balancer) = LoadBalancer::of(view, now) {
            count(&mut self.balancers, &BALANCER_STATES, &balancer.state.0);
        }
        view.frontends.iter().for_each(|frontend| self.add_frontend(frontend));
        for port in &view.ports {
            port.rows.all().for_each(|row| self.add_backend(port, &row));
        }
    }

    fn add_backend(&mut self, port: &PortView, row: &Row) {
        count(&mut self.backends, &BACKEND_STATES, &state(row));
        if port.rows.weights().is_drained(row.backend()) {
            count(&mut self.drained, &[false, true], &row.is_chosen());
        }
    }

    fn add_frontend(&mut self, frontend: &FrontendView) {
        if let Some((_, verdicts)) =
            TYPES.iter().zip(&mut self.frontends).find(|(kind, _)| **kind == frontend.kind)
        {
            count(verdicts, &VERDICTS, &frontend.verdict);
        }
        count(&mut self.statuses, &STATUSES, &status(&frontend.status).0);
        if let Some(reason) = &frontend.reason {
            count(&mut self.reasons, &Reason::ALL, reason);
        }
    }
}

/// Writes how many services, frontends and endpoints are in which state.
pub(super) fn write(out: &mut Exposition, snapshot: &Snapshot) {
    let counts = Counts::of(snapshot);
    tables(out, &counts);
    drained(out, snapshot, counts.drained);
    if snapshot.sources.contains_key(&Source::Kubernetes) {
        let help =
            "What the apiserver's objects ask for, as a number; nodes that know the same have the same.";
        out.gauge("holdfast_table_digest", help, digest(&snapshot.services));
    }
}

/// What operators have drained, and whether clients get some of it all the same.
fn drained(out: &mut Exposition, snapshot: &Snapshot, counts: [u64; 2]) {
    out.gauge("holdfast_drains", "Drains that operators of this node have in force.", snapshot.drains.len());
    let help = "Endpoints that are drained, by whether clients get them because no other takes clients.";
    out.begin("holdfast_drained_backends", "gauge", help);
    for (used, count) in ["no", "yes"].into_iter().zip(counts) {
        out.sample("holdfast_drained_backends", &[("used", used)], count);
    }
}

fn tables(out: &mut Exposition, counts: &Counts) {
    let of_states = STATES.into_iter().zip(counts.services);
    out.by("holdfast_services", "gauge", "Services by state.", "state", of_states);
    out.begin("holdfast_frontends", "gauge", "Frontends by type and by what a new connection gets.");
    for (kind, verdicts) in TYPES.iter().zip(counts.frontends) {
        for (verdict, count) in VERDICTS.iter().zip(verdicts) {
            let labels = [("type", kind.as_str()), ("verdict", verdict.as_str())];
            out.sample("holdfast_frontends", &labels, count);
        }
    }
    let help = "Frontends whose verdict is not serving, by its reason.";
    let of_reasons = Reason::ALL.into_iter().zip(counts.reasons);
    out.by("holdfast_frontends_not_serving", "gauge", help, "reason", of_reasons);
    let help = "Frontends by whether the maps hold what they should.";
    let of_statuses = STATUSES.into_iter().zip(counts.statuses);
    out.by("holdfast_frontends_programmed", "gauge", help, "status", of_statuses);
    let help = "Endpoints of all ports, by whether they get traffic.";
    out.by("holdfast_backends", "gauge", help, "state", BACKEND_STATES.into_iter().zip(counts.backends));
    let help = "Load balancers of Services, by how far they have come as far as the Services say.";
    let of_balancers = BALANCER_STATES.into_iter().zip(counts.balancers);
    out.by("holdfast_load_balancers", "gauge", help, "state", of_balancers);
}
