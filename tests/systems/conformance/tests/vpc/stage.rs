//! Two nodes with the AWS VPC CNI, and a server on each card of each node.
//!
//! Invariant: a server's card is the one to which the VPC leads for its address, whatever the node believes.

use std::ops::RangeInclusive;

use holdfast_conformance::{Cluster, Cni, Family, Proxy, Running, Topology};

use super::typing::typed;

const POD: &str = include_str!("pod.yaml");
const SERVICE: &str = include_str!("service.yaml");

/// A card's place, its node, and the last parts of the addresses of its pods.
const CARDS: [(&str, &str, RangeInclusive<u8>); 4] = [
    ("n1-first", "n1", 30..=64),
    ("n1-second", "n1", 66..=99),
    ("n2-first", "n2", 101..=135),
    ("n2-second", "n2", 137..=170),
];

/// The address daemon takes the cards by turns, for all pods of the node.
const BATCH: usize = 2;
const BATCHES_MAX: usize = 8;

/// What serves on `cp`. By UDP it answers from the asked address only where it listens at each.
const OUTSIDE: [&str; 5] = [
    "/opt/kubernetes/agnhost",
    "netexec",
    "--http-port=9080",
    "--udp-port=9081",
    "--udp-listen-addresses=172.30.0.10,192.168.77.10",
];

/// A pod that serves, and its place.
pub(crate) struct Server {
    pub(crate) place: &'static str,
    pub(crate) pod: String,
    pub(crate) address: String,
}

/// A Service of one server.
pub(crate) struct Service {
    pub(crate) name: &'static str,
    place: &'static str,
    policy: &'static str,
    pub(crate) port: u16,
}

impl Service {
    /// One number is free for one protocol at a time.
    pub(crate) fn udp_port(&self) -> u16 {
        self.port + 100
    }
}

const fn cluster(name: &'static str, port: u16) -> Service {
    Service { name, place: name, policy: "Cluster", port }
}

const fn local(name: &'static str, place: &'static str, port: u16) -> Service {
    Service { name, place, policy: "Local", port }
}

/// The last two keep the client's address with every proxy.
pub(crate) const SERVICES: [Service; 6] = [
    cluster("n1-first", 30_701),
    cluster("n1-second", 30_702),
    cluster("n2-first", 30_703),
    cluster("n2-second", 30_704),
    local("n1-first-local", "n1-first", 30_705),
    local("n1-second-local", "n1-second", 30_706),
];

/// The cluster, a server in each place, and one outside.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) servers: Vec<Server>,
    _outside: Running,
}

impl Stage {
    pub(crate) fn start(proxy: Proxy) -> Self {
        let topology = Topology { cni: Cni::Vpc, family: Family::Ipv4, proxy, ..Topology::default() };
        let cluster = Cluster::start(&topology).unwrap();
        let servers = place_servers(&cluster);
        let outside = cluster.on("cp").unwrap().spawn("outside", &OUTSIDE).unwrap();
        let services: Vec<String> = SERVICES.iter().map(manifest).collect();
        cluster.apply(&services.join("---\n")).unwrap();
        Self { cluster, servers, _outside: outside }
    }

    pub(crate) fn server(&self, place: &str) -> &Server {
        self.servers.iter().find(|server| server.place == place).unwrap()
    }
}

fn manifest(service: &Service) -> String {
    let Service { name, place, policy, port } = service;
    let text = SERVICE.replace("NAME", name).replace("PLACE", place).replace("POLICY", policy);
    text.replace("TCP}", &format!("{port}}}")).replace("UDP}", &format!("{}}}", service.udp_port()))
}

/// Makes pods until each card has one, and gives that one its place.
fn place_servers(cluster: &Cluster) -> Vec<Server> {
    let mut servers: Vec<Server> = Vec::new();
    for batch in 0..BATCHES_MAX {
        let missing = CARDS.iter().filter(|card| !servers.iter().any(|server| server.place == card.0));
        let mut nodes: Vec<&str> = missing.map(|card| card.1).collect();
        nodes.dedup();
        if nodes.is_empty() {
            return servers;
        }
        make_pods(cluster, &nodes, batch);
        for (pod, address) in pods(cluster) {
            let place = place(&address);
            if !servers.iter().any(|server| server.place == place) {
                cluster.kubectl(&["label", "pod", &pod, &format!("place={place}")]).unwrap();
                servers.push(Server { place, pod, address });
            }
        }
    }
    panic!("no pod on some card: {}", typed(cluster, "n1", "ip rule"));
}

fn make_pods(cluster: &Cluster, nodes: &[&str], batch: usize) {
    let pod = |node: &str, number: usize| {
        POD.replace("NAME", &format!("server-{node}-{batch}-{number}")).replace("NODE", node)
    };
    let texts: Vec<String> =
        nodes.iter().flat_map(|node| (0..BATCH).map(move |number| pod(node, number))).collect();
    cluster.apply(&texts.join("---\n")).unwrap();
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=240s"]).unwrap();
}

/// The names and addresses of all pods.
fn pods(cluster: &Cluster) -> Vec<(String, String)> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{\"\\n\"}{end}";
    let listed = cluster.kubectl(&["get", "pods", "-o", path]).unwrap();
    let words = listed.lines().filter_map(|line| line.split_once(' '));
    words.map(|(pod, address)| (pod.to_owned(), address.to_owned())).collect()
}

/// The place of an address.
fn place(address: &str) -> &'static str {
    let last: u8 = address.strip_prefix("172.30.0.").unwrap().parse().unwrap();
    CARDS.iter().find(|(_, _, range)| range.contains(&last)).unwrap().0
}
