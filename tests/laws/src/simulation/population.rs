//! The services and slices of the simulated world and their changes: few services with colliding names, shared
//! addresses and ports, and slices that move between them.
//!
//! Invariant: the random sequence alone decides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::address_policy::{AddressRange, ExternalIps};
use holdfast_core::drains::{Drain, DrainOrder, Drains};
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, Endpoints, EndpointsBuilder, HintSet, Ingress, Meta, NodeFacts,
    ServiceFacts, ServicePort, ServiceType, Settings, SliceFacts, SlicePort, Target, Timestamp,
    TrafficPolicy, endpoints::UidText,
};
use holdfast_core::hold::{OnEmpty, Policy};
use holdfast_core::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source};

use super::random::Random;

/// Names that are prefixes of each other, or are equal once namespace and name are joined.
const SERVICES: [(&str, &str, Source); 14] = [
    ("default", "a", Source::Kubernetes),
    ("default", "a-b", Source::Kubernetes),
    ("default", "a-", Source::Manifests),
    ("default", "ab", Source::Kubernetes),
    ("default", "kubernetes", Source::Kubernetes),
    ("default", "kubernetes-intranet", Source::Kubernetes),
    ("default", "2-a", Source::Kubernetes),
    ("default-2", "a", Source::Kubernetes),
    ("default-2", "a-b", Source::Manifests),
    ("default", "a", Source::Manifests),
    ("default", "a", Source::Config),
    ("default-a", "b", Source::Config),
    ("default", "a", Source::ClusterSet),
    ("default-2", "a", Source::ClusterSet),
];

pub const SERVICES_MAX: usize = SERVICES.len();

/// Two or three slices for each service.
pub const SLICES_MAX: usize = 28;

const PORT_NAMES: [&str; 4] = ["", "", "http", "dns"];
const NUMBERS: [u16; 2] = [80, 443];
const NODE_PORTS: [u16; 2] = [30_080, 30_443];
const NODES: [&str; 3] = ["", "n1", "n2"];
const ZONES: [&str; 3] = ["", "z1", "z2"];

/// A client that is in one of `RANGES` and no other.
pub const SOURCE: IpAddr = v4(203, 0, 113, 9);

/// The range of [`SOURCE`].
pub const OWN_RANGE: &str = "203.0.113.0/24";

/// The source ranges of load-balancer addresses: two of all clients, and one with addresses of the node.
const RANGES: [&str; 6] =
    [OWN_RANGE, OWN_RANGE, "198.51.100.0/24", "192.168.0.0/16", "0.0.0.0/0", "fd00::/64"];

/// The addresses that clients dial.
pub const VIPS: [IpAddr; 6] =
    [v4(10, 0, 0, 1), v4(10, 0, 0, 2), v4(10, 0, 0, 3), v4(10, 0, 0, 4), v6(1), v6(2)];

/// Addresses that no object may have as a frontend.
const NOBODYS: [IpAddr; 6] = [
    v4(127, 0, 0, 1),
    v4(169, 254, 169, 254),
    v4(0, 0, 0, 0),
    v4(255, 255, 255, 255),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

/// The node's own addresses.
pub const NODE_ADDRESSES: [IpAddr; 3] = [v4(192, 168, 0, 1), v4(192, 168, 0, 2), v6(0xffff)];

pub(super) const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))
}

/// Every address and port that any frontend could have.
pub fn dialled() -> impl Iterator<Item = SocketAddr> {
    let vips = VIPS.into_iter().flat_map(|ip| NUMBERS.map(|port| SocketAddr::new(ip, port)));
    let nodes = NODE_ADDRESSES.into_iter().flat_map(|ip| NODE_PORTS.map(|port| SocketAddr::new(ip, port)));
    let nobodys = NOBODYS.into_iter().filter(|ip| !ip.is_unspecified()).map(|ip| SocketAddr::new(ip, 80));
    vips.chain(nodes).chain(nobodys)
}

// The names above and the numbers of slices are legal.
#[allow(clippy::expect_used)]
pub(super) fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name).expect("a legal name")
}

pub(super) fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN)
}

fn service_name(position: usize) -> (&'static str, &'static str, Source) {
    SERVICES.get(position).copied().unwrap_or(("default", "none", Source::Kubernetes))
}

/// The key of the service at a position.
pub fn service_key(position: usize) -> ServiceKey {
    let (namespace, service, source) = service_name(position);
    ServiceKey { name: name(namespace, service), source }
}

/// The key of the slice at a position; it is in the namespace of the service at that position.
pub fn slice_key(position: usize) -> SliceKey {
    let (namespace, _, source) = service_name(position % SERVICES_MAX);
    SliceKey { name: name(namespace, &format!("slice-{position}")), source }
}

/// A service with only its name, of its source's kind.
fn of_source(key: ServiceKey) -> ServiceFacts {
    let kind = match key.source {
        Source::Config => ServiceType::Static,
        Source::ClusterSet => ServiceType::ClusterSetIp,
        Source::Kubernetes | Source::Manifests => ServiceType::ClusterIp,
    };
    ServiceFacts::new(key, kind)
}

/// A new service at a position.
pub fn service(random: &mut Random, position: usize) -> ServiceFacts {
    let key = service_key(position);
    let mut facts = of_source(key);
    if facts.kind == ServiceType::Static {
        facts.ports = ports(random, 1);
        facts.static_frontends = frontends(random);
    } else {
        for field in 0..SERVICE_FIELDS {
            change(random, &mut facts, field);
        }
    }
    facts.meta = meta(random);
    facts
}

const SERVICE_FIELDS: usize = 10;

const SETTINGS: [&str; 5] = ["auto", "refuse", "hold", "pass", "keep"];

/// Another version of a service: one thing changed, or only its version.
pub fn changed_service(random: &mut Random, old: &ServiceFacts) -> ServiceFacts {
    let mut facts = old.clone();
    if random.chance(800) && old.kind != ServiceType::Static {
        let field = random.below(SERVICE_FIELDS);
        change(random, &mut facts, field);
    }
    if random.chance(100) {
        facts.meta = meta(random);
    }
    facts.meta.resource_version = Some(random.pick(&["1", "2", "3"]).into());
    facts
}

fn change(random: &mut Random, facts: &mut ServiceFacts, field: usize) {
    match facts.kind {
        ServiceType::ClusterSetIp => change_import(random, facts, field),
        _ => change_service(random, facts, field),
    }
}

/// Changes one field of a ServiceImport, whose author chooses its addresses.
fn change_import(random: &mut Random, facts: &mut ServiceFacts, field: usize) {
    match field {
        0 => facts.headless = random.chance(100),
        1 => {
            facts.cluster_ips = some(random, 800, |random| match random.chance(100) {
                true => NODE_ADDRESSES.get(random.below(NODE_ADDRESSES.len())).copied().unwrap_or(v6(1)),
                false => chosen_address(random),
            });
        }
        2 => {
            let count = random.below(3);
            let ports = ports(random, count.max(1)).into_iter();
            facts.ports = ports.map(|port| ServicePort { node_port: None, ..port }).collect();
        }
        5 | 7 | 9 => change_service(random, facts, field),
        _ => {}
    }
}

fn change_service(random: &mut Random, facts: &mut ServiceFacts, field: usize) {
    match field {
        0 => {
            let kinds = [ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer];
            facts.kind = kinds.get(random.below(3)).copied().unwrap_or(ServiceType::ClusterIp);
            if random.chance(30) {
                facts.kind = ServiceType::ExternalName;
            }
            facts.headless = random.chance(30);
        }
        1 => change_addresses(random, facts),
        2 => {
            let count = random.below(3);
            facts.ports = ports(random, count.max(1));
        }
        3 => facts.external_ips = some(random, 400, chosen_address),
        4 => {
            facts.ingress = some(random, 400, |random| Ingress {
                address: chosen_address(random),
                proxied: random.chance(150),
            });
        }
        5 => facts.internal_policy = policy(random),
        6 => facts.external_policy = policy(random),
        7 => {
            facts.on_empty = random.chance(400).then(|| random.pick(&SETTINGS).into());
            facts.maglev = random.chance(100).then(|| random.pick(&["true", "false", "maybe"]).into());
        }
        8 => facts.source_ranges = some(random, 600, |random| random.pick(&RANGES).into()),
        _ => {
            facts.affinity_timeout = random.chance(300).then(|| 60 + u32::from(random.chance(500)));
            facts.affinity_prefix = random.chance(300).then(|| random.pick(&PREFIXES).into());
            facts.proxy_name = random.chance(50).then(|| "other".into());
        }
    }
}

fn change_addresses(random: &mut Random, facts: &mut ServiceFacts) {
    let (four, six) = (VIPS.get(random.below(4)).copied(), VIPS.get(4 + random.below(2)).copied());
    let (families, addresses) = match random.below(8) {
        0 => (vec![Family::V4, Family::V6], vec![four, six]),
        1 => (vec![Family::V6, Family::V4], vec![six, four]),
        2 => (vec![], vec![four, six]),
        3 => (vec![Family::V6], vec![six]),
        4 => (vec![], vec![]),
        5 => (vec![Family::V4, Family::V6], vec![]),
        _ => (vec![Family::V4], vec![four]),
    };
    facts.ip_families = families;
    facts.cluster_ips = addresses.into_iter().flatten().collect();
}

fn ports(random: &mut Random, count: usize) -> Vec<ServicePort> {
    let one = |_| ServicePort {
        name: random.pick(&PORT_NAMES).into(),
        protocol: protocol(random),
        port: port(random.pick(&NUMBERS)),
        node_port: random.chance(400).then(|| port(random.pick(&NODE_PORTS))),
    };
    (0..count).map(one).collect()
}

fn protocol(random: &mut Random) -> Protocol {
    match random.below(20) {
        0..3 => Protocol::SCTP,
        3 => Protocol::Other("DCCP".into()),
        4..8 => Protocol::UDP,
        _ => Protocol::TCP,
    }
}

fn frontends(random: &mut Random) -> Vec<SocketAddr> {
    let count = 1 + random.below(3);
    (0..count).map(|_| SocketAddr::new(vip(random), random.pick(&NUMBERS))).collect()
}

fn vip(random: &mut Random) -> IpAddr {
    VIPS.get(random.below(VIPS.len())).copied().unwrap_or(v6(1))
}

/// An address that a tenant writes into a service: mostly one of `VIPS`, sometimes one that no service may have.
fn chosen_address(random: &mut Random) -> IpAddr {
    if random.chance(850) {
        return vip(random);
    }
    NOBODYS.get(random.below(NOBODYS.len())).copied().unwrap_or(v6(1))
}

/// Prefixes of session affinity, and an invalid one.
const PREFIXES: [&str; 4] = ["ipv4=24,ipv6=64", "ipv6=32", "ipv4=8", "24"];

fn policy(random: &mut Random) -> TrafficPolicy {
    if random.chance(350) { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

fn some<T>(random: &mut Random, per_mille: usize, mut one: impl FnMut(&mut Random) -> T) -> Vec<T> {
    let count = if random.chance(per_mille) { 1 + random.below(2) } else { 0 };
    (0..count).map(|_| one(random)).collect()
}

fn meta(random: &mut Random) -> Meta {
    Meta {
        uid: Some(random.pick(&["u1", "u2", "u3"]).into()),
        created: (!random.chance(200)).then(|| Timestamp(i64::from(random.pick(&[1, 2, 3])))),
        resource_version: Some(random.pick(&["1", "2", "3"]).into()),
        ..Meta::default()
    }
}

/// A new slice at a position.
pub fn slice(random: &mut Random, position: usize) -> SliceFacts {
    let key = slice_key(position);
    let address_type = match random.below(20) {
        0 => AddressType::Fqdn,
        1..7 => AddressType::Ip(Family::V6),
        _ => AddressType::Ip(Family::V4),
    };
    let ports = (0..1 + random.below(2)).map(|_| slice_port(random)).collect();
    let endpoints = random.below(5);
    SliceFacts {
        service: label(random, &key),
        meta: meta(random),
        headless: random.chance(30),
        address_type,
        ports,
        endpoints: endpoints_of(random, address_type, endpoints),
        endpoints_null: false,
        weights: None,
        key,
    }
}

/// Another version of a slice, mostly with other endpoints.
pub fn changed_slice(random: &mut Random, old: &SliceFacts) -> SliceFacts {
    let mut facts = old.clone();
    match random.below(20) {
        0 | 1 => facts.service = label(random, &old.key),
        2 | 3 => facts.ports = (0..1 + random.below(2)).map(|_| slice_port(random)).collect(),
        4..7 => facts.endpoints = endpoints_of(random, old.address_type, 0),
        7..11 => facts.endpoints = ending(random, old),
        _ => {
            let count = random.below(5);
            facts.endpoints = endpoints_of(random, old.address_type, count);
        }
    }
    facts.meta.resource_version = Some(random.pick(&["1", "2", "3"]).into());
    facts
}

/// A service with one address and one port, and no other settings.
pub fn plain_service(random: &mut Random, position: usize) -> ServiceFacts {
    let key = service_key(position);
    let address = VIPS.get(position % 4).copied().unwrap_or(v4(10, 0, 0, 1));
    let number = ServicePort { name: "".into(), protocol: Protocol::TCP, port: port(80), node_port: None };
    let mut facts = of_source(key);
    (facts.meta, facts.ports) = (meta(random), vec![number]);
    if facts.kind == ServiceType::Static {
        facts.static_frontends = vec![SocketAddr::new(address, 80)];
    } else {
        facts.cluster_ips = vec![address];
    }
    facts
}

/// The name of a port before and after.
pub type Rename = (Arc<str>, Arc<str>);

/// Two ports of the service swap their names, or one gets another name.
pub fn renamed(random: &mut Random, service: &ServiceFacts) -> Vec<Rename> {
    let names: Vec<_> = service.ports.iter().map(|port| Arc::clone(&port.name)).collect();
    match names.as_slice() {
        [a, b, ..] if random.chance(500) => {
            vec![(Arc::clone(a), Arc::clone(b)), (Arc::clone(b), Arc::clone(a))]
        }
        [a, ..] => vec![(Arc::clone(a), random.pick(&PORT_NAMES).into())],
        [] => Vec::new(),
    }
}

/// The new name of a port.
pub fn name_after(names: &[Rename], name: &Arc<str>) -> Arc<str> {
    let found = names.iter().find(|(before, _)| before == name);
    found.map_or_else(|| Arc::clone(name), |(_, after)| Arc::clone(after))
}

/// A slice with some ready endpoints of the service at the same position.
pub fn plain_slice(random: &mut Random, position: usize) -> SliceFacts {
    let family = AddressType::Ip(Family::V4);
    let ports = [SlicePort { name: "".into(), protocol: Protocol::TCP, port: port(8080) }];
    let service = Some(service_name(position % SERVICES_MAX).1.into());
    let endpoints = endpoints_of(random, family, 3);
    let ports = ports.into();
    SliceFacts { ports, service, address_type: family, endpoints, headless: false, ..slice(random, position) }
}

/// The same slice with `endpoints: null`, as a stopping apiserver writes it.
pub fn emptied(old: &SliceFacts) -> SliceFacts {
    let endpoints = EndpointsBuilder::new(Family::V4).finish();
    SliceFacts { endpoints, endpoints_null: true, ports: Box::default(), ..old.clone() }
}

/// A slice with this one address, for a pod that no other slice names.
pub fn claiming(random: &mut Random, position: usize, address: IpAddr, number: NonZeroU16) -> SliceFacts {
    let family = Family::from_address(address);
    let mut builder = EndpointsBuilder::new(family);
    let target = Target {
        kind: "Pod",
        namespace: "default",
        name: "pod".into(),
        uid: UidText::parse(random.pick(&["forged-1", "forged-2"])),
    };
    let (conditions, target) = (conditions(random), Some(target));
    // Only an illegal address is refused, and a held one is legal.
    let _ = builder.push(Endpoint { address, conditions, node: None, zone: None, hints: None, target });
    let ports = [SlicePort { name: "".into(), protocol: Protocol::TCP, port: number }].into();
    let (address_type, endpoints) = (AddressType::Ip(family), builder.finish());
    SliceFacts { ports, address_type, endpoints, ..slice(random, position) }
}

/// The same endpoints, terminating.
fn ending(random: &mut Random, old: &SliceFacts) -> Endpoints {
    let AddressType::Ip(family) = old.address_type else { return old.endpoints.clone() };
    let mut builder = EndpointsBuilder::new(family);
    for endpoint in old.endpoints.iter() {
        let conditions = Conditions { ready: false, serving: random.chance(500), terminating: true };
        // Only an illegal address is refused, and none of these is.
        let _ = builder.push(Endpoint { conditions, ..endpoint });
    }
    builder.finish()
}

/// The same slice, with all endpoints terminating.
pub fn ended(random: &mut Random, old: &SliceFacts) -> SliceFacts {
    SliceFacts { endpoints: ending(random, old), ..old.clone() }
}

fn slice_port(random: &mut Random) -> SlicePort {
    SlicePort {
        name: random.pick(&PORT_NAMES).into(),
        protocol: protocol(random),
        port: port(random.pick(&[8080, 8080, 9090])),
    }
}

/// The name of a service of the slice's own namespace, existing or not; or none.
fn label(random: &mut Random, key: &SliceKey) -> Option<Arc<str>> {
    if random.chance(40) {
        return None;
    }
    let position = random.below(SERVICES_MAX + 1);
    let beside = |position: &usize| {
        let (namespace, _, source) = service_name(*position);
        (namespace, source) == (key.name.namespace(), key.source)
    };
    let position = (position..SERVICES_MAX).find(beside).or_else(|| (0..SERVICES_MAX).find(beside));
    position.map(|position| service_name(position).1.into())
}

fn endpoints_of(random: &mut Random, address_type: AddressType, count: usize) -> Endpoints {
    let AddressType::Ip(family) = address_type else {
        return EndpointsBuilder::new(Family::V4).finish();
    };
    let mut builder = EndpointsBuilder::new(family);
    for _ in 0..count {
        let last = u8::try_from(1 + random.below(6)).unwrap_or(1);
        let hints = random.chance(700).then(|| hints(random));
        let node = random.pick(&NODES);
        let owner = if random.chance(900) { last } else { last + 1 };
        let uid = if random.chance(900) { format!("pod-{owner}") } else { String::new() };
        let endpoint = Endpoint {
            address: if family == Family::V4 { v4(1, 1, 1, last) } else { v6(0x100 + u16::from(last)) },
            conditions: conditions(random),
            node: (!node.is_empty()).then(|| (*node).into()),
            zone: None,
            hints: hints.as_ref(),
            target: Some(Target {
                kind: "Pod",
                namespace: "default",
                name: "pod".into(),
                uid: UidText::parse(&uid),
            }),
        };
        // Only an illegal address is refused, and none of these is.
        let _ = builder.push(endpoint);
    }
    builder.finish()
}

fn hints(random: &mut Random) -> HintSet {
    let names = |random: &mut Random, from: &[&'static str]| {
        let name = random.pick(from);
        let all: Vec<Arc<str>> = if name.is_empty() { vec![] } else { vec![name.into()] };
        all.into_boxed_slice()
    };
    HintSet { zones: names(random, &ZONES), nodes: names(random, &NODES) }
}

fn conditions(random: &mut Random) -> Conditions {
    let (ready, serving, terminating) = match random.below(12) {
        0 => (false, false, false),
        1 => (false, true, true),
        2 => (false, false, true),
        3 => (true, true, true),
        4 => (true, false, false),
        _ => (true, true, false),
    };
    Conditions { ready, serving, terminating }
}

/// The own node.
pub fn node(random: &mut Random) -> NodeFacts {
    let zone = random.chance(700).then(|| random.pick(&ZONES).into());
    let addresses = NODE_ADDRESSES.into_iter().filter(|_| random.chance(700)).collect();
    NodeFacts {
        name: random.pick(&["n1", "n1", "n2"]).into(),
        zone,
        node_port_addresses: addresses,
        addresses: [].into(),
        is_leaving: false,
    }
}

pub fn settings(random: &mut Random) -> Settings {
    let mut bypass = if random.chance(300) { vec![SocketAddr::new(vip(random), 443)] } else { vec![] };
    if random.chance(200) {
        let last = u8::try_from(1 + random.below(6)).unwrap_or(1);
        bypass.push(SocketAddr::new(v4(1, 1, 1, last), 8080));
    }
    let named: Vec<_> = if random.chance(200) { vec![SocketAddr::new(vip(random), 443)] } else { vec![] };
    Settings {
        service_proxy_name: random.chance(100).then(|| "other".into()),
        bypass: bypass.into_iter().collect(),
        reported_apiservers: named.into_iter().collect(),
        frontends_max: None,
        external_ips: external_ips(random),
        hold: hold(random),
        keeps_tcp_members: random.chance(300),
        has_dsr_from: random.chance(300),
        serves_sctp: random.chance(700),
        maglev: random.chance(30),
    }
}

/// Some drained endpoints, of all services or of one.
pub fn drains(random: &mut Random) -> Drains {
    let mut drains = Drains::default();
    for _ in 0..random.below(4) {
        let last = u8::try_from(1 + random.below(6)).unwrap_or(1);
        let address = if random.chance(700) { v4(1, 1, 1, last) } else { v6(0x100 + u16::from(last)) };
        let number = random.chance(300).then(|| port(8080));
        let service = random.chance(500).then(|| service_key(random.below(SERVICES_MAX)).name);
        let by = DrainOrder { uid: 0, user: None, at: Timestamp(1) };
        // There are few, so each fits.
        let _ = drains.add(Drain::new(address, number, service), by);
    }
    drains
}

fn external_ips(random: &mut Random) -> ExternalIps {
    match random.below(6) {
        0 => ExternalIps::None,
        1 => ExternalIps::Within(vec![AddressRange { first: v4(10, 0, 0, 2), last: v4(10, 0, 0, 3) }]),
        _ => ExternalIps::All,
    }
}

/// Mostly the default policy; times short enough to pass.
fn hold(random: &mut Random) -> Policy {
    let on_empty = OnEmpty::ALL.get(random.below(10)).copied().unwrap_or_default();
    Policy {
        on_empty,
        limit: random.pick(&[5, 30, 120]),
        mass_loss_share: random.pick(&[0, 250_000, 1_000_000]),
        mass_loss_window: random.pick(&[10, 30]),
        mass_loss_limit: random.pick(&[60, 600]),
    }
}
