//! Outside clients at the node's own address, which a Service of the cluster has as its external IP.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::fake::{Authority, Cluster, Names, Server};
use holdfast_tests::packets::Clients;
use serde_json::json;

use crate::node::{SERVED, last_lines, on_this};

/// The daemon lists sockets every second; a busy machine takes longer.
const PROMPT: Duration = Duration::from_secs(5);

/// An apiserver in the node's network with this Service, backed by pod-a.
fn apiserver(bed: &Bed, authority: &Authority) -> Server {
    let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-00000000a77b");
    let objects = [
        json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "default", "name": "ingress"},
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.77.1", "clusterIPs": ["10.96.77.1"],
                "externalIPs": ["10.0.0.5"], "ports": [{"port": 80}],
            },
        }),
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                "namespace": "default", "name": "ingress-1", "labels": {"kubernetes.io/service-name": "ingress"},
            },
            "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.1.10"], "conditions": {"ready": true}}],
        }),
    ];
    for object in objects {
        cluster.apply(object).unwrap();
    }
    let identity = authority.server(&Names::Kubernetes).unwrap();
    bed.within(Location::NODE, || Server::start(&cluster, &identity).unwrap()).unwrap()
}

/// Sends requests from outside until that server answers, and returns how long that took.
#[track_caller]
fn wait_for(clients: &mut Clients, name: &str, daemon: &Daemon<'_>) -> Duration {
    let to: SocketAddr = "10.0.0.5:80".parse().unwrap();
    let begun = Instant::now();
    loop {
        let question = Question::new(Transport::Tcp, to);
        let outcome = clients.client("outside").unwrap().ask_all(&[question]).unwrap().remove(0);
        if matches!(&outcome, Outcome::Answered { by, .. } if by == name) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < SERVED, "{outcome:?} and not {name}; {}", last_lines(daemon));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn outside_clients_reach_the_nodes_external_ip_unless_a_process_listens() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let authority = Authority::new().unwrap();
    let server = apiserver(&bed, &authority);
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let mut config = "zone = \"z\"\n[apiserver]\ndiscover = []\n".to_owned();
    let name = "tls_server_name = \"kubernetes.default.svc\"";
    writeln!(config, "endpoints = [\"{}\"]\nca_file = {ca:?}\n{name}", server.url()).unwrap();
    on_this(&bed, &config, |bed, daemon, clients| {
        wait_for(clients, "a", daemon);
        let own = bed.serve_seen_source(Location::NODE, "own", &["10.0.0.5:80".parse().unwrap()]).unwrap();
        wait_for(clients, "own", daemon);
        let row = daemon.ask(&["frontends", "--address", "10.0.0.5"]).unwrap()["frontends"][0].clone();
        assert_eq!((&row["verdict"], &row["reason"]), (&"conflict".into(), &"listener".into()), "{row}");
        drop(own);
        let took = wait_for(clients, "a", daemon);
        println!("served {took:?} after the process ended");
        assert!(took < PROMPT, "{took:?}");
    });
}
