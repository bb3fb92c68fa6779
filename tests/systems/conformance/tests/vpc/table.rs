//! As whom each server of the VPC sees each client.
//!
//! Invariant: `far` is outside of the VPC, and each other client inside.

use super::answers::{Client, rows};
use super::stage::{SERVICES, Service, Stage};
use super::typing::eventually;

const HEADING: &str = "client\ttarget\ttcp\tudp\n";

/// Addresses of machines, and what the table calls them. `far` is outside of the VPC.
const MACHINES: [(&str, &str); 7] = [
    ("172.30.0.10", "cp"),
    ("172.30.0.11", "n1"),
    ("172.30.0.65", "n1-card-2"),
    ("172.30.0.12", "n2"),
    ("172.30.0.136", "n2-card-2"),
    ("172.30.0.100", "out"),
    ("192.168.77.10", "far"),
];

/// Clients on machines, each with its machine and its source.
const ON_MACHINES: [[&str; 3]; 4] =
    [["out", "out", "any"], ["far", "cp", "192.168.77.10"], ["n1", "n1", "any"], ["n2", "n2", "any"]];

/// Clients in pods, by their places.
const IN_PODS: [&str; 3] = ["n1-first", "n1-second", "n2-second"];

/// A line for each client and target.
pub(crate) fn table(stage: &Stage) -> String {
    let machines = ON_MACHINES.map(|[name, machine, source]| Client::Machine { name, machine, source });
    let pods = IN_PODS.map(|place| Client::Pod { name: place, pod: &stage.server(place).pod });
    eventually("the node gets all answers", || {
        let rows = rows_of(stage, &machines[2]);
        println!("{rows}");
        !rows.contains("\tnobody")
    });
    let all = machines.iter().chain(&pods).map(|client| rows_of(stage, client));
    [HEADING.to_owned()].into_iter().chain(all).collect()
}

fn rows_of(stage: &Stage, client: &Client<'_>) -> String {
    rows(&stage.cluster, client, &targets(stage, client), &names(stage))
}

/// Whether a client reaches addresses that proxies alone know.
fn is_inside(client: &Client<'_>) -> bool {
    !matches!(client.name(), "out" | "far")
}

/// What a client asks: NodePorts of both nodes, pods, and for those inside ClusterIPs and servers outside.
fn targets(stage: &Stage, client: &Client<'_>) -> Vec<String> {
    let at = |node: &str, address: &str, service: &Service| {
        format!("{node}:{}={address}:{}:{}", service.name, service.port, service.udp_port())
    };
    let mut targets: Vec<String> = SERVICES.iter().map(|service| at("n1", "172.30.0.11", service)).collect();
    targets.push(at("n2", "172.30.0.12", &SERVICES[1]));
    targets.extend(stage.servers.iter().map(|it| format!("pod:{}={}:8080:8081", it.place, it.address)));
    if is_inside(client) {
        targets.extend(cluster_ips(stage));
        targets.extend(
            [("cp", "172.30.0.10"), ("far", "192.168.77.10")]
                .map(|(name, address)| format!("{name}={address}:9080:9081")),
        );
    }
    targets
}

fn cluster_ips(stage: &Stage) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name}={.spec.clusterIP}:80:81{\"\\n\"}{end}";
    let listed = stage.cluster.kubectl(&["get", "services", "-o", path]).unwrap();
    let ours = listed.lines().filter(|line| {
        SERVICES.iter().take(4).any(|service| line.starts_with(&format!("{}=", service.name)))
    });
    ours.map(|line| format!("service:{line}")).collect()
}

/// The names of machines and servers in the table.
fn names(stage: &Stage) -> Vec<(String, String)> {
    let servers = stage.servers.iter().map(|server| (server.address.clone(), server.place.to_owned()));
    let machines = MACHINES.iter().map(|(address, name)| ((*address).to_owned(), (*name).to_owned()));
    machines.chain(servers).collect()
}
