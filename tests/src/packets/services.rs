//! The services of the table as objects: each has both families, both protocols, and every kind of address.
//!
//! Invariant: a service's number is in each of its addresses and in its NodePort, so that a capture is readable.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{Family, PORT, TARGET_PORT};
use crate::bed::Location;
use crate::bed::fabric::NODE_ADDRESSES;

/// The first is the node under test.
const NODES: [&str; 2] = ["n1", "n2"];

/// A server behind a service.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Its name in replies and in the table.
    pub name: &'static str,
    pub place: Location<'static>,
    pub(super) addresses: [&'static str; 2],
    pub(super) node: &'static str,
}

const fn backend(
    name: &'static str,
    place: Location<'static>,
    addresses: [&'static str; 2],
    node: &'static str,
) -> Backend {
    Backend { name, place, addresses, node }
}

impl Backend {
    /// The addresses on which it listens.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        let socket = |address: &&str| Some(SocketAddr::new(address.parse().ok()?, TARGET_PORT));
        self.addresses.iter().filter_map(socket).collect()
    }
}

/// Pods of both kinds and processes of the host, on both nodes.
pub const BACKENDS: [Backend; 7] = [
    backend("a", Location::pod("pod-a"), ["10.244.1.10", "fd00:244:1::10"], NODES[0]),
    backend("b", Location::pod("pod-b"), ["10.244.1.11", "fd00:244:1::11"], NODES[0]),
    backend("c", Location::pod("pod-c"), ["10.244.2.10", "fd00:244:2::10"], NODES[0]),
    backend("d", Location::pod("pod-d"), ["10.244.2.11", "fd00:244:2::11"], NODES[0]),
    backend("host", Location::NODE, NODE_ADDRESSES, NODES[0]),
    backend("r", Location::far("pod-r"), ["10.244.9.10", "fd00:244:9::10"], NODES[1]),
    backend("host2", Location::far("node2"), ["10.0.0.6", "fd00:a::6"], NODES[1]),
];

/// A service of the table.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    pub name: &'static str,
    pub number: u8,
    /// `a` is ready, `a-` is terminating and serving, `a!` is not ready.
    endpoints: &'static [&'static str],
    traits: &'static [Trait],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trait {
    ExternalLocal,
    InternalLocal,
    /// Has client affinity.
    Sticky,
    /// Accepts only the first outside client.
    Ranges,
    /// No socket listens at its backends' port.
    Closed,
}

use Trait::{Closed, ExternalLocal, InternalLocal, Ranges, Sticky};

const fn service(
    number: u8,
    name: &'static str,
    endpoints: &'static [&'static str],
    traits: &'static [Trait],
) -> Service {
    Service { name, number, endpoints, traits }
}

/// The services of the table.
pub const SERVICES: [Service; 21] = [
    service(1, "here", &["a"], &[]),
    service(2, "bridged", &["c"], &[]),
    service(3, "away", &["r"], &[]),
    service(4, "host", &["host"], &[]),
    service(5, "host-away", &["host2"], &[]),
    service(6, "many", &["a", "c", "r"], &[]),
    service(7, "none", &[], &[]),
    service(8, "unready", &["a!"], &[]),
    service(9, "ending", &["a-"], &[]),
    service(10, "local", &["a", "r"], &[ExternalLocal]),
    service(11, "local-away", &["r"], &[ExternalLocal]),
    service(12, "local-none", &[], &[ExternalLocal]),
    service(13, "local-ending", &["a-", "r"], &[ExternalLocal]),
    service(14, "inside-local", &["a", "r"], &[InternalLocal]),
    service(15, "inside-away", &["r"], &[InternalLocal]),
    service(16, "ranged", &["a"], &[Ranges]),
    service(17, "ranged-none", &[], &[Ranges]),
    service(18, "sticky", &["a", "c", "r"], &[Sticky]),
    service(19, "local-here", &["a", "c"], &[ExternalLocal]),
    service(20, "closed", &["a"], &[Closed]),
    service(21, "closed-away", &["r"], &[Closed]),
];

/// The service written last: a proxy that serves it has seen all others.
pub fn sign() -> Service {
    service(99, "sign", &["b"], &[])
}

/// A service that tests change while they run.
pub fn changing() -> Service {
    service(98, "changing", &[], &[])
}

impl Service {
    /// The same service with other endpoints.
    pub fn with(self, endpoints: &'static [&'static str]) -> Self {
        Self { endpoints, ..self }
    }

    /// The same service with the external policy Local.
    pub fn local(self) -> Self {
        Self { traits: &[ExternalLocal], ..self }
    }

    pub fn node_port(&self) -> u16 {
        30_000 + u16::from(self.number)
    }

    /// The frontend for a word of the table. `cluster:81` is a port that the service does not have.
    pub fn frontend(&self, address: &str, family: Family) -> Option<SocketAddr> {
        let number = self.number;
        let (kind, port) = match address.split_once(':') {
            Some((kind, port)) => (kind, port.parse().ok()?),
            None => (address, if address.starts_with("node") { self.node_port() } else { PORT }),
        };
        let both = match kind {
            "cluster" => [format!("192.168.7.{number}"), format!("fd00:192:168::7{number:02}")],
            "balancer" => [format!("203.0.113.{number}"), format!("2001:db8:113::{number}")],
            "external" => [format!("198.51.100.{number}"), format!("2001:db8:51::{number}")],
            // In the range of cluster IPs, but of no service.
            "unallocated" => ["192.168.200.1", "fd00:192:168::fade"].map(str::to_owned),
            "node" => NODE_ADDRESSES.map(str::to_owned),
            "node-other" => ["10.0.0.55", "fd00:a::55"].map(str::to_owned),
            _ => return None,
        };
        let [v4, v6] = &both;
        Some(SocketAddr::new(family.of([v4, v6]).parse().ok()?, port))
    }

    fn both(&self, address: &str) -> Vec<String> {
        let families = [Family::V4, Family::V6].into_iter();
        families.filter_map(|family| Some(self.frontend(address, family)?.ip().to_string())).collect()
    }

    fn target_port(&self) -> u16 {
        if self.has(Closed) { TARGET_PORT + 1 } else { TARGET_PORT }
    }

    fn has(&self, what: Trait) -> bool {
        self.traits.contains(&what)
    }

    /// The service with its status, and a slice for each family.
    pub fn objects(&self) -> Vec<Value> {
        vec![self.object(), self.slice(Family::V4), self.slice(Family::V6)]
    }

    fn object(&self) -> Value {
        let policy = |what| if self.has(what) { "Local" } else { "Cluster" };
        let port = |protocol: &str| {
            json!({
                "name": protocol.to_lowercase(), "protocol": protocol, "port": PORT,
                "targetPort": self.target_port(), "nodePort": self.node_port(),
            })
        };
        let balancers: Vec<Value> =
            self.both("balancer").iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        let clusters = self.both("cluster");
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": clusters.first(), "clusterIPs": clusters,
                "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
                "externalIPs": self.both("external"),
                "externalTrafficPolicy": policy(ExternalLocal), "internalTrafficPolicy": policy(InternalLocal),
                "sessionAffinity": if self.has(Sticky) { "ClientIP" } else { "None" },
                "ports": [port("TCP"), port("UDP")],
            },
            "status": {"loadBalancer": {"ingress": balancers}},
        });
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut).filter(|_| self.has(Ranges))
        {
            spec.insert("loadBalancerSourceRanges".to_owned(), json!(["10.20.0.2/32", "fd00:20::2/128"]));
        }
        object
    }

    fn slice(&self, family: Family) -> Value {
        let (kind, suffix) = family.of([("IPv4", "v4"), ("IPv6", "v6")]);
        let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": self.target_port()});
        let endpoints: Vec<Value> = self.endpoints.iter().filter_map(|word| endpoint(word, family)).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {
                "name": format!("{}-{suffix}", self.name), "namespace": "default",
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "ports": [port("TCP"), port("UDP")], "endpoints": endpoints,
        })
    }
}

fn endpoint(word: &str, family: Family) -> Option<Value> {
    let name = word.trim_end_matches(['-', '!']);
    let backend = BACKENDS.iter().find(|backend| backend.name == name)?;
    let (ready, serving, terminating) = match word.strip_prefix(name)? {
        "-" => (false, true, true),
        "!" => (false, false, false),
        _ => (true, true, false),
    };
    Some(json!({
        "addresses": [family.of(backend.addresses)], "nodeName": backend.node,
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
    }))
}

/// All objects, in the order of writing.
pub fn objects() -> Vec<Value> {
    SERVICES.iter().chain([&sign()]).flat_map(Service::objects).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_a_number_of_its_own() {
        let mut numbers: Vec<u8> = SERVICES.iter().map(|service| service.number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), SERVICES.len());
    }

    #[test]
    fn endpoint_words_give_their_conditions() {
        let ending = endpoint("a-", Family::V6).unwrap();
        assert_eq!(ending["addresses"][0], "fd00:244:1::10");
        assert_eq!(ending["conditions"], json!({"ready": false, "serving": true, "terminating": true}));
        assert!(endpoint("nobody", Family::V4).is_none());
    }
}
