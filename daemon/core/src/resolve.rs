//! Resolves one service, its slices, the node and the settings into what is desired, as a pure function.
//!
//! Invariant: no other service goes in, so none can change the result, but for how many frontends the service may have
//! where all ask for more than there may be. The chosen endpoints are exactly those that kube-proxy chooses. The claims
//! decide which of two services owns an address that both claim.

mod barred;
pub mod choose;
pub(crate) mod frontends;
pub(crate) mod listed;
pub(crate) mod weigh;

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
use crate::sources::{self, SourceRanges};
use crate::weights::OfBackends;
use crate::work;

/// What one service should have in the maps.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Why the service has frontends, or none.
    pub state: ServiceState,
    /// Its ports, sorted by key.
    pub ports: Vec<DesiredPort>,
    /// Its frontends, in the order of the table.
    pub frontends: Vec<DesiredFrontend>,
    /// The cluster IPs and node ports that are left out, so that no other service takes what is behind them.
    pub covering: Vec<DesiredFrontend>,
    /// What is left out of it.
    pub cut: Cut,
}

impl Desired {
    fn nothing(state: ServiceState) -> Self {
        let (ports, frontends, covering) = (Vec::new(), Vec::new(), Vec::new());
        Self { state, ports, frontends, covering, cut: Cut::default() }
    }
}

/// What is left out of what a service asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// How many ports have only some of their endpoints, because there are too many.
    pub ports: usize,
    /// How many frontends are beyond the service's part.
    pub frontends: usize,
    /// How many of those are, because external IPs of all services together have their half.
    pub chosen: usize,
    /// How many rows are beyond it, which is found out when the ports take them.
    pub rows: usize,
}

/// The part of all frontends that a service may have.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// How many; all that it has already stay, however many those are.
    pub most: usize,
    /// How many of them may be at external IPs.
    pub chosen: usize,
    /// Which of its frontends it has already: these come first.
    pub has: &'a dyn Fn(&DesiredFrontend) -> bool,
}

impl core::fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Part").field("most", &self.most).field("chosen", &self.chosen).finish_non_exhaustive()
    }
}

impl Part<'_> {
    /// As many as one service may have.
    pub const WHOLE: Self =
        Self { most: limits::FRONTENDS_PER_SERVICE_MAX, chosen: usize::MAX, has: &|_| false };
}

/// One port in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPort {
    pub key: PortKey,
    /// All endpoints, merged, with the lists marked.
    pub rows: Vec<Row>,
    /// How many new clients its backends get beside each other.
    pub weights: OfBackends,
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
    pub has_any: bool,
    /// Cluster IPs use the local list.
    pub internal_local: bool,
    /// Some frontend is for traffic from outside.
    pub external: bool,
    /// Some frontend is an address of a load balancer.
    pub balanced: bool,
    /// Traffic from outside uses the local list.
    pub external_local: bool,
    /// Session affinity in seconds; 0: none.
    pub affinity_timeout: u32,
    /// How many last bits of a client's address do not count for it.
    pub left_out: u8,
    /// Clients from outside have their place in the cluster list computed.
    pub maglev: bool,
    /// The maps keep every serving backend as a member, in a list or not.
    pub keeps_members: bool,
    /// Not each backend of the cluster list is known to be on a node of the cluster, and the maps are to say that.
    pub has_outside: bool,
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
    pub barred: bool,
    /// The transport that is programmed; `None`: the frontend is only shown.
    pub transport: Option<Transport>,
    /// The position of its port in [`Desired::ports`]; `None` if nothing can be programmed.
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
    part: Part<'_>,
) -> Desired {
    let state = frontends::state(service, settings);
    let Some(service) = service.filter(|_| state == ServiceState::Served) else {
        return Desired::nothing(state);
    };
    let mut frontends = frontends::frontends(service, settings);
    let (beyond, chosen) = frontends::leave_out(&mut frontends, part);
    let left_out = beyond.len();
    let covering = frontends::covering(beyond);
    let mut ports = ports(service, &frontends, settings);
    restrict(&mut ports, service, node);
    let cut = Cut { ports: listed::fill(&mut ports, slices, node), frontends: left_out, chosen, rows: 0 };
    for port in &mut ports {
        work::done(port.rows.len());
        port.policy.has_any = choose::choose(&mut port.rows, slices, port.policy, node);
        let asked = service.weights.as_deref().map(|asked| &asked.weights);
        let drained = weigh::drained(port.rows.iter().map(Row::backend), &service.key.name, drains);
        port.weights = weigh::weigh(&port.rows, slices, asked).drained(drained);
        weigh::rest(&mut port.rows, &port.weights);
        port.policy.has_outside = settings.marks_outside && has_outside(port, service, slices);
    }
    for frontend in &mut frontends {
        frontend.position = position(frontend, &ports);
    }
    let state = if frontends.is_empty() { ServiceState::NoAddress } else { state };
    Desired { state, ports, frontends, covering, cut }
}

/// Whether a backend of the cluster list may be on no node of the cluster. An empty list, which may be held, says
/// nothing of that; nor does a node's name in slices of other clusters, and a block of the configuration names none.
fn has_outside(port: &DesiredPort, service: &ServiceFacts, slices: &[Arc<SliceFacts>]) -> bool {
    let mut listed = port.rows.iter().filter(|row| row.is_in(Scope::Cluster)).peekable();
    let knows_nodes = matches!(service.key.source, Source::Manifests | Source::Kubernetes);
    port.policy.cluster_used
        && (!knows_nodes || listed.peek().is_none() || listed.any(|row| !choose::names_a_node(row, slices)))
}

fn port_key(frontend: &DesiredFrontend) -> Option<PortKey> {
    Some(PortKey {
        name: Arc::clone(&frontend.port_name),
        transport: frontend.transport?,
        family: Family::of(frontend.address),
    })
}

fn position(frontend: &DesiredFrontend, ports: &[DesiredPort]) -> Option<usize> {
    let key = port_key(frontend)?;
    ports.binary_search_by(|port| port.key.cmp(&key)).ok()
}

/// The ports that have frontends, each once.
fn ports(service: &ServiceFacts, frontends: &[DesiredFrontend], settings: &Settings) -> Vec<DesiredPort> {
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
        let maglev = external && settings.asks_for_maglev(service);
        let left_out = left_out(service, key.family);
        let policy = PortPolicy { keeps_members, balanced, maglev, left_out, ..policy(service, external) };
        DesiredPort { policy, key, rows: Vec::new(), weights: OfBackends::default(), sources: None }
    };
    keys.into_iter().map(port).collect()
}

/// Gives the ports with load-balancer addresses their sources. All such ports of one family share them.
fn restrict(ports: &mut [DesiredPort], service: &ServiceFacts, node: &NodeFacts) {
    for family in Family::ALL {
        let sources = sources::allowed(service, node, family);
        let of_family = ports.iter_mut().filter(|it| it.policy.balanced && it.key.family == family);
        of_family.for_each(|port| port.sources.clone_from(&sources));
    }
}

fn policy(service: &ServiceFacts, external: bool) -> PortPolicy {
    let internal_local = service.internal_policy == TrafficPolicy::Local;
    let external_local = external && frontends::is_external_local(service);
    PortPolicy {
        cluster_used: !internal_local || external,
        local_used: internal_local || external_local,
        has_any: false,
        internal_local,
        external,
        balanced: false,
        external_local,
        affinity_timeout: service.affinity_timeout.unwrap_or(0),
        left_out: 0,
        maglev: false,
        keeps_members: false,
        has_outside: false,
    }
}

/// How many last bits of a client's address do not count: none where clients are not kept.
fn left_out(service: &ServiceFacts, family: Family) -> u8 {
    let prefixes = service.affinity_prefixes().filter(|_| service.affinity_timeout.is_some());
    prefixes.unwrap_or(Prefixes::WHOLE).left_out(family)
}

#[cfg(test)]
mod tests;
