//! All addresses and ports of a cluster's services, as a client may dial them.
//!
//! Invariant: each is dialled by both transports, whether or not the service has it, and each address also at an
//! unused port. The targets of a service with affinity have the order of its twin's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::Value;

use crate::bed::ask::Transport;

/// All addresses of the node with NodePorts, the primary ones first.
const NODE_ADDRESSES: [&str; 4] = ["10.0.0.5", "fd00:a::5", "10.0.0.55", "fd00:a::55"];

/// In the range of cluster IPs, but never allocated by an apiserver on its own.
const UNALLOCATED: [&str; 2] = ["192.168.255.254", "fd00:192:168::fffe"];

/// A port that no service has.
const OTHER_PORT: u16 = 9;

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Cluster,
    External,
    Balancer,
    NodePort,
    Health,
    /// In the range of cluster IPs, and of no service that this node serves.
    Unallocated,
}

/// An address, a port and a transport.
#[derive(Clone, Debug)]
pub struct Target {
    pub service: String,
    pub kind: Kind,
    pub to: SocketAddr,
    pub transport: Transport,
    /// Whether the service has this target.
    pub has: bool,
    /// The addresses of its service's endpoints, ready or not.
    pub endpoints: Arc<BTreeSet<IpAddr>>,
    /// For a service with affinity: the index of its twin's same target.
    pub twin: Option<usize>,
}

/// The targets of services and slices as an apiserver returns them.
pub fn targets(services: &[Value], slices: &[Value]) -> Vec<Target> {
    let endpoints = endpoints(slices);
    let mut services: Vec<&Value> = services.iter().filter(|service| is_dialled(service)).collect();
    services.sort_by_key(|service| number_of(service));
    let mut all: Vec<Target> = Vec::new();
    let mut before = 0;
    for service in services {
        let begin = all.len();
        let is_sticky = text(service, "/spec/sessionAffinity") == "ClientIP";
        let endpoints = endpoints.get(text(service, "/metadata/name")).cloned().unwrap_or_default();
        let of_this = of_service(service).into_iter().enumerate();
        all.extend(of_this.map(|(at, target)| Target {
            endpoints: Arc::clone(&endpoints),
            twin: is_sticky.then_some(before + at),
            ..target
        }));
        before = begin;
    }
    let nobodys = UNALLOCATED.iter().filter_map(|ip| Some(SocketAddr::new(ip.parse().ok()?, 80)));
    all.extend(nobodys.flat_map(|to| both("-", Kind::Unallocated, to, |_| false)));
    all
}

/// The endpoint addresses of all slices, ready or not.
fn endpoints(slices: &[Value]) -> BTreeMap<&str, Arc<BTreeSet<IpAddr>>> {
    let mut all: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
    for slice in slices {
        let of = all.entry(text(slice, "/metadata/labels/kubernetes.io~1service-name")).or_default();
        let addresses = list(slice, "/endpoints").filter_map(|it| it.pointer("/addresses/0")?.as_str());
        of.extend(addresses.filter_map(|ip| ip.parse::<IpAddr>().ok()));
    }
    all.into_iter().map(|(service, addresses)| (service, Arc::new(addresses))).collect()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn number_of(service: &Value) -> usize {
    text(service, "/metadata/name").trim_start_matches('s').parse().unwrap_or(usize::MAX)
}

fn is_dialled(service: &Value) -> bool {
    number_of(service) != usize::MAX
        && text(service, "/spec/type") != "ExternalName"
        && text(service, "/spec/clusterIP") != "None"
}

pub(super) fn both(
    service: &str,
    kind: Kind,
    to: SocketAddr,
    has: impl Fn(Transport) -> bool,
) -> Vec<Target> {
    let target = |transport| Target {
        service: service.to_owned(),
        kind,
        to,
        transport,
        has: has(transport),
        endpoints: Arc::default(),
        twin: None,
    };
    TRANSPORTS.map(target).into()
}

fn of_service(service: &Value) -> Vec<Target> {
    let of_others = service.pointer("/metadata/labels/service.kubernetes.io~1service-proxy-name").is_some();
    let cluster = if of_others { Kind::Unallocated } else { Kind::Cluster };
    let addresses = |pointer, kind| list(service, pointer).filter_map(move |ip| Some((kind, ip.as_str()?)));
    let balancers = list(service, "/status/loadBalancer/ingress");
    let balancers = balancers.filter_map(|ingress| Some((Kind::Balancer, ingress.get("ip")?.as_str()?)));
    let fronts = addresses("/spec/clusterIPs", cluster).chain(addresses("/spec/externalIPs", Kind::External));
    let fronts = fronts.chain(balancers).filter_map(|(kind, ip)| Some((kind, ip.parse().ok()?)));
    let mut all: Vec<Target> =
        fronts.flat_map(|(kind, ip)| at_address(service, kind, ip, of_others)).collect();
    all.extend(at_node(service, of_others));
    all
}

fn port_of(port: &Value, field: &str) -> Option<u16> {
    port.get(field)?.as_u64()?.try_into().ok()
}

/// Whether one of the ports has this number and transport.
fn has(service: &Value, field: &str, number: u16, transport: Transport) -> bool {
    let word = if transport == Transport::Tcp { "TCP" } else { "UDP" };
    list(service, "/spec/ports")
        .any(|port| port_of(port, field) == Some(number) && text(port, "/protocol") == word)
}

fn at_address(service: &Value, kind: Kind, ip: IpAddr, of_others: bool) -> Vec<Target> {
    let name = text(service, "/metadata/name");
    let mut ports: Vec<u16> = list(service, "/spec/ports").filter_map(|port| port_of(port, "port")).collect();
    ports.push(OTHER_PORT);
    ports.dedup();
    let at = |port: u16| {
        both(name, kind, SocketAddr::new(ip, port), |it| !of_others && has(service, "port", port, it))
    };
    ports.into_iter().flat_map(at).collect()
}

/// The targets of NodePorts and of the health check, at each address of the node.
fn at_node(service: &Value, of_others: bool) -> Vec<Target> {
    let name = text(service, "/metadata/name");
    let nodes = || NODE_ADDRESSES.iter().filter_map(|ip| ip.parse::<IpAddr>().ok());
    let node_ports = list(service, "/spec/ports").filter_map(|port| port_of(port, "nodePort"));
    let at_port = |port: u16| {
        let is_there = move |it| !of_others && has(service, "nodePort", port, it);
        nodes().flat_map(move |ip| both(name, Kind::NodePort, SocketAddr::new(ip, port), is_there))
    };
    let health = service.pointer("/spec/healthCheckNodePort").and_then(Value::as_u64);
    let health = health.and_then(|port| u16::try_from(port).ok());
    let at_health = |port: u16| {
        let is_tcp = move |it| !of_others && it == Transport::Tcp;
        nodes().flat_map(move |ip| both(name, Kind::Health, SocketAddr::new(ip, port), is_tcp))
    };
    node_ports.flat_map(at_port).chain(health.into_iter().flat_map(at_health)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, affinity: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "192.168.0.7", "clusterIPs": ["192.168.0.7"],
                "sessionAffinity": affinity, "healthCheckNodePort": 31000,
                "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30000}, {"port": 80, "protocol": "UDP", "nodePort": 30001}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"hostname": "lb"}]}},
        })
    }

    #[test]
    fn each_address_has_targets_at_each_port_and_at_an_unused_one() {
        let all = targets(&[service("s2", "None"), service("kubernetes", "None")], &[]);
        let count = |kind| all.iter().filter(|target| target.kind == kind).count();
        assert_eq!([count(Kind::Cluster), count(Kind::Balancer), count(Kind::NodePort)], [4, 4, 16]);
        assert_eq!([count(Kind::Health), count(Kind::Unallocated)], [8, 4]);
        let has = |port: u16| all.iter().filter(|it| it.to.port() == port && it.has).count();
        assert_eq!([has(80), has(9), has(30000), has(30001), has(31000)], [4, 0, 4, 4, 4]);
    }

    #[test]
    fn a_target_with_affinity_has_its_twins_index() {
        let all = targets(&[service("s10", "ClientIP"), service("s9", "None")], &[]);
        for (at, target) in all.iter().enumerate().filter(|(_, target)| target.service == "s10") {
            let twin = &all[target.twin.unwrap()];
            assert_eq!(
                (&*twin.service, twin.to, twin.transport),
                ("s9", target.to, target.transport),
                "{at}"
            );
        }
        assert!(all.iter().all(|target| target.twin.is_some() == (target.service == "s10")));
    }
}
