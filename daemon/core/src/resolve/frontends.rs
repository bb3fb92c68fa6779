//! The addresses and ports of a service, per family.
//!
//! Invariant: each address, port and protocol of a service makes one row, up to [`limits::FRONTENDS_PER_SERVICE_MAX`].
//! The work is linear in the number of rows.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use super::denied_address::is_denied;
use super::{DesiredFrontend, FrontendQuota};
use crate::facts::{ServiceFacts, ServicePort, ServiceType, Settings, TrafficPolicy};
use crate::keys::{Family, Source};
use crate::limits;
use crate::list::Scope;
use crate::op::FrontendType;
use crate::snapshot::ServiceState;
use crate::work;

/// Whether this proxy serves the service.
pub(crate) fn service_state(service: Option<&ServiceFacts>, settings: &Settings) -> ServiceState {
    let Some(service) = service else { return ServiceState::NoService };
    let ours = service.key.source == Source::Config || service.proxy_name == settings.service_proxy_name;
    match service.kind {
        _ if !ours => ServiceState::OtherProxy,
        ServiceType::ExternalName => ServiceState::ExternalName,
        _ if service.headless => ServiceState::Headless,
        _ => ServiceState::Served,
    }
}

/// Whether `externalTrafficPolicy: Local` applies: it counts only for a service with an address for traffic from
/// outside, of either family.
pub(super) fn is_external_local(service: &ServiceFacts) -> bool {
    let accessible = match service.kind {
        ServiceType::NodePort | ServiceType::LoadBalancer => true,
        ServiceType::ClusterIp => !service.external_ips.is_empty(),
        ServiceType::ExternalName | ServiceType::Static | ServiceType::ClusterSetIp => false,
    };
    accessible && service.external_policy == TrafficPolicy::Local
}

/// All frontends that fit, each once, in table order.
pub(super) fn desired_frontends(service: &ServiceFacts, settings: &Settings) -> Vec<DesiredFrontend> {
    let numbers = DialPorts::from_service(service);
    let addresses = frontend_addresses(service, settings);
    let all = addresses.iter().flat_map(|it| {
        let of = |(number, port): &NumberedPort<'_>| {
            build_frontend(service, port, it, number.or(it.port), settings)
        };
        numbers.for_address(it).iter().map(of)
    });
    // Frontends beyond the limit are never built: one object may ask for millions.
    let most = addresses.iter().map(|it| numbers.for_address(it).len()).fold(0, usize::saturating_add);
    let mut found = Vec::with_capacity(most.min(limits::FRONTENDS_PER_SERVICE_MAX));
    found.extend(all.flatten().take(limits::FRONTENDS_PER_SERVICE_MAX));
    work::count_work(found.len());
    // Of two equal rows the one that clients can dial stays: a denied external IP of 0.0.0.0 equals the NodePorts'
    // address.
    found.sort_by(|a, b| dedup_order(a).cmp(&dedup_order(b)));
    found.dedup_by(|a, b| (a.address, a.port, &a.protocol) == (b.address, b.port, &b.protocol));
    found.sort_by(|a, b| table_order(a).cmp(&table_order(b)));
    found
}

/// Removes and returns the frontends beyond the quota, and counts those removed because there are enough at external
/// IPs. Present frontends stay first, then those that clients can dial, then by kind of address.
pub(super) fn apply_quota(
    found: &mut Vec<DesiredFrontend>,
    quota: FrontendQuota<'_>,
) -> (Vec<DesiredFrontend>, usize) {
    let chosen = found.iter().filter(|it| it.kind.is_author_chosen()).count();
    if found.len() <= quota.most && chosen <= quota.external_ips {
        return (Vec::new(), 0);
    }
    work::count_work(found.len());
    let (mut has, mut has_chosen) = (0, 0);
    found.sort_by_cached_key(|it| {
        let is_there = (quota.is_present)(it);
        has += usize::from(is_there);
        has_chosen += usize::from(is_there && it.kind.is_author_chosen());
        (!is_there, it.key().is_none(), it.kind.table_order())
    });
    let mut left = quota.external_ips.max(has_chosen);
    let is_too_many = |it: &mut DesiredFrontend| {
        let is_beyond = it.kind.is_author_chosen() && left == 0;
        left -= usize::from(it.kind.is_author_chosen() && left > 0);
        is_beyond
    };
    let mut beyond: Vec<_> = found.extract_if(.., is_too_many).collect();
    let chosen = beyond.len();
    beyond.extend(found.split_off(quota.most.max(has).min(found.len())));
    found.sort_by(|a, b| table_order(a).cmp(&table_order(b)));
    (beyond, chosen)
}

/// The cluster IPs, each with one of its ports, and node ports: they remain the service's own although left out.
pub(super) fn reserved_frontends(mut beyond: Vec<DesiredFrontend>) -> Vec<DesiredFrontend> {
    beyond.retain(|it| matches!(it.kind, FrontendType::ClusterIp | FrontendType::NodePort));
    beyond.sort_by_key(|it| (it.kind.table_order(), it.address, it.transport.is_none()));
    beyond.dedup_by(|a, b| {
        a.kind == FrontendType::ClusterIp && b.kind == FrontendType::ClusterIp && a.address == b.address
    });
    beyond
}

fn dedup_order(it: &DesiredFrontend) -> impl Ord + '_ {
    (it.address, it.port, &it.protocol, it.denied)
}

/// How many frontends the service asks for, whether they fit or not.
pub(crate) fn count_frontends(service: &ServiceFacts, settings: &Settings) -> usize {
    let numbers = DialPorts::from_service(service);
    frontend_addresses(service, settings).iter().map(|it| numbers.for_address(it).len()).sum()
}

/// An upper bound of [`count_frontends`] that reads no address: nearly all services ask for so few that the exact
/// number does not matter.
pub(crate) fn frontends_upper_bound(service: &ServiceFacts) -> usize {
    // A cluster IP and the address of NodePorts, in each family.
    let own = 2 * Family::ALL.len();
    let listed = [service.ingress.len(), service.external_ips.len(), service.static_frontends.len()];
    let addresses = listed.into_iter().fold(own, usize::saturating_add);
    addresses.saturating_mul(service.ports.len())
}

/// A port with the number that clients dial; `None`: the address has its own number.
type NumberedPort<'a> = (Option<NonZeroU16>, &'a ServicePort);

/// The ports of a service by dialled number, each number and protocol once.
struct DialPorts<'a> {
    own: Vec<NumberedPort<'a>>,
    node: Vec<NumberedPort<'a>>,
    /// For addresses with a number of their own.
    unnumbered: Vec<NumberedPort<'a>>,
}

impl<'a> DialPorts<'a> {
    fn from_service(service: &'a ServiceFacts) -> Self {
        let once = |number: fn(&ServicePort) -> Option<NonZeroU16>, any: bool| {
            let ports = service.ports.iter().map(|port| (number(port), port));
            dedup_ports(ports.filter(|(number, _)| any || number.is_some()).collect())
        };
        Self {
            own: once(|port| Some(port.port), false),
            node: once(|port| port.node_port, false),
            unnumbered: if service.static_frontends.is_empty() { Vec::new() } else { once(|_| None, true) },
        }
    }

    fn for_address(&self, address: &FrontendAddress) -> &[NumberedPort<'a>] {
        match address.kind {
            FrontendType::NodePort => &self.node,
            FrontendType::Static => &self.unnumbered,
            _ => &self.own,
        }
    }
}

/// Keeps the first by name of ports with the same number and protocol. The rest stays in the object's order.
fn dedup_ports(mut ports: Vec<NumberedPort<'_>>) -> Vec<NumberedPort<'_>> {
    if ports.len() < 2 {
        return ports;
    }
    let mut order: Vec<_> = ports.iter().copied().zip(0_usize..).collect();
    order.sort_unstable_by_key(|((number, port), position)| (*number, &port.protocol, &port.name, *position));
    order.dedup_by(|((a, x), _), ((b, y), _)| (*a, &x.protocol) == (*b, &y.protocol));
    if order.len() < ports.len() {
        order.sort_unstable_by_key(|(_, position)| *position);
        ports = order.into_iter().map(|(port, _)| port).collect();
    }
    ports
}

struct FrontendAddress {
    kind: FrontendType,
    ip: IpAddr,
    port: Option<NonZeroU16>,
    denied: bool,
}

impl FrontendAddress {
    /// Equal for equal addresses. The NodePorts' address equals no other, because it stands for all of the node.
    fn identity(&self) -> impl Ord + use<> {
        (self.ip, self.port, self.kind == FrontendType::NodePort)
    }
}

/// Each address once, by rank: ClusterIP or ClusterSetIP, NodePort, LoadBalancer, ExternalIP, Static. Of duplicates,
/// one that clients can dial stays.
fn frontend_addresses(service: &ServiceFacts, settings: &Settings) -> Vec<FrontendAddress> {
    let visible = Family::ALL.map(|family| is_visible(service, family));
    let [v4, v6] = visible;
    let is_visible = |ip: &IpAddr| if Family::from_address(*ip) == Family::V4 { v4 } else { v6 };
    let families = || Family::ALL.into_iter().zip(visible).filter(|(_, visible)| *visible).map(|(it, _)| it);
    let cluster = families().filter_map(|family| cluster_ip(service, family));
    let has_node_ports = service.ports.iter().any(|port| port.node_port.is_some());
    let node = families().filter(|_| has_node_ports).map(Family::unspecified_address);
    let ingress = service.ingress.iter().filter(|ingress| !ingress.proxied).map(|ingress| ingress.address);
    let fixed = service.static_frontends.iter().map(|it| (it.ip(), NonZeroU16::new(it.port())));
    let address =
        |kind, ip, port| FrontendAddress { kind, ip, port, denied: is_denied(service, kind, ip, settings) };
    let of = |kind| move |ip: IpAddr| address(kind, ip, None);
    let own = match service.kind {
        ServiceType::ClusterSetIp => FrontendType::ClusterSetIp,
        _ => FrontendType::ClusterIp,
    };
    let all = cluster
        .map(of(own))
        .chain(node.map(of(FrontendType::NodePort)))
        .chain(ingress.map(of(FrontendType::LoadBalancer)))
        .chain(service.external_ips.iter().copied().map(of(FrontendType::ExternalIp)))
        .chain(
            fixed
                .filter(|(_, port)| port.is_some())
                .map(|(ip, port)| address(FrontendType::Static, ip, port)),
        );
    let mut all: Vec<_> = all.filter(|it| is_visible(&it.ip)).collect();
    if all.len() < 2 {
        return all;
    }
    let free: BTreeSet<_> = all.iter().filter(|it| !it.denied).map(FrontendAddress::identity).collect();
    let mut known = BTreeSet::new();
    all.retain(|it| (!it.denied || !free.contains(&it.identity())) && known.insert(it.identity()));
    all
}

fn table_order(it: &DesiredFrontend) -> impl Ord + '_ {
    (&it.port_name, it.kind.table_order(), it.address, &it.protocol, it.port)
}

fn build_frontend(
    service: &ServiceFacts,
    port: &ServicePort,
    &FrontendAddress { kind, ip, denied: barred, .. }: &FrontendAddress,
    number: Option<NonZeroU16>,
    settings: &Settings,
) -> Option<DesiredFrontend> {
    let internal = kind.is_internal();
    let local = internal && service.internal_policy == TrafficPolicy::Local;
    Some(DesiredFrontend {
        address: ip,
        port: number?,
        protocol: port.protocol.clone(),
        kind,
        port_name: Arc::clone(&port.name),
        position: None,
        scope: if local { Scope::Local } else { Scope::Cluster },
        external_local: !internal && is_external_local(service),
        denied: barred,
        transport: settings.transport(&port.protocol).filter(|_| !barred),
        passes: false,
    })
}

/// The cluster IP of one family. With `ipFamilies` it is the address at the family's position. Without, the apiserver's
/// Services have only their first address; manifests and ServiceImports, which no apiserver defaulted, have the first
/// of the family.
fn cluster_ip(service: &ServiceFacts, family: Family) -> Option<IpAddr> {
    let own = |address: &IpAddr| Family::from_address(*address) == family;
    if service.ip_families.is_empty() {
        let looked_at = if service.key.source == Source::Kubernetes { 1 } else { service.cluster_ips.len() };
        return service.cluster_ips.iter().take(looked_at).copied().find(own);
    }
    let position = service.ip_families.iter().position(|it| *it == family)?;
    service.cluster_ips.get(position).copied().filter(own)
}

/// A family without a cluster IP has no frontend at all, as in kube-proxy. A manifest without any cluster IP is served
/// at its other addresses.
fn is_visible(service: &ServiceFacts, family: Family) -> bool {
    let bare = service.cluster_ips.is_empty() && service.key.source != Source::Kubernetes;
    if !bare {
        return cluster_ip(service, family).is_some();
    }
    if !service.ip_families.is_empty() {
        return service.ip_families.contains(&family);
    }
    let ingress = service.ingress.iter().map(|ingress| ingress.address);
    let fixed = service.static_frontends.iter().map(core::net::SocketAddr::ip);
    let mut families =
        service.external_ips.iter().copied().chain(ingress).chain(fixed).map(Family::from_address).peekable();
    if families.peek().is_none() { family == Family::V4 } else { families.any(|it| it == family) }
}
