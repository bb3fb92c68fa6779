//! Plans the health check ports that Services want on this node, their addresses, and their responses.
//!
//! Invariant: as in kube-proxy, a Service of type LoadBalancer with the external policy Local has its port in each
//! family that is served, at the node's NodePort addresses. The response counts the addresses of ready endpoints on
//! this node, even terminating ones. A held list counts as before, because it is served as before. If two Services
//! want the same port at the same address, only the first gets it. If Services want more ports than may be open, the
//! namespaces share them evenly.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::{NodeFacts, ServiceFacts, ServiceType, SliceFacts, TrafficPolicy};
use holdfast_core::keys::{Family, ObjectName, ServiceKey, Source};
use holdfast_core::list::Row;
use holdfast_core::snapshot::{PortView, ServiceState, ServiceView, Snapshot};

use super::handlers::ServiceCheck;
use super::limits;
use super::local::is_local_row;
use crate::readings::{CLOSED_NAMED_MAX, ClosedPort, Purpose};
use holdfast_config::{NodePortAddresses, OuterAddresses};

/// The ports to open, and those refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) open: BTreeMap<SocketAddr, ServiceCheck>,
    /// The refused ports with their reasons, up to a limit.
    pub(super) refused: Vec<ClosedPort>,
    /// How many more ports are refused.
    pub(super) more: usize,
}

#[derive(Debug, Default)]
struct PlanBuilder {
    plan: Plan,
    /// How many ports each namespace may have.
    quota: usize,
    /// How many ports each namespace has so far.
    used: BTreeMap<String, usize>,
}

impl PlanBuilder {
    fn add(&mut self, address: SocketAddr, check: ServiceCheck) {
        let have = self.used.entry(check.service.namespace().to_owned()).or_default();
        let open = self.plan.open.len();
        let why = match self.plan.open.get(&address) {
            Some(owner) => format!("the port belongs to {}, which comes first", owner.service),
            None if open >= limits::LISTENERS_MAX => {
                format!("{open} health check ports are open, which is the limit")
            }
            None if *have >= self.quota => format!(
                "{have} ports of Services of this namespace are open, its share of {}",
                limits::LISTENERS_MAX
            ),
            None => {
                *have += 1;
                self.plan.open.insert(address, check);
                return;
            }
        };
        self.plan.refuse(address, check.service, why);
    }
}

impl Plan {
    fn refuse(&mut self, address: SocketAddr, service: ObjectName, why: String) {
        if self.refused.len() >= CLOSED_NAMED_MAX {
            self.more += 1;
            return;
        }
        self.refused.push(ClosedPort {
            purpose: Purpose::Service,
            address,
            service: Some(service),
            reason: why,
        });
    }
}

/// Makes plans, and caches the counts of unchanged Services.
#[derive(Debug, Default)]
pub(super) struct Planner {
    counts: BTreeMap<ServiceKey, LocalEndpointCount>,
}

/// The counted view and node, and the number of addresses in each family; none if the Service is not served.
#[derive(Debug)]
struct LocalEndpointCount {
    view: Arc<ServiceView>,
    node: Arc<str>,
    endpoints: [Option<usize>; Family::ALL.len()],
}

impl Planner {
    pub(super) fn plan(&mut self, snapshot: &Snapshot, addresses: &NodePortAddresses) -> Plan {
        let mut wanting: Vec<_> = snapshot
            .services
            .with_balancer()
            .filter_map(|view| Some((view, requested_port(view)?)))
            .collect();
        wanting.sort_by_cached_key(|(view, (_, rank))| (*rank, view.key.name.clone()));
        let mut before = std::mem::take(&mut self.counts);
        let each = namespace_quota(&count_wanted(&wanting, addresses, &snapshot.node), limits::LISTENERS_MAX);
        let mut planning = PlanBuilder { quota: each, ..PlanBuilder::default() };
        for (view, (port, _)) in wanting {
            let known = before.remove(&view.key).filter(|it| it.applies_to(view, &snapshot.node));
            let counted = known.unwrap_or_else(|| LocalEndpointCount::new(view, &snapshot.node));
            for (family, endpoints) in Family::ALL.into_iter().zip(counted.endpoints) {
                let Some(endpoints) = endpoints else { continue };
                let check = ServiceCheck { service: view.key.name.clone(), endpoints };
                plan_listeners(&mut planning, family, port, (addresses, &snapshot.node), &check);
            }
            self.counts.insert(view.key.clone(), counted);
        }
        planning.plan
    }
}

/// A Service that wants a port, and its rank.
type PortRequest<'a> = (&'a Arc<ServiceView>, (NonZeroU16, Rank));

/// How many listeners the Services of each namespace want.
fn count_wanted(all: &[PortRequest<'_>], setting: &NodePortAddresses, node: &NodeFacts) -> Vec<usize> {
    let at = Family::ALL.map(|family| match setting.outer {
        OuterAddresses::All => 1,
        _ => usable_addresses(node, family).count(),
    });
    let mut wanted = BTreeMap::<&str, usize>::new();
    for (view, _) in all {
        let is_served = |family: &Family| view.ports.iter().any(|port| port.key.family == *family);
        let each = Family::ALL.iter().zip(at).filter(|(family, _)| is_served(family)).map(|(_, at)| at);
        *wanted.entry(view.key.name.namespace()).or_default() += each.sum::<usize>();
    }
    wanted.into_values().collect()
}

/// How many listeners each namespace may have: namespaces that want less get all they want, and the others share the
/// rest evenly. Each may have one, as long as any is left.
fn namespace_quota(wanted: &[usize], most: usize) -> usize {
    let mut sorted = wanted.to_vec();
    sorted.sort_unstable();
    let mut left = most;
    for (position, want) in sorted.iter().enumerate() {
        let even = left / (sorted.len() - position);
        if *want > even {
            return even.max(1);
        }
        left -= want;
    }
    most
}

impl LocalEndpointCount {
    fn new(view: &Arc<ServiceView>, node: &NodeFacts) -> Self {
        let endpoints = Family::ALL.map(|family| {
            let mut ports = view.ports.iter().filter(|port| port.key.family == family).peekable();
            ports.peek()?;
            let ready: BTreeSet<IpAddr> =
                ports.flat_map(|port| local_ready_endpoints(port, &view.slices, &node.name)).collect();
            Some(ready.len())
        });
        Self { view: Arc::clone(view), node: Arc::clone(&node.name), endpoints }
    }

    fn applies_to(&self, view: &Arc<ServiceView>, node: &NodeFacts) -> bool {
        Arc::ptr_eq(&self.view, view) && self.node == node.name
    }
}

fn local_ready_endpoints<'a>(
    port: &'a PortView,
    slices: &'a [Arc<SliceFacts>],
    node: &'a str,
) -> impl Iterator<Item = IpAddr> + 'a {
    let counts =
        move |row: &Row| (row.conditions().ready || row.is_held()) && is_local_row(port, row, slices, node);
    port.rows.iter().filter(counts).map(|row| row.address)
}

/// The order of Services: by source, then the older one first; a Service without a creation time counts as the
/// youngest.
type Rank = (Source, i64);

fn requested_port(view: &ServiceView) -> Option<(NonZeroU16, Rank)> {
    let facts: &ServiceFacts = view.facts.as_deref().filter(|_| view.state == ServiceState::Served)?;
    let has_one = facts.kind == ServiceType::LoadBalancer && facts.external_policy == TrafficPolicy::Local;
    let port = facts.health_check_node_port.filter(|_| has_one)?;
    Some((port, (facts.key.source, facts.meta.created.map_or(i64::MAX, |created| created.0))))
}

fn plan_listeners(
    planning: &mut PlanBuilder,
    family: Family,
    port: NonZeroU16,
    (setting, node): (&NodePortAddresses, &NodeFacts),
    check: &ServiceCheck,
) {
    let at = |address| SocketAddr::new(address, port.get());
    if setting.outer == OuterAddresses::All {
        return planning.add(at(family.unspecified_address()), check.clone());
    }
    let mut addresses = usable_addresses(node, family).peekable();
    if addresses.peek().is_none() {
        let why = format!("this node answers NodePorts at no address of {family}");
        return planning.plan.refuse(at(family.unspecified_address()), check.service.clone(), why);
    }
    addresses.for_each(|address| planning.add(at(*address), check.clone()));
}

/// The addresses that serve checks. A link-local one means another host on each interface, so no load balancer can
/// dial it.
fn usable_addresses(node: &NodeFacts, family: Family) -> impl Iterator<Item = &IpAddr> {
    let is_usable = move |it: &&IpAddr| Family::from_address(**it) == family && !is_link_local(**it);
    node.node_port_addresses.iter().filter(is_usable)
}

const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
