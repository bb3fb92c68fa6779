//! Random clusters on a fabric: services of every kind, with endpoints in every place of it, drawn from a seed.
//!
//! Invariant: the seed alone decides, and no two services share an address and port. An endpoint is where its slice
//! says. Each second service has session affinity and otherwise equals the one before it: a client sees all backends
//! of the one without affinity, but only one backend of its twin.

mod ask;
mod judge;
mod targets;

use std::net::SocketAddr;

use holdfast_laws::simulation::Random;
use serde_json::{Value, json};

pub use self::ask::{CLIENTS, ComparisonSummary, Side, compare};
pub use self::judge::{Answers, Difference, REASONS, SourceOwner};
pub use self::targets::{Kind, Target, targets};
use super::{BACKENDS, Family};
use crate::peers::mixed;

/// Endpoints outside of the cluster: an address in the clients' network.
const FAR: [&str; 2] = ["10.20.0.9", "fd00:20::9"];

const ZONES: [&str; 3] = ["zone-a", "zone-a", "zone-b"];
const NODES: [&str; 2] = ["n1", "n2"];

/// Endpoints of a service. With more than three, a client rarely sees all of them.
const ENDPOINTS_MAX: usize = 3;

const PORT_NAMES: [&str; 3] = ["a", "b", "c"];

/// No two services share a port, so several may share an address.
const PORTS_EACH: usize = 10;

/// Source ranges as users write them. Some contain the first outside client, some the second one, and one contains the
/// node.
const RANGES: [&[&str]; 8] = [
    &["10.20.0.2/32", "fd00:20::2/128"],
    &["10.20.0.0/24"],
    &["10.20.0.0/30", "10.20.0.3/32", "10.20.0.3/32", "fd00:20::/64", "fd00:20::3/128"],
    &["10.20.0.3/32", "10.244.0.0/16", "fd00:20::3/128", "fd00:244::/32"],
    &["0.0.0.0/0", "10.99.0.0/16", "fd00:99::/64"],
    &["10.0.0.0/24", "fd00:a::/64"],
    &["10.99.0.0/16", "::/0"],
    &[" 10.20.0.3/32 ", "10.20.0.2/31", "fd00:20::2/127"],
];

/// Where a service is dialled besides its cluster IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Outside {
    #[default]
    Nowhere,
    /// At an external address of its own.
    Own,
    /// At an external address that it shares with others, on other ports.
    Shared,
    /// At the node's primary address.
    Node,
    /// At another address of the node.
    NodeOther,
    /// At a host name.
    Named,
    /// At an address whose traffic the balancer proxies.
    Elsewhere,
}

impl Outside {
    /// The addresses of the n-th service.
    fn addresses(self, range: [&str; 2], number: usize) -> Vec<String> {
        let [four, six] = range;
        let of = |last: usize| vec![format!("{four}{last}"), format!("{six}{last:x}")];
        match self {
            Self::Nowhere | Self::Named | Self::Elsewhere => vec![],
            Self::Own => of(number + 1),
            Self::Shared => of(250),
            Self::Node => ["10.0.0.5", "fd00:a::5"].map(str::to_owned).into(),
            Self::NodeOther => ["10.0.0.55", "fd00:a::55"].map(str::to_owned).into(),
        }
    }
}

const EXTERNAL: [&str; 2] = ["198.51.100.", "2001:db8:51::"];
const BALANCER: [&str; 2] = ["203.0.113.", "2001:db8:113::"];

/// A service without its name and addresses.
#[derive(Clone, Debug, Default)]
struct Shape {
    kind: &'static str,
    families: &'static [&'static str],
    internal_local: bool,
    external_local: bool,
    external: Outside,
    balancer: Outside,
    ranges: &'static [&'static str],
    node_ports: bool,
    of_another_proxy: bool,
    protocols: Vec<&'static str>,
    slices: Vec<(&'static str, Vec<Value>)>,
}

impl Shape {
    fn draw(random: &mut Random) -> Self {
        let kinds = [
            "ClusterIP",
            "ClusterIP",
            "NodePort",
            "NodePort",
            "LoadBalancer",
            "LoadBalancer",
            "LoadBalancer",
        ];
        let kind =
            if random.chance(40) { random.pick(&["None", "ExternalName"]) } else { random.pick(&kinds) };
        let both = [&["IPv4"][..], &["IPv6"], &["IPv4", "IPv6"], &["IPv6", "IPv4"], &["IPv4", "IPv6"]];
        let external = [Outside::Own, Outside::Own, Outside::Shared, Outside::NodeOther];
        let balancer = [
            Outside::Own,
            Outside::Own,
            Outside::Own,
            Outside::Own,
            Outside::Shared,
            Outside::Shared,
            Outside::Node,
            Outside::Named,
            Outside::Elsewhere,
        ];
        let is_balanced = kind == "LoadBalancer";
        let ranges = if is_balanced && random.chance(500) { random.pick(&RANGES) } else { &[] };
        Self {
            kind,
            families: random.pick(&both),
            internal_local: random.chance(250),
            external_local: random.chance(400),
            external: if random.chance(350) { random.pick(&external) } else { Outside::Nowhere },
            balancer: if is_balanced { random.pick(&balancer) } else { Outside::Nowhere },
            ranges,
            node_ports: !random.chance(300),
            of_another_proxy: random.chance(30),
            protocols: (0..=random.below(PORT_NAMES.len()))
                .map(|_| random.pick(&["TCP", "TCP", "UDP"]))
                .collect(),
            slices: slices(random),
        }
    }

    /// A service that clients cannot dial cannot have affinity.
    fn can_be_sticky(&self) -> bool {
        !matches!(self.kind, "None" | "ExternalName")
    }

    fn service(&self, number: usize, is_sticky: bool) -> Value {
        let mut meta = json!({"name": name_of(number), "namespace": "default"});
        if self.of_another_proxy {
            insert(&mut meta, "labels", json!({"service.kubernetes.io/service-proxy-name": "other"}));
        }
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": self.spec(number, is_sticky),
            "status": {"loadBalancer": {"ingress": self.ingress(number)}},
        })
    }

    fn spec(&self, number: usize, is_sticky: bool) -> Value {
        let mut spec = json!({"type": self.kind, "ports": self.ports(number)});
        if self.kind == "ExternalName" {
            return json!({"type": "ExternalName", "externalName": "example.com"});
        }
        if self.kind == "None" {
            insert(&mut spec, "type", "ClusterIP".into());
            insert(&mut spec, "clusterIP", "None".into());
            return spec;
        }
        let is_single = self.families.len() == 1;
        insert(&mut spec, "ipFamilies", self.families.into());
        insert(
            &mut spec,
            "ipFamilyPolicy",
            if is_single { "SingleStack" } else { "RequireDualStack" }.into(),
        );
        insert(&mut spec, "sessionAffinity", if is_sticky { "ClientIP" } else { "None" }.into());
        insert(&mut spec, "internalTrafficPolicy", policy(self.internal_local).into());
        let externals = self.external.addresses(EXTERNAL, number);
        if !externals.is_empty() {
            insert(&mut spec, "externalIPs", externals.into());
        }
        if self.kind != "ClusterIP" || self.external != Outside::Nowhere {
            insert(&mut spec, "externalTrafficPolicy", policy(self.external_local).into());
        }
        if self.kind == "LoadBalancer" {
            insert(&mut spec, "allocateLoadBalancerNodePorts", self.node_ports.into());
        }
        if !self.ranges.is_empty() {
            insert(&mut spec, "loadBalancerSourceRanges", self.ranges.into());
        }
        spec
    }

    /// Two ports with different protocols may share a number.
    fn ports(&self, number: usize) -> Vec<Value> {
        let base = 1000 + number * PORTS_EACH;
        let is_shared = self.protocols.first() != self.protocols.get(1);
        let port = |(index, (name, protocol)): (usize, (&&str, &&str))| {
            let own = if index == 1 && is_shared { base } else { base + index };
            json!({"name": name, "port": own, "protocol": protocol})
        };
        PORT_NAMES.iter().zip(&self.protocols).enumerate().map(port).collect()
    }

    fn ingress(&self, number: usize) -> Vec<Value> {
        match self.balancer {
            Outside::Named => vec![json!({"hostname": "lb.example.com"})],
            Outside::Elsewhere => {
                let addresses = Outside::Own.addresses(BALANCER, number).into_iter();
                addresses.map(|ip| json!({"ip": ip, "ipMode": "Proxy"})).collect()
            }
            at => {
                let addresses = at.addresses(BALANCER, number).into_iter();
                addresses.map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect()
            }
        }
    }

    fn slices(&self, number: usize) -> Vec<Value> {
        let base = 20_000 + number * PORTS_EACH;
        let port = |(index, (name, protocol)): (usize, (&&str, &&str))| json!({"name": name, "port": base + index, "protocol": protocol});
        let ports: Vec<Value> = PORT_NAMES.iter().zip(&self.protocols).enumerate().map(port).collect();
        let slice = |(kind, endpoints): &(&str, Vec<Value>)| {
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
                "metadata": {
                    "name": format!("{}-{}", name_of(number), kind.to_lowercase()), "namespace": "default",
                    "labels": {"kubernetes.io/service-name": name_of(number)},
                },
                "ports": ports, "endpoints": endpoints,
            })
        };
        self.slices.iter().map(slice).collect()
    }
}

fn name_of(number: usize) -> String {
    format!("s{number}")
}

fn policy(is_local: bool) -> &'static str {
    if is_local { "Local" } else { "Cluster" }
}

fn insert(object: &mut Value, field: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(field.to_owned(), value);
    }
}

/// A slice for each family; rarely one is missing.
fn slices(random: &mut Random) -> Vec<(&'static str, Vec<Value>)> {
    let kinds = [("IPv4", Family::V4), ("IPv6", Family::V6)].into_iter();
    let kinds: Vec<_> = kinds.filter(|_| !random.chance(80)).collect();
    kinds.into_iter().map(|(kind, family)| (kind, endpoints(random, family))).collect()
}

fn endpoints(random: &mut Random, family: Family) -> Vec<Value> {
    let mut places: Vec<([&str; 2], Option<&str>)> =
        BACKENDS.iter().map(|backend| (backend.addresses, Some(backend.node))).chain([(FAR, None)]).collect();
    random.shuffle(&mut places);
    // Hints count only if every used endpoint has them.
    let is_hinted = random.chance(300);
    let is_by_node = random.chance(500);
    let mood = random.pick(&[SliceState::Ready, SliceState::Ready, SliceState::Mixed, SliceState::Ending]);
    let count = random.below(ENDPOINTS_MAX + 1);
    let endpoint = |(addresses, node): &([&str; 2], Option<&str>)| {
        let mut endpoint =
            json!({"addresses": [family.of(*addresses)], "conditions": mood.conditions(random)});
        if let Some(node) = node.filter(|_| !random.chance(80)) {
            insert(&mut endpoint, "nodeName", node.into());
        }
        if random.chance(800) {
            insert(&mut endpoint, "zone", random.pick(&ZONES).into());
        }
        if is_hinted && !random.chance(30) {
            insert(&mut endpoint, "hints", hints(random, is_by_node));
        }
        endpoint
    };
    places.iter().take(count).map(endpoint).collect()
}

fn hints(random: &mut Random, is_by_node: bool) -> Value {
    let mut hints = json!({"forZones": [{"name": random.pick(&ZONES)}]});
    if is_by_node {
        insert(&mut hints, "forNodes", json!([{"name": random.pick(&NODES)}]));
    }
    hints
}

/// The common state of a slice's endpoints.
#[derive(Clone, Copy, Default)]
enum SliceState {
    #[default]
    Ready,
    Mixed,
    Ending,
}

impl SliceState {
    fn conditions(self, random: &mut Random) -> Value {
        match self {
            Self::Ready => json!({"ready": true, "serving": true, "terminating": false}),
            Self::Mixed => mixed(random).into(),
            Self::Ending => json!({"ready": false, "serving": random.chance(600), "terminating": true}),
        }
    }
}

/// The services of a seed with their statuses, and their slices.
pub fn draw(seed: u64, count: usize) -> (Vec<Value>, Vec<Value>) {
    let mut random = Random::new(seed);
    let mut shapes: Vec<(Shape, bool)> = Vec::new();
    while shapes.len() < count {
        let shape = Shape::draw(&mut random);
        let twin = (shape.can_be_sticky() && random.chance(150)).then(|| (shape.clone(), true));
        shapes.push((shape, false));
        shapes.extend(twin);
    }
    let numbered = shapes.iter().enumerate();
    let services = numbered.clone().map(|(number, (shape, sticky))| shape.service(number, *sticky)).collect();
    (services, numbered.flat_map(|(number, (shape, _))| shape.slices(number)).collect())
}

/// The objects written last, and the targets that reach them: a proxy that serves them has seen this whole round.
pub fn sign(round: u16) -> ([Value; 3], Vec<Target>) {
    let addresses = Outside::Own.addresses(EXTERNAL, 253);
    let port =
        |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 100 + round});
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "sign", "namespace": "default"},
        "spec": {
            "ports": [port("TCP"), port("UDP")], "externalIPs": addresses,
            "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
        },
    });
    let slice = |(kind, address): (&str, &str)| {
        let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": sign_backend(round)});
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {
                "name": format!("sign-{}", kind.to_lowercase()), "namespace": "default",
                "labels": {"kubernetes.io/service-name": "sign"},
            },
            "ports": [port("TCP"), port("UDP")], "endpoints": [{"addresses": [address], "nodeName": "n1"}],
        })
    };
    let targets = addresses.iter().filter_map(|ip| Some(SocketAddr::new(ip.parse().ok()?, 100 + round)));
    let targets = targets.flat_map(|to| targets::both("sign", Kind::External, to, |_| true)).collect();
    ([service, slice(("IPv4", "10.244.1.11")), slice(("IPv6", "fd00:244:1::11"))], targets)
}

/// The port of the sign's backend.
pub fn sign_backend(round: u16) -> u16 {
    9000 + round
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn one_seed_gives_one_cluster() {
        assert_eq!(draw(7, 50), draw(7, 50));
        assert_ne!(draw(7, 50), draw(8, 50));
    }

    #[test]
    fn no_two_services_share_a_port() {
        let (services, _) = draw(1, 100);
        let ports = |service: &Value| -> BTreeSet<u64> {
            let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
            ports.iter().filter_map(|port| port["port"].as_u64()).collect()
        };
        let mut seen = BTreeSet::new();
        for service in &services {
            for port in ports(service) {
                assert!(seen.insert(port), "{port} of {service}");
            }
        }
    }

    #[test]
    fn a_service_with_affinity_otherwise_equals_its_twin() {
        let (services, _) = draw(1, 100);
        let is_sticky = |service: &Value| service["spec"]["sessionAffinity"] == "ClientIP";
        assert!(services.iter().filter(|service| is_sticky(service)).count() > 5);
        for pair in services.windows(2).filter(|pair| is_sticky(&pair[1])) {
            assert!(!is_sticky(&pair[0]));
            for field in ["type", "externalTrafficPolicy", "internalTrafficPolicy", "ipFamilies"] {
                assert_eq!(pair[0]["spec"][field], pair[1]["spec"][field], "{field} of {}", pair[1]);
            }
        }
    }
}
