//! Resolves one service, its slices, the node and the settings into the desired frontends and backends, as a pure
//! function.
//!
//! Invariant: other services change the result only through [`FrontendQuota`]. The endpoints are exactly those that
//! kube-proxy selects. Claims decide which of two services owns an address that both list.

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
    /// Sorted by key.
    pub ports: Vec<DesiredPort>,
    /// In table order.
    pub frontends: Vec<DesiredFrontend>,
    /// The cluster IPs and node ports beyond the quota, reserved so that no other service takes them.
    pub reserved: Vec<DesiredFrontend>,
    pub cut: Truncation,
}

impl DesiredService {
    fn empty(state: ServiceState) -> Self {
        let (ports, frontends, reserved) = (Vec::new(), Vec::new(), Vec::new());
        Self { state, ports, frontends, reserved, cut: Truncation::default() }
    }
}

/// How much of a service is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truncation {
    /// Ports that have only some of their endpoints.
    pub ports: usize,
    /// Frontends beyond the service's quota.
    pub frontends: usize,
    /// Those left out because external IPs of all services have reached their half.
    pub external_ips: usize,
    /// Rows beyond the quota; the plan counts them when ports take their rows.
    pub rows: usize,
}

/// How many frontends a service may have.
#[derive(Clone, Copy)]
pub struct FrontendQuota<'a> {
    /// The limit; frontends that the service already has stay even beyond it.
    pub most: usize,
    /// How many may be at external IPs.
    pub external_ips: usize,
    /// Whether the service already has this frontend; such frontends come first.
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
    /// The limit of a single service.
    pub const WHOLE: Self =
        Self { most: limits::FRONTENDS_PER_SERVICE_MAX, external_ips: usize::MAX, is_present: &|_| false };
}

/// One port in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPort {
    pub key: PortKey,
    /// All endpoints, merged, with the lists marked.
    pub rows: Vec<Row>,
    /// The backends' shares of new clients.
    pub weights: BackendWeights,
    /// Which lists its frontends use, and how they treat empty lists.
    pub policy: PortPolicy,
    /// The clients that may use the port's load-balancer addresses; `None`: all clients.
    pub sources: Option<SourceRanges>,
}

/// How a port's settings use its lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortPolicy {
    pub cluster_used: bool,
    pub local_used: bool,
    /// A usable backend exists, here or elsewhere.
    pub has_usable_backend: bool,
    /// Cluster IPs use the local list.
    pub internal_local: bool,
    /// Some frontend is for traffic from outside.
    pub has_external_frontend: bool,
    pub has_lb_frontend: bool,
    /// Traffic from outside uses the local list.
    pub external_local: bool,
    /// Session affinity in seconds; 0: none.
    pub affinity_timeout: u32,
    /// How many trailing bits of a client's address affinity ignores.
    pub ignored_bits: u8,
    /// Clients from outside get their backend from a Maglev table.
    pub maglev: bool,
    /// The maps keep every serving backend as a member, in a list or not.
    pub keeps_members: bool,
    /// The maps must record that some backend of the cluster list may run outside the cluster.
    pub has_off_cluster_backend: bool,
}

/// One address and port that clients dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredFrontend {
    /// Unspecified for a NodePort.
    pub address: IpAddr,
    pub port: NonZeroU16,
    /// The protocol as the service spells it.
    pub protocol: Protocol,
    pub kind: FrontendType,
    /// Empty if unnamed.
    pub port_name: Arc<str>,
    /// No tenant may have the address, so the frontend is shown and never programmed.
    pub denied: bool,
    /// The programmed transport; `None`: the frontend is only shown.
    pub transport: Option<Transport>,
    /// The position of its port in [`DesiredService::ports`]; `None`: there is nothing to program.
    pub position: Option<usize>,
    /// The list for this node's own connections.
    pub scope: Scope,
    /// Traffic from outside gets the local list.
    pub external_local: bool,
    /// There is no backend, and traffic passes to the real load balancer.
    pub passes: bool,
}

impl DesiredFrontend {
    pub fn key(&self) -> Option<FrontendKey> {
        Some(FrontendKey { address: self.address, port: self.port, transport: self.transport? })
    }
}

pub fn resolve(
    service: Option<&ServiceFacts>,
    slices: &[Arc<SliceFacts>],
    (node, settings, drains): (&NodeFacts, &Settings, &Drains),
    quota: FrontendQuota<'_>,
) -> DesiredService {
    let state = frontends::service_state(service, settings);
    let Some(service) = service.filter(|_| state == ServiceState::Served) else {
        return DesiredService::empty(state);
    };
    let mut frontends = frontends::desired_frontends(service, settings);
    let (beyond, chosen) = frontends::apply_quota(&mut frontends, quota);
    let left_out = beyond.len();
    let reserved = frontends::reserved_frontends(beyond);
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
    DesiredService { state, ports, frontends, reserved, cut }
}

/// Whether a backend of the cluster list may run outside the cluster. An empty list may be held, so it counts as a yes.
/// Slices of other clusters and blocks of the configuration name no node of this cluster.
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

/// Sets the sources of ports with load-balancer addresses. All such ports of one family share them.
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

/// How many trailing bits of a client's address affinity ignores; 0 without affinity.
fn ignored_prefix_bits(service: &ServiceFacts, family: Family) -> u8 {
    let prefixes = service.affinity_prefixes().filter(|_| service.affinity_timeout.is_some());
    prefixes.unwrap_or(Prefixes::WHOLE).ignored_bits(family)
}

#[cfg(test)]
mod tests;
