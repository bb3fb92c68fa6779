//! Who reaches whom, and as whom: outside, on a node and in pods, by the addresses of a load balancer, by host ports,
//! NodePorts and ClusterIPs.
//!
//! Invariant: each row is asked by TCP and by UDP.

use std::thread;

use holdfast_conformance::Cluster;

use super::answers::{Client, rows};
use super::servicelb::{self, NAT, NODES, SERVICES, Service, Status};
use super::typing::eventually;

pub(crate) const HEADING: &str = "status\tclient\ttarget\ttcp\tudp\n";

/// Addresses, and what the table calls them: of machines, of Flannel's device and of the pods' bridge.
const MACHINES: [(&str, &str); 14] = [
    ("172.30.0.11", "n1"),
    ("fd30::11", "n1"),
    ("172.30.0.12", "n2"),
    ("fd30::12", "n2"),
    ("172.30.0.100", "out"),
    ("fd30::100", "out"),
    ("10.244.1.0", "n1-flannel"),
    ("fd00:10:244:1::", "n1-flannel"),
    ("10.244.2.0", "n2-flannel"),
    ("fd00:10:244:2::", "n2-flannel"),
    ("10.244.1.1", "n1-bridge"),
    ("fd00:10:244:1::1", "n1-bridge"),
    ("10.244.2.1", "n2-bridge"),
    ("fd00:10:244:2::1", "n2-bridge"),
];

const PODS: [&str; 4] = ["client-n1", "client-n2", "server-n1", "server-n2"];

const CLIENTS: [Client<'static>; 4] = [
    Client::Machine { name: "out", machine: "out", source: "any" },
    Client::Machine { name: "n1", machine: "n1", source: "any" },
    Client::Pod { name: "client-n1", pod: "client-n1" },
    Client::Pod { name: "client-n2", pod: "client-n2" },
];

/// The rows of these clients, or of all; `status` says which addresses the Services' status has.
pub(crate) fn table(cluster: &Cluster, status: &str, clients: &[&str]) -> String {
    let names = names(cluster);
    let clients = CLIENTS.iter().filter(|it| clients.is_empty() || clients.contains(&it.name()));
    let asked = thread::scope(|scope| {
        let ask = |client| {
            let names = &names;
            scope.spawn(move || rows(cluster, client, &targets(cluster, client.name() != "out"), names))
        };
        let asked: Vec<_> = clients.map(ask).collect();
        asked.into_iter().map(|rows| rows.join().unwrap()).collect::<String>()
    });
    let table: String = asked.lines().map(|row| format!("{status}\t{row}\n")).collect();
    println!("{table}");
    table
}

/// Waits until the proxy of each node serves the addresses of this status, in place of the pods of servicelb.
pub(crate) fn wait_for(cluster: &Cluster, status: Status) {
    let prefixes = match status {
        Status::Nodes => ["n1:", "n1/6:", "n2:two=", "n2/6:two="].as_slice(),
        Status::Nat => ["nat:", "nat/6:"].as_slice(),
    };
    let targets: Vec<String> = targets(cluster, true)
        .into_iter()
        .filter(|target| prefixes.iter().any(|prefix| target.starts_with(prefix)))
        .collect();
    let names = names(cluster);
    eventually("the status is served", || {
        CLIENTS.iter().filter(|client| ["n1", "client-n2"].contains(&client.name())).all(|client| {
            let rows = rows(cluster, client, &targets, &names);
            !rows.contains("nobody") && !rows.contains("svclb")
        })
    });
}

/// The Services' ports at nodes, which are host ports too, and their NodePorts; for those inside also the NAT's
/// addresses and ClusterIPs, to which nothing outside leads.
fn targets(cluster: &Cluster, is_inside: bool) -> Vec<String> {
    SERVICES.iter().flat_map(|service| targets_of(cluster, service, is_inside)).collect()
}

fn targets_of(cluster: &Cluster, (name, port, node_port): &Service, is_inside: bool) -> Vec<String> {
    let at = |place: &str, address: &str, port: &u16| {
        let six = if address.contains(':') { "/6" } else { "" };
        let host = if six.is_empty() { address.to_owned() } else { format!("[{address}]") };
        format!("{place}{six}:{name}={host}:{port}:{port}")
    };
    let mut targets = Vec::new();
    for address in NODES {
        let node = if address.ends_with('1') { "n1" } else { "n2" };
        targets.push(at(node, address, port));
        targets.push(at(&format!("{node}-nodeport"), address, node_port));
    }
    if is_inside {
        let path = "jsonpath={.spec.clusterIPs[0]} {.spec.clusterIPs[1]}";
        let cluster_ips = cluster.kubectl(&["get", "service", name, "-o", path]).unwrap();
        targets.extend(cluster_ips.split(' ').map(|address| at("clusterip", address, port)));
        targets.extend(NAT.iter().map(|address| at("nat", address, port)));
    }
    targets
}

/// The names of machines and pods in the table.
fn names(cluster: &Cluster) -> Vec<(String, String)> {
    let path = "jsonpath={.status.podIPs[0].ip} {.status.podIPs[1].ip}";
    let pods = PODS.iter().flat_map(|pod| {
        let addresses = cluster.kubectl(&["get", "pod", pod, "-o", path]).unwrap();
        addresses.split(' ').map(|address| (address.to_owned(), (*pod).to_owned())).collect::<Vec<_>>()
    });
    let machines = MACHINES.iter().map(|(address, name)| ((*address).to_owned(), (*name).to_owned()));
    machines.chain(pods).chain(servicelb::names(cluster)).collect()
}
