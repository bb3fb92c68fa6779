//! The service under diagnosis, and the queries that several checks share.
//!
//! Invariant: a case only reads. Every list it walks is bounded: untrusted lists are cut before they get here.

mod accessors;

use core::cell::Cell;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use holdfast_core::facts::{Conditions, Endpoint, NodeName, ServiceType, SliceFacts, Timestamp};
use holdfast_core::keys::{Family, ObjectName, Source};
use holdfast_core::list::Row;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceState, ServiceView};
use holdfast_core::time::ClockReading;

use super::evidence::{
    DiagnosisScope, Evidence, ExternalSource, Lease, Lookup, ObservedNode, ObservedService, Pod, Pods, Probe,
};
use super::evidence_source::{EvidenceSource, SourceSet};
use super::explain::may_dial_here;
use super::finding::{Judgement, REASON_KEY, Remedy};
use super::limits::PODS_MAX;

#[derive(Debug)]
pub struct Case<'a> {
    evidence: &'a Evidence,
    /// The service as this node has it. The apiserver's comes before one of another source.
    view: Option<&'a ServiceView>,
    /// The sources that the running check has read.
    looked: Cell<SourceSet>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConditionCounts {
    pub ready: usize,
    pub serving: usize,
    pub terminating: usize,
    pub unready: usize,
}

impl ConditionCounts {
    pub const fn total(self) -> usize {
        self.ready + self.serving + self.terminating + self.unready
    }

    fn add(&mut self, conditions: Conditions) {
        let counter = match conditions {
            Conditions { ready: true, .. } => &mut self.ready,
            Conditions { serving: true, terminating: true, .. } => &mut self.serving,
            Conditions { terminating: true, .. } => &mut self.terminating,
            _ => &mut self.unready,
        };
        *counter += 1;
    }
}

impl<'a> Case<'a> {
    pub fn new(evidence: &'a Evidence) -> Self {
        let views = evidence.views.iter().map(AsRef::as_ref);
        let of_cluster = |it: &&ServiceView| it.key.source == Source::Kubernetes;
        let view = views.clone().find(of_cluster).or_else(|| views.clone().next());
        Self { evidence, view, looked: Cell::default() }
    }

    /// Runs a check, and returns its judgement with the sources it read.
    pub fn run_check(&self, judge: fn(&Self) -> Judgement) -> (Judgement, SourceSet) {
        self.looked.take();
        (judge(self), self.looked.take())
    }

    fn note_source(&self, place: EvidenceSource) {
        self.looked.set(self.looked.get().with_source(place));
    }

    pub const fn name(&self) -> &'a ObjectName {
        &self.evidence.name
    }

    pub const fn scope(&self) -> &'a DiagnosisScope {
        &self.evidence.scope
    }

    pub fn skipped_sources(&self) -> &'a [ExternalSource] {
        &self.evidence.skipped_sources
    }

    pub const fn taken_at(&self) -> Timestamp {
        self.evidence.taken
    }

    /// Whether a process or pod of this node may have this address.
    pub fn may_dial_here(&self, client: IpAddr) -> bool {
        may_dial_here(&self.evidence.snapshot, client)
    }

    /// When the evidence was gathered, on both clocks. The snapshot may be older, because nothing has changed since.
    pub fn now(&self) -> ClockReading {
        let then = self.evidence.snapshot.clock();
        let since = u64::try_from(self.age(then.wall)).unwrap_or_default();
        ClockReading { wall: self.taken_at(), mono: then.mono.saturating_add(Duration::from_secs(since)) }
    }

    pub fn api_service(&self) -> Option<&'a ObservedService> {
        self.service_lookup().answer()?.as_ref()
    }

    /// The service's pod selector. `None`: the apiserver did not answer, or has no such Service.
    pub fn selector(&self) -> Option<&'a BTreeMap<String, String>> {
        self.api_service().map(|seen| &seen.selector)
    }

    pub fn namespace(&self) -> &'a str {
        self.name().namespace()
    }

    /// Seconds since a time. Clocks of other hosts may be ahead, so a future time counts as now.
    pub fn age(&self, then: Timestamp) -> i64 {
        self.taken_at().0.saturating_sub(then.0).max(0)
    }

    pub fn has_type(&self, kind: ServiceType) -> bool {
        self.facts().is_some_and(|facts| facts.kind == kind)
            || self.api_service().is_some_and(|seen| seen.kind == kind.as_str())
    }

    pub fn is_load_balancer(&self) -> bool {
        self.has_type(ServiceType::LoadBalancer)
    }

    pub fn is_alias(&self) -> bool {
        self.has_type(ServiceType::ExternalName)
    }

    /// Whether a label leaves the Service to another proxy. Holdfast does not watch such a Service.
    pub fn has_other_proxy(&self) -> bool {
        self.api_service().is_some_and(|seen| seen.proxy_name.is_some())
    }

    /// Whether this node should serve the service.
    pub fn is_served_here(&self) -> bool {
        let is_anothers = matches!(
            self.state(),
            Some(ServiceState::OtherProxy | ServiceState::Headless | ServiceState::ExternalName)
        );
        !is_anothers && !self.has_other_proxy()
    }

    pub fn frontends_with_type(
        &self,
        kind: FrontendType,
    ) -> impl Iterator<Item = &'a FrontendView> + use<'a> {
        self.frontends().filter(move |it| it.kind == kind)
    }

    /// The slices that count. A service that this node serves ignores slices that are hidden from proxies.
    pub fn slices(&self) -> impl Iterator<Item = &'a SliceFacts> + use<'a> {
        let hides = self.is_served_here();
        self.all_slices().filter(move |slice| !(hides && slice.headless))
    }

    /// The endpoints, each address once: its first ready endpoint, else its first.
    pub fn endpoints(&self) -> BTreeMap<IpAddr, Endpoint<'a>> {
        let mut all: BTreeMap<IpAddr, Endpoint<'a>> = BTreeMap::new();
        for endpoint in self.slices().flat_map(|slice| slice.endpoints.iter()) {
            let known = all.entry(endpoint.address).or_insert(endpoint);
            if endpoint.conditions.ready && !known.conditions.ready {
                *known = endpoint;
            }
        }
        all
    }

    /// Number of endpoints in each state. An address with the same ports counts once: its first ready endpoint, else
    /// its first. With other ports it is another endpoint.
    pub fn counts(&self) -> ConditionCounts {
        // A slice may have thousands of ports, so a number identifies each set of ports.
        let mut port_sets: BTreeMap<Vec<(&str, u16)>, usize> = BTreeMap::new();
        let mut all: BTreeMap<(IpAddr, usize), Conditions> = BTreeMap::new();
        for slice in self.slices() {
            let mut ports: Vec<(&str, u16)> =
                slice.ports.iter().map(|port| (&*port.name, port.port.get())).collect();
            ports.sort_unstable();
            let number = port_sets.len();
            let ports = *port_sets.entry(ports).or_insert(number);
            for (address, conditions) in slice.endpoints.iter_brief() {
                let known = all.entry((address, ports)).or_insert(conditions);
                if conditions.ready && !known.ready {
                    *known = conditions;
                }
            }
        }
        let mut counts = ConditionCounts::default();
        all.into_values().for_each(|conditions| counts.add(conditions));
        counts
    }

    /// Backends that may get new clients, at most [`PODS_MAX`].
    pub fn backends(&self) -> BTreeSet<SocketAddr> {
        let rows = self.ports().flat_map(|port| port.rows.iter());
        rows.filter(Row::is_chosen).map(|row| row.backend()).take(PODS_MAX).collect()
    }

    /// Whether an address is a backend. One that drains and still answers counts, because its clients keep it.
    pub fn is_backend(&self, at: SocketAddr) -> bool {
        self.ports().any(|port| port.rows.find(at).is_some_and(|row| row.keeps_clients()))
    }

    pub fn is_local(&self, node: Option<NodeName<'_>>) -> bool {
        let own = &self.table().node.name;
        !own.is_empty() && node.is_some_and(|it| it == **own)
    }

    pub fn pods(&self) -> Option<&'a Pods> {
        self.pods_lookup().answer()
    }

    pub fn has_more_pods(&self) -> bool {
        self.pods().is_some_and(|pods| pods.more)
    }

    /// Pods that may get traffic: neither ended nor in deletion.
    pub fn live_pods(&self) -> Vec<&'a Pod> {
        let pods = self.pods().into_iter().flat_map(|pods| &pods.list);
        pods.filter(|pod| !pod.has_ended() && pod.deletion.is_none()).collect()
    }

    pub fn lease(&self, name: &str) -> Option<&'a Lease> {
        self.leases_lookup().answer()?.iter().find(|lease| lease.name == name)
    }

    pub fn node(&self, name: &str) -> Option<&'a ObservedNode> {
        self.nodes_lookup().answer()?.iter().find(|node| node.name == name)
    }

    pub fn probes(&self) -> impl Iterator<Item = &'a Probe> + use<'a> {
        self.probes_lookup().answer().into_iter().flatten()
    }

    pub fn families(&self) -> BTreeSet<Family> {
        self.facts()
            .into_iter()
            .flat_map(|facts| &facts.cluster_ips)
            .map(|ip| Family::from_address(*ip))
            .collect()
    }
}

impl Pod {
    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Failed" | "Succeeded")
    }

    pub fn is_ready(&self) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.is_true)
    }
}

/// Judges a source without an answer: switched off is no fault, everything else leaves the question open.
pub(super) fn judge_unavailable<T>(asked: &Lookup<T>, what: &str) -> Judgement {
    match asked {
        Lookup::Skipped(why) => Judgement::not_applicable(format!("{what}: {why}")),
        Lookup::Answered(_) => Judgement::not_applicable(format!("{what}: there is nothing to look at")),
        Lookup::Forbidden(_) | Lookup::Failed(_) => {
            let why = asked.unavailable_reason().unwrap_or_default();
            let right = match asked {
                Lookup::Forbidden(right) => Some(right),
                Lookup::Skipped(_) | Lookup::Failed(_) | Lookup::Answered(_) => None,
            };
            let judgement = Judgement::unknown(format!("{what}: {why}")).with(REASON_KEY, why);
            match right {
                None => judgement,
                Some(right) => judgement
                    .with("group", right.group)
                    .with("resource", right.resource)
                    .with("verbs", right.verbs),
            }
        }
    }
}

/// A remedy that grants the node its missing right. It precedes advice that rests on no evidence.
pub(super) fn missing_right_remedy<T>(asked: &Lookup<T>) -> Option<Remedy> {
    let Lookup::Forbidden(right) = asked else { return None };
    Some(Remedy::safe(format!(
        "Let this node {right}, to be told why: bind the role holdfast-diagnose of contrib/kubernetes/rbac.yaml."
    )))
}
