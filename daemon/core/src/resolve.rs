//! Resolves one service, its slices, the node and the settings into what is desired, as a pure function.
//!
//! Invariant: no other service goes in, so none can change the result, but for how many frontends the service may have
//! where all ask for more than there may be. The chosen endpoints are exactly those that kube-proxy chooses. The claims
//! decide which of two services owns an address that both claim.

mod denied_address;
pub(crate) mod endpoint_rows;
pub mod endpoint_selection;
pub(crate) mod frontends;
pub(crate) mod weighting;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use crate::affinity::Prefixes;
use crate::drains::Drains;
use crate::facts::{NodeFacts, ServiceFacts, Settings, SliceFacts, TrafficPolicy};
use crate::keys::{Family, FrontendKey, PortKey, Protocol, Source, Transport};
use crate::limits;
use crate::list::{Row, Scope};
use crate::op::FrontendType;
use crate::snapshot::ServiceState;
use crate::source_ranges::{self, SourceRanges};
use crate::weights::BackendWeights;
use crate::work;

/// What one service should have in the maps.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredService {
    /// Why the service has frontends, or none.
    pub state: ServiceState,
    /// Its ports, sorted by key.
    pub ports: Vec<DesiredPort>,
    /// Its frontends, in the order of the table.
    pub frontends: Vec<DesiredFrontend>,
    /// The cluster IPs and node ports that are left out, so that no other service takes what is behind them.
    pub reserved: Vec<DesiredFrontend>,
    /// What is left out of it.
    pub cut: Truncation,
}

impl DesiredService {
    fn empty(state: ServiceState) -> Self {
        let (ports, frontends, covering) = (Vec::new(), Vec::new(), Vec::new());
        Self { state, ports, frontends, reserved: covering, cut: Truncation::default() }
    }
}

/// What is left out of what a service asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truncation {
    /// How many ports have only some of their endpoints, because there are too many.
    pub ports: usize,
    /// How many frontends are beyond the service's part.
    pub frontends: usize,
    /// How many of those are, because external IPs of all services together have their half.
    pub external_ips: usize,
    /// How many rows are beyond it, which is found out when the ports take them.
    pub rows: usize,
}

/// The part of all frontends that a service may have.
#[derive(Clone, Copy)]
pub struct FrontendQuota<'a> {
    /// How many; all that it has already stay, however many those are.
    pub most: usize,
    /// How many of them may be at external IPs.
    pub external_ips: usize,
    /// Which of its frontends it has already: these come first.
    pub is_present: &'a dyn Fn(&DesiredFrontend) -> bool,
}

impl core::fmt::Debug for FrontendQuota<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Part")
            .field("most", &self.most)
            .field("chosen", &self.external_ips)
            .finish_non_exhaustive()
    }
}

impl FrontendQuota<'_> {
    /// As many as one service may have.
    pub const WHOLE: Self =
        Self { most: limits::FRONTENDS_PER_SERVICE_MAX, external_ips: usize::MAX, is_present: &|_| false };
}

/// One port in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPort {
    pub key: PortKey,
    /// All endpoints, merged, with the lists marked.
    pub rows: Vec<Row>,
    /// How many new clients its backends get beside each other.
    pub weights: BackendWeights,
    /// Which lists its frontends use, and what happens when the lists are empty.
    pub policy: PortPolicy,
    /// The clients that may use the port's load-balancer addresses, if it has any; `None`: all clients.
    pub sources: Option<SourceRanges>,
}

/// How a port's settings use its lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortPolicy {
    /// Some frontend uses the cluster list.
    pub cluster_used: bool,
    /// Some frontend uses the local list.
    pub local_used: bool,
    /// A usable backend exists, here or elsewhere.
    pub has_usable_backend: bool,
    /// Cluster IPs use the local list.
    pub internal_local: bool,
    /// Some frontend is for traffic from outside.
    pub has_external_frontend: bool,
    /// Some frontend is an address of a load balancer.
    pub has_lb_frontend: bool,
    /// Traffic from outside uses the local list.
    pub external_local: bool,
    /// Session affinity in seconds; 0: none.
    pub affinity_timeout: u32,
    /// How many last bits of a client's address do not count for it.
    pub ignored_bits: u8,
    /// Clients from outside have their place in the cluster list computed.
    pub maglev: bool,
    /// The maps keep every serving backend as a member, in a list or not.
    pub keeps_members: bool,
    /// Not each backend of the cluster list is known to be on a node of the cluster, and the maps are to say that.
    pub has_off_cluster_backend: bool,
}

/// One address and port that clients dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredFrontend {
    /// Unspecified for a NodePort.
    pub address: IpAddr,
    /// The port that clients dial.
    pub port: NonZeroU16,
    /// The protocol as the service says it.
    pub protocol: Protocol,
    /// The kind of address.
    pub kind: FrontendType,
    /// Empty if unnamed.
    pub port_name: Arc<str>,
    /// No tenant may have the address, so it is shown and never programmed.
    pub denied: bool,
    /// The transport that is programmed; `None`: the frontend is only shown.
    pub transport: Option<Transport>,
    /// The position of its port in [`DesiredService::desired_ports`]; `None` if nothing can be programmed.
    pub position: Option<usize>,
    /// Which list this node's own connections get.
    pub scope: Scope,
    /// Whether traffic from outside gets the local list.
    pub external_local: bool,
    /// There is no backend, and the frontend is left to the real load balancer.
    pub passes: bool,
}

impl DesiredFrontend {
    /// Its key in the maps, if it can have one.
    pub fn key(&self) -> Option<FrontendKey> {
        Some(FrontendKey { address: self.address, port: self.port, transport: self.transport? })
    }
}

/// What one service should have in the maps.
pub fn resolve(
    service: Option<&ServiceFacts>,
    slices: &[Arc<SliceFacts>],
    (node, settings, drains): (&NodeFacts, &Settings, &Drains),
    part: FrontendQuota<'_>,
) -> DesiredService {
    let state = frontends::service_state(service, settings);
    let Some(service) = service.filter(|_| state == ServiceState::Served) else {
        return DesiredService::empty(state);
    };
    let mut frontends = frontends::desired_frontends(service, settings);
    let (beyond, chosen) = frontends::apply_quota(&mut frontends, part);
    let left_out = beyond.len();
    let covering = frontends::reserved_frontends(beyond);
    let mut ports = desired_ports(service, &frontends, settings);
    set_sources(&mut ports, service, node);
    let cut = Truncation {
        ports: endpoint_rows::fill_rows(&mut ports, slices, node),
        frontends: left_out,
        external_ips: chosen,
        rows: 0,
    };
    for port in &mut ports {
        work::count_work(port.rows.len());
        port.policy.has_usable_backend =
            endpoint_selection::select_endpoints(&mut port.rows, slices, port.policy, node);
        let asked = service.weights.as_deref().map(|asked| &asked.weights);
        let drained =
            weighting::drained_backends(port.rows.iter().map(Row::backend), &service.key.name, drains);
        port.weights = weighting::assign_weights(&port.rows, slices, asked).with_drained(drained);
        weighting::drop_weightless(&mut port.rows, &port.weights);
        port.policy.has_off_cluster_backend =
            settings.has_dsr_from && has_off_cluster_backend(port, service, slices);
    }
    for frontend in &mut frontends {
        frontend.position = port_position(frontend, &ports);
    }
    let state = if frontends.is_empty() { ServiceState::NoAddress } else { state };
    DesiredService { state, ports, frontends, reserved: covering, cut }
}

/// Whether a backend of the cluster list may be on no node of the cluster. An empty list, which may be held, says
/// nothing of that; nor does a node's name in slices of other clusters, and a block of the configuration names none.
fn has_off_cluster_backend(port: &DesiredPort, service: &ServiceFacts, slices: &[Arc<SliceFacts>]) -> bool {
    let mut listed = port.rows.iter().filter(|row| row.is_in(Scope::Cluster)).peekable();
    let knows_nodes = matches!(service.key.source, Source::Manifests | Source::Kubernetes);
    port.policy.cluster_used
        && (!knows_nodes
            || listed.peek().is_none()
            || listed.any(|row| !endpoint_selection::has_node(row, slices)))
}

fn port_key(frontend: &DesiredFrontend) -> Option<PortKey> {
    Some(PortKey {
        name: Arc::clone(&frontend.port_name),
        transport: frontend.transport?,
        family: Family::from_address(frontend.address),
    })
}

fn port_position(frontend: &DesiredFrontend, ports: &[DesiredPort]) -> Option<usize> {
    let key = port_key(frontend)?;
    ports.binary_search_by(|port| port.key.cmp(&key)).ok()
}

/// The ports that have frontends, each once.
fn desired_ports(
    service: &ServiceFacts,
    frontends: &[DesiredFrontend],
    settings: &Settings,
) -> Vec<DesiredPort> {
    let is_external = |frontend: &DesiredFrontend| !frontend.kind.is_internal();
    let is_balanced = |frontend: &DesiredFrontend| frontend.kind == FrontendType::LoadBalancer;
    let found = |it: &DesiredFrontend| Some((port_key(it)?, is_external(it), is_balanced(it)));
    let mut keys: Vec<_> = frontends.iter().filter_map(found).collect();
    keys.sort_unstable();
    keys.dedup_by(|after, first| {
        let same = after.0 == first.0;
        first.1 |= same && after.1;
        first.2 |= same && after.2;
        same
    });
    let port = |(key, external, balanced): (PortKey, bool, bool)| {
        let keeps_members = match key.transport {
            Transport::Tcp => settings.keeps_tcp_members,
            Transport::Udp => true,
            Transport::Sctp => false,
        };
        let maglev = external && settings.uses_maglev(service);
        let left_out = ignored_prefix_bits(service, key.family);
        let policy = PortPolicy {
            keeps_members,
            has_lb_frontend: balanced,
            maglev,
            ignored_bits: left_out,
            ..port_policy(service, external)
        };
        DesiredPort { policy, key, rows: Vec::new(), weights: BackendWeights::default(), sources: None }
    };
    keys.into_iter().map(port).collect()
}

/// Gives the ports with load-balancer addresses their sources. All such ports of one family share them.
fn set_sources(ports: &mut [DesiredPort], service: &ServiceFacts, node: &NodeFacts) {
    for family in Family::ALL {
        let sources = source_ranges::allowed_ranges(service, node, family);
        let of_family = ports.iter_mut().filter(|it| it.policy.has_lb_frontend && it.key.family == family);
        of_family.for_each(|port| port.sources.clone_from(&sources));
    }
}

fn port_policy(service: &ServiceFacts, external: bool) -> PortPolicy {
    let internal_local = service.internal_policy == TrafficPolicy::Local;
    let external_local = external && frontends::is_external_local(service);
    PortPolicy {
        cluster_used: !internal_local || external,
        local_used: internal_local || external_local,
        has_usable_backend: false,
        internal_local,
        has_external_frontend: external,
        has_lb_frontend: false,
        external_local,
        affinity_timeout: service.affinity_timeout.unwrap_or(0),
        ignored_bits: 0,
        maglev: false,
        keeps_members: false,
        has_off_cluster_backend: false,
    }
}

/// How many last bits of a client's address do not count: none where clients are not kept.
fn ignored_prefix_bits(service: &ServiceFacts, family: Family) -> u8 {
    let prefixes = service.affinity_prefixes().filter(|_| service.affinity_timeout.is_some());
    prefixes.unwrap_or(Prefixes::WHOLE).ignored_bits(family)
}

#[cfg(test)]
mod tests;
