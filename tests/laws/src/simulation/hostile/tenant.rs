//! What a hostile tenant may write in namespaces of its own: any field of a Service that the apiserver lets a user set,
//! any slice, thousands of both, at any rate.
//!
//! Invariant: cluster IPs and node ports are allocated as by an apiserver, each to one service. A service with a
//! balancer's address in its status is younger than every bystander.

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Ingress, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort, Target, Timestamp, TrafficPolicy, endpoints::UidText,
};
use holdfast_core::keys::{Family, Protocol, ServiceKey, SliceKey, Source};

use super::super::population::{name, port, v4};
use super::super::random::Random;
use super::bystanders::{self, BACKENDS_PORT, BYSTANDERS, HTTP};

/// How many services the tenant creates and deletes.
pub(super) const SERVICES: usize = 3_000;

/// Slices of these services, and slices without a service.
pub(super) const SLICES: usize = 400;

/// The addresses of the node that answer node ports.
pub(super) const NODE: [IpAddr; 2] = [v4(192, 168, 0, 1), v4(192, 168, 0, 2)];

/// Addresses that all services of the tenant claim.
pub(super) const SHARED: [IpAddr; 3] = [v4(203, 0, 113, 1), v4(203, 0, 113, 2), v4(203, 0, 113, 3)];

const NUMBERS: [u16; 6] = [HTTP, HTTP, 443, BACKENDS_PORT, 10_250, 10_256];

/// The namespace of services with slices; sometimes all of these slices are deleted at once.
const NAMESPACE: &str = "pro";

/// The namespace of services with addresses alone.
const OTHER: &str = "prod-3";

fn namespace(position: usize) -> &'static str {
    if position % 8 == 7 { OTHER } else { NAMESPACE }
}

pub(super) fn key(position: usize) -> ServiceKey {
    let own = if position == 0 { "api".to_owned() } else { format!("api-{position}") };
    ServiceKey { name: name(namespace(position), &own), source: Source::Kubernetes }
}

/// The key of a slice in the namespace that has slices.
fn slice_key(position: usize) -> SliceKey {
    SliceKey { name: name(NAMESPACE, &format!("slice-{position}")), source: Source::Kubernetes }
}

/// A service that asks for whatever it can.
pub(super) fn service(random: &mut Random, position: usize) -> ServiceFacts {
    let mut facts = ServiceFacts::new(key(position), ServiceType::ClusterIp);
    let (high, low) = (position / 250, position % 250);
    let byte = |number: usize| u8::try_from(number).unwrap_or(0);
    facts.cluster_ips = vec![v4(10, 9, byte(high), byte(low))];
    facts.ip_families = vec![Family::V4];
    facts.meta.uid = Some(format!("tenant-{position}").into());
    facts.ports = ports(random, position);
    facts.external_ips = (0..random.below(4)).map(|_| wanted(random)).collect();
    facts.on_empty = random.chance(100).then(|| random.pick(&["hold", "refuse", "pass", "x"]).into());
    facts.external_policy = if random.chance(300) { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let has_balancer = random.chance(250);
    // One without a balancer may be older than any bystander.
    let created = if has_balancer { 5_000 + random.below(5) } else { random.below(5_000) };
    facts.meta.created = Some(Timestamp(i64::try_from(created).unwrap_or(0)));
    if has_balancer {
        facts.kind = ServiceType::LoadBalancer;
        facts.ingress = vec![Ingress { address: of_a_balancer(random), proxied: random.chance(100) }];
    }
    facts
}

fn ports(random: &mut Random, position: usize) -> Vec<ServicePort> {
    let node_port = u16::try_from(position).ok().map(|position| port(32_000 + position % 700));
    let mut ports = vec![ServicePort {
        name: "".into(),
        protocol: if random.chance(200) { Protocol::UDP } else { Protocol::TCP },
        port: port(number(random)),
        // There are 700 node ports for tenants, and each belongs to one service.
        node_port: node_port.filter(|_| position < 700 && random.chance(500)),
    }];
    for which in 0..random.below(4) {
        let number = 9_000 + u16::try_from(which).unwrap_or(0);
        ports.push(ServicePort {
            name: format!("p{which}").into(),
            protocol: Protocol::TCP,
            port: port(number),
            node_port: None,
        });
    }
    ports
}

/// A port number that the tenant chooses: one that others use too, or a node port of a bystander.
fn number(random: &mut Random) -> u16 {
    let theirs = bystanders::node_port(random.below(BYSTANDERS));
    theirs.filter(|_| random.chance(300)).unwrap_or_else(|| random.pick(&NUMBERS))
}

/// An address that the tenant tries to get: of a bystander, of the node, of a backend, or a shared one.
fn wanted(random: &mut Random) -> IpAddr {
    let position = random.below(BYSTANDERS);
    match random.below(8) {
        0 => bystanders::cluster_ip(position),
        1 => bystanders::balancer(position).unwrap_or(SHARED[0]),
        2 => NODE.get(random.below(NODE.len())).copied().unwrap_or(SHARED[0]),
        3 => bystanders::some_backend(random),
        _ => shared(random),
    }
}

fn shared(random: &mut Random) -> IpAddr {
    SHARED.get(random.below(SHARED.len())).copied().unwrap_or(SHARED[0])
}

/// An address from a controller, or from a tenant with the right to write a status.
fn of_a_balancer(random: &mut Random) -> IpAddr {
    match random.below(6) {
        0 => bystanders::balancer(3 * random.below(BYSTANDERS / 3)).unwrap_or(SHARED[0]),
        1 => NODE.get(random.below(NODE.len())).copied().unwrap_or(SHARED[0]),
        _ => shared(random),
    }
}

/// A slice that lists bystanders' backends as pods of the tenant, or the tenant's own pods, or no endpoint.
pub(super) fn slice(random: &mut Random, position: usize) -> SliceFacts {
    let mut builder = EndpointsBuilder::new(Family::V4);
    let is_forged = random.chance(500);
    for which in 0..random.below(8) {
        let own = v4(10, 7, u8::try_from(position % 250).unwrap_or(0), u8::try_from(which + 1).unwrap_or(1));
        let address = if is_forged { bystanders::some_backend(random) } else { own };
        let uid = random.pick(&["forged-1", "forged-2", "", "pod-0-0"]);
        let target = Target { kind: "Pod", namespace: "prod", name: "pod".into(), uid: UidText::parse(uid) };
        let conditions = conditions(random);
        let (node, target) = (Some("n1".into()), Some(target));
        // Only an illegal address or a slice that is too large is refused, and neither is made here.
        let _ = builder.push(Endpoint { address, conditions, node, zone: None, hints: None, target });
    }
    let number = if random.chance(800) { BACKENDS_PORT } else { number(random) };
    SliceFacts {
        key: slice_key(position),
        meta: Default::default(),
        service: label(random, position),
        headless: random.chance(50),
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: port(number) }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }
}

fn conditions(random: &mut Random) -> Conditions {
    let ready = random.chance(800);
    Conditions { ready, serving: ready || random.chance(300), terminating: random.chance(150) }
}

/// The service that a slice names: one of the tenant's own, none, or one that only bystanders have.
fn label(random: &mut Random, position: usize) -> Option<Arc<str>> {
    match random.below(10) {
        0 => None,
        1 => Some("db".into()),
        _ => Some(key(position - usize::from(position % 8 == 7)).name.name().into()),
    }
}
