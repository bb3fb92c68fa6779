//! The incident's last step with the real daemon: the address of its apiserver is a VIP of its table.

use std::net::SocketAddr;
use std::path::PathBuf;

use holdfast_tests::bed::clients::Client;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Layout, Location, Role, Server};
use serde_json::Value;

/// One refused by the table and one served by it; an apiserver listens behind each address.
const APISERVERS: [&str; 2] = ["10.15.1.8", "10.15.1.9"];

/// Two load balancers at the daemon's own apiserver addresses, and one at another address.
const MANIFESTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: refused, namespace: default}
spec: {type: LoadBalancer, clusterIP: 10.96.0.8, ports: [{port: 443}]}
status: {loadBalancer: {ingress: [{ip: 10.15.1.8}]}}
---
apiVersion: v1
kind: Service
metadata: {name: served, namespace: default}
spec: {type: LoadBalancer, clusterIP: 10.96.0.9, ports: [{port: 443}]}
status: {loadBalancer: {ingress: [{ip: 10.15.1.9}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: served-1, namespace: default, labels: {kubernetes.io/service-name: served}}
addressType: IPv4
ports: [{port: 8443}]
endpoints: [{addresses: [192.0.2.1]}]
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: default}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, ports: [{port: 443}]}
status: {loadBalancer: {ingress: [{ip: 10.15.1.10}]}}
";

const APISERVER: &str = "
[apiserver]
endpoints = [\"https://10.15.1.8:443\", \"https://10.15.1.9:443\"]
[kubernetes]
enabled = false
";

struct IncidentBed {
    bed: Bed,
    client: Client,
    _servers: Vec<Server>,
}

fn start_servers() -> IncidentBed {
    let local = vec!["10.15.1.8/32", "10.15.1.9/32", "10.15.1.10/32", "192.0.2.1/32"];
    let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
    let serve = |name: &str, address: &str| {
        bed.serve(Location::OUTSIDE, Role::Tcp, name, address.parse::<SocketAddr>().unwrap()).unwrap()
    };
    let servers = vec![
        serve("apiserver", "10.15.1.8:443"),
        serve("apiserver", "10.15.1.9:443"),
        serve("elsewhere", "10.15.1.10:443"),
        serve("backend", "192.0.2.1:8443"),
    ];
    let client = Client::c().unwrap();
    IncidentBed { bed, client, _servers: servers }
}

impl IncidentBed {
    /// The name of the server that answers a process of the node, or the errno.
    fn answer(&self, address: &str) -> String {
        self.client.reply(&self.bed, &["tcp", address, "443"]).unwrap()
    }
}

fn rows(daemon: &Daemon<'_>, words: &[&str], table: &str) -> Vec<Value> {
    daemon.ask(words).unwrap()[table].as_array().unwrap().clone()
}

#[test]
fn invariant_11_the_apiservers_address_is_never_a_frontend() {
    let incident = start_servers();
    let mut daemon = Daemon::new(&incident.bed, APISERVER).unwrap();
    daemon.write_manifest("cluster.yaml", MANIFESTS).unwrap();
    daemon.start().unwrap();
    for address in APISERVERS {
        let row = rows(&daemon, &["frontends", "--address", address], "frontends").remove(0);
        assert_eq!(
            (row["verdict"].as_str(), row["status"].as_str()),
            (Some("bypassed"), Some("done")),
            "{row}"
        );
        assert_eq!(incident.answer(address), "apiserver", "every process of the node has the direct way");
    }
    assert_eq!(incident.answer("10.96.0.8"), "ECONNREFUSED", "the same service by another address");
    assert_eq!(incident.answer("10.96.0.9"), "backend");
    assert_eq!(
        incident.answer("10.15.1.10"),
        "ECONNREFUSED",
        "a load balancer that nobody needs to reach the apiserver"
    );
}

/// The daemon checks two backends: one is at an address that another service refuses, and at the other no socket
/// listens.
const CHECKED: &str = "
[[service]]
name = \"own\"
frontends = [\"10.96.0.20:80\"]
backends = [\"10.15.1.10:443\", \"192.0.2.1:9\"]
[service.health_check]
kind = \"tcp\"
interval = \"1s\"
timeout = \"1s\"
fall = 1
";

fn check_own_sockets(incident: &IncidentBed, cgroup: PathBuf, own_cgroup: bool) {
    let mut daemon = Daemon::within(&incident.bed, cgroup, CHECKED).unwrap();
    daemon.write_manifest("cluster.yaml", MANIFESTS).unwrap();
    daemon.start().unwrap();
    let datapath = daemon.ask(&["datapath"]).unwrap();
    assert_eq!(datapath["kernel"]["own_cgroup_exempt"], own_cgroup);
    let ready = |daemon: &Daemon<'_>, address: &str| {
        let rows = rows(daemon, &["backends", "static/own", "--address", address], "backends");
        rows[0]["ready"].as_bool().unwrap()
    };
    daemon.wait_until(|daemon| Ok(!ready(daemon, "192.0.2.1"))).unwrap();
    assert_eq!(incident.answer("10.15.1.10"), "ECONNREFUSED", "for everybody else it is refused");
    assert!(ready(&daemon, "10.15.1.10"), "the daemon reaches what stands behind it");
    daemon.stop().unwrap();
}

#[test]
fn invariant_11_the_daemons_own_sockets_are_not_refused_by_their_mark_alone() {
    let incident = start_servers();
    check_own_sockets(&incident, incident.bed.cgroup().to_owned(), false);
}

#[test]
fn invariant_11_the_daemons_own_sockets_are_not_refused_in_their_cgroup() {
    let incident = start_servers();
    check_own_sockets(&incident, incident.bed.child_cgroup("daemon").unwrap(), true);
}
