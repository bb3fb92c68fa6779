//! Ports of the node's own address that a tenant claims as an external IP.
//!
//! Invariant: the daemon sees only the sockets of the bed's network, so a server of the bed is a process of the node.

use holdfast_fixtures::clock::wait_until;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Layout, Location, Role};
use serde_json::{Value, json};

use crate::stage::{Apiserver, nobody_dials, row};

const NODE: &str = "192.0.2.7";

/// `default/web` as an ingress: the node's address at port 80. It also claims kubelet's port.
fn ingress() -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "externalIPs": [NODE],
            "ports": [{"name": "http", "port": 80}, {"name": "kubelet", "port": 10250}],
        },
    })
}

fn slice() -> Value {
    let mut slice = Apiserver::slice("192.0.2.1");
    slice["ports"] = json!([{"name": "http", "port": 8080}, {"name": "kubelet", "port": 8080}]);
    slice
}

#[test]
fn a_listening_process_keeps_its_port_from_an_external_ip() {
    let bed = Bed::lay(&Layout { local: vec!["192.0.2.1/32", "192.0.2.7/32"], ..Layout::default() }).unwrap();
    let _backend = bed.serve(Location::NODE, Role::Tcp, "web", "192.0.2.1:8080".parse().unwrap()).unwrap();
    let apiserver = Apiserver::start(&bed);
    apiserver.cluster.apply(ingress()).unwrap();
    apiserver.cluster.apply(slice()).unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.configure(&apiserver.configure(&daemon)).unwrap();
    daemon.start().unwrap();
    wait_until("served at the node's own address", || nobody_dials(&bed, "192.0.2.7:80") == "web");
    assert_ne!(nobody_dials(&bed, "192.0.2.7:10250"), "web", "kubelet is away for a moment");

    let own = bed.serve(Location::NODE, Role::Tcp, "own", "192.0.2.7:80".parse().unwrap()).unwrap();
    wait_until("left to the process", || nobody_dials(&bed, "192.0.2.7:80") == "own");
    let found = row(&daemon, NODE);
    assert_eq!((&found["verdict"], &found["reason"]), (&"conflict".into(), &"listener".into()), "{found}");
    let (_, said) = daemon.answer(&["explain", "192.0.2.7:80"]).unwrap();
    assert!(said.contains("a process of this node listens at 192.0.2.7:80/TCP"), "{said}");
    assert_eq!(nobody_dials(&bed, "10.96.0.10:80"), "web", "its cluster IP is none of that process's");

    drop(own);
    wait_until("served again", || nobody_dials(&bed, "192.0.2.7:80") == "web");
}
