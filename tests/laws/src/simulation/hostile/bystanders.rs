//! Services of several tenants that affect no other tenant, and their own changes: rollouts, scaling, accidents,
//! probes.
//!
//! Invariant: their addresses are allocated as in a cluster: cluster IPs and node ports of their own, and balancers'
//! addresses from a controller. Only one namespace of four, and the apiserver's own service, lose lists without a sign
//! of intent, so that a mass loss depends on these alone.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, Endpoints, EndpointsBuilder, Ingress, ServiceFacts, ServicePort,
    ServiceType, SliceFacts, SlicePort, Target, Timestamp, TrafficPolicy, endpoints::UidText,
};
use holdfast_core::keys::{Family, Protocol, ServiceKey, SliceKey, Source};

use super::super::population::{name, port, v4};
use super::super::random::Random;

/// Names that are prefixes of each other and of those of hostile tenants.
const NAMES: [(&str, &str); BYSTANDERS] = [
    ("prod", "api"),
    ("prod", "api-v2"),
    ("prod", "ap"),
    ("prod", "db"),
    ("prod-2", "api"),
    ("prod-2", "web"),
    ("prod-2", "we"),
    ("default", "kubernetes"),
];

pub(super) const BYSTANDERS: usize = 8;

const SLICES: usize = 2;

const ENDPOINTS: usize = 3;

/// Older than anything that a tenant creates later, and younger than what it has.
const CREATED: i64 = 1_000;

/// The port of the backends.
pub(super) const BACKENDS_PORT: u16 = 8080;

pub(super) const HTTP: u16 = 80;

const ON_EMPTY: [&str; 4] = ["auto", "auto", "hold", "refuse"];

pub(super) fn key(position: usize) -> ServiceKey {
    let (namespace, service) = NAMES.get(position).copied().unwrap_or(("prod", "none"));
    ServiceKey { name: name(namespace, service), source: Source::Kubernetes }
}

fn low(number: usize) -> u8 {
    u8::try_from(number % 250).unwrap_or(0) + 1
}

pub(super) fn cluster_ip(position: usize) -> IpAddr {
    v4(10, 0, 1, low(position))
}

/// The balancer's address, which each third service has.
pub(super) fn balancer(position: usize) -> Option<IpAddr> {
    position.is_multiple_of(3).then(|| v4(198, 51, 100, low(position)))
}

pub(super) fn node_port(position: usize) -> Option<u16> {
    position.is_multiple_of(2).then(|| 30_100 + u16::from(low(position)))
}

fn backend(position: usize, number: usize) -> IpAddr {
    v4(10, 1, low(position), low(number))
}

/// Some backend of some bystander.
pub(super) fn some_backend(random: &mut Random) -> IpAddr {
    backend(random.below(BYSTANDERS), random.below(SLICES * ENDPOINTS))
}

/// Whether a bystander may lose its list without a sign of intent.
pub(super) fn has_accidents(position: usize) -> bool {
    key(position).name.namespace() != "prod-2"
}

/// A service as it was created.
pub(super) fn service(position: usize) -> ServiceFacts {
    let mut facts = ServiceFacts::new(key(position), ServiceType::ClusterIp);
    facts.meta.created = Some(Timestamp(CREATED + i64::from(low(position))));
    facts.meta.uid = Some(format!("bystander-{position}").into());
    facts.cluster_ips = vec![cluster_ip(position)];
    facts.ip_families = vec![Family::V4];
    facts.ports = vec![ServicePort {
        name: "".into(),
        protocol: Protocol::TCP,
        port: port(HTTP),
        node_port: node_port(position).map(port),
    }];
    if facts.ports.iter().any(|port| port.node_port.is_some()) {
        facts.kind = ServiceType::NodePort;
    }
    if let Some(address) = balancer(position) {
        facts.kind = ServiceType::LoadBalancer;
        facts.ingress = vec![Ingress { address, proxied: false }];
    }
    facts
}

/// The service as its owner has edited it.
pub(super) fn edited(random: &mut Random, old: &ServiceFacts) -> ServiceFacts {
    let mut facts = old.clone();
    match random.below(4) {
        0 if facts.kind != ServiceType::ClusterIp => facts.external_policy = policy(random),
        1 => facts.affinity_timeout = random.chance(300).then_some(60),
        2 => facts.on_empty = random.chance(500).then(|| random.pick(&ON_EMPTY).into()),
        _ => {}
    }
    facts.meta.resource_version = Some(random.below(1_000_000).to_string().into());
    facts
}

fn policy(random: &mut Random) -> TrafficPolicy {
    if random.chance(500) { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

/// One of the slices of the service at a position.
pub(super) fn slice_key(position: usize, number: usize) -> SliceKey {
    let key = key(position);
    let own = format!("{}-{}", key.name.name(), number % SLICES);
    SliceKey { name: name(key.name.namespace(), &own), source: key.source }
}

/// A changed slice; `None`: it is deleted.
pub(super) fn slice(random: &mut Random, position: usize, number: usize) -> Option<SliceFacts> {
    let ready = Conditions { ready: true, serving: true, terminating: false };
    let (states, mut headless, mut is_null) = match random.below(20) {
        0..9 => ([Some(ready), some(random, ready), some(random, ready)], false, false),
        9..12 => {
            let serving = random.chance(500);
            ([Some(Conditions { ready: false, serving, terminating: true }); ENDPOINTS], false, false)
        }
        12..14 => {
            ([Some(Conditions { ready: false, serving: false, terminating: false }); ENDPOINTS], false, false)
        }
        14..17 => ([None; ENDPOINTS], false, true),
        17 => ([Some(ready); ENDPOINTS], true, false),
        _ => return (!has_accidents(position)).then(|| with(position, number, [Some(ready); ENDPOINTS])),
    };
    let states = if has_accidents(position) || !is_null { states } else { [Some(ready); ENDPOINTS] };
    headless &= has_accidents(position);
    is_null &= has_accidents(position);
    Some(SliceFacts { headless, endpoints_null: is_null, ..with(position, number, states) })
}

fn some(random: &mut Random, conditions: Conditions) -> Option<Conditions> {
    random.chance(600).then_some(conditions)
}

/// A slice with endpoints in these states.
pub(super) fn with(position: usize, number: usize, states: [Option<Conditions>; ENDPOINTS]) -> SliceFacts {
    let key = slice_key(position, number);
    let service = Some(NAMES.get(position).map_or("none", |(_, service)| *service).into());
    SliceFacts {
        key,
        meta: Default::default(),
        service,
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: port(BACKENDS_PORT) }].into(),
        endpoints: endpoints(position, number, states),
        endpoints_null: false,
        weights: None,
    }
}

fn endpoints(position: usize, number: usize, states: [Option<Conditions>; ENDPOINTS]) -> Endpoints {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for (which, conditions) in states.into_iter().enumerate() {
        let Some(conditions) = conditions else { continue };
        let which = which + ENDPOINTS * (number % SLICES);
        let uid = format!("pod-{position}-{which}");
        let target = Target { kind: "Pod", namespace: "prod", name: "pod".into(), uid: UidText::parse(&uid) };
        let node = Some(if which.is_multiple_of(2) { "n1" } else { "n2" }.into());
        let (address, target) = (backend(position, which), Some(target));
        // Only an illegal address is refused, and none of these is.
        let _ = builder.push(Endpoint { address, conditions, node, zone: None, hints: None, target });
    }
    builder.finish()
}

/// The frontends of the service at a position.
pub(super) fn dialled(position: usize, node: IpAddr) -> impl Iterator<Item = SocketAddr> {
    let vips = [Some(cluster_ip(position)), balancer(position)].into_iter().flatten();
    let node = node_port(position).map(|number| SocketAddr::new(node, number));
    vips.map(|address| SocketAddr::new(address, HTTP)).chain(node)
}

/// All slices with only ready endpoints.
pub(super) fn whole() -> impl Iterator<Item = Arc<SliceFacts>> {
    let ready = Conditions { ready: true, serving: true, terminating: false };
    let all = (0..BYSTANDERS).flat_map(|position| (0..SLICES).map(move |number| (position, number)));
    all.map(move |(position, number)| Arc::new(with(position, number, [Some(ready); ENDPOINTS])))
}
