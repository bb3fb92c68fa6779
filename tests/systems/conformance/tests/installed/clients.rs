//! Clients that connect in a loop, to a ClusterIP and to NodePorts: in pods, on nodes and outside.
//!
//! Invariant: each attempt counts once, and a client without counts fails its test.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_conformance::{Cluster, Running};
use holdfast_fixtures::clock::pause;

use super::stage::{NODES, eventually};

/// A service with three backends, and a client pod on each node.
pub(crate) const OBJECTS: &str = include_str!("objects.yaml");

pub(crate) const CLUSTER_IP: &str = "10.96.7.7:80";
const NODE_PORT: u16 = 30080;

/// The client's command, on machines and in pods: `OBJECTS` mounts it at the same path.
const DIALER: &str = "/opt/dialer/bed_child dial";

/// The file that ends the clients on a machine; each then prints its counts.
const END: &str = "/run/dialers.end";

/// The least connects of each client: fewer would prove nothing about the events meanwhile.
const CONNECTED_MIN: u64 = 100;

/// Clients that dial until they are ended.
pub(crate) struct Clients<'a> {
    cluster: &'a Cluster,
    running: Vec<(String, Running)>,
}

impl<'a> Clients<'a> {
    /// Starts a client for each path to the service on these nodes.
    pub(crate) fn start(cluster: &'a Cluster) -> Self {
        let mut clients = Self { cluster, running: Vec::new() };
        for machine in NODES.into_iter().chain(["cp", "out"]) {
            cluster.on(machine).unwrap().run(&["rm", "-f", END]).unwrap();
        }
        for (node, address) in NODES.into_iter().zip(["172.30.0.11", "172.30.0.12"]) {
            let node_port = format!("{address}:{NODE_PORT}");
            for to in [CLUSTER_IP, &node_port] {
                clients.add(node, &format!("host-{node}"), DIALER, to);
                clients.add("cp", &format!("pod-{node}"), &in_pod(&format!("dialer-{node}")), to);
            }
            clients.add("out", &format!("outside-{node}"), DIALER, &node_port);
        }
        clients
    }

    /// A client prints its results for each line of its standard input.
    fn add(&mut self, machine: &str, who: &str, dial: &str, to: &str) {
        let name = format!("{who}-{to}").replace([':', '.'], "-");
        let script = format!("{{ until [ -e {END} ]; do sleep 0.1; done; echo; sleep 1; }} | {dial} {to}");
        let running = self.cluster.on(machine).unwrap().spawn(&name, &["sh", "-c", &script]).unwrap();
        self.running.push((name, running));
    }

    /// Ends the clients, and checks that none of their connects failed.
    #[track_caller]
    pub(crate) fn end_without_a_failure(mut self, during: &str) {
        // Clients continue for a while after the last change, to meet its effects.
        pause(Duration::from_secs(2));
        for machine in NODES.into_iter().chain(["cp", "out"]) {
            self.cluster.on(machine).unwrap().write(END, "").unwrap();
        }
        eventually("all clients told", || self.running.iter_mut().all(|(_, running)| !running.runs()));
        let tallies: Vec<(String, String)> =
            self.running.iter().map(|(name, running)| (name.clone(), running.written().unwrap())).collect();
        for (name, tally) in &tallies {
            let tally: Tally = serde_json::from_str(tally).unwrap_or_else(|_| panic!("{name}: {tally}"));
            assert!(tally.failed.is_empty(), "{during}: {name}: {tally:?}");
            assert!(tally.connected >= CONNECTED_MIN, "{during}: {name}: {tally:?}");
        }
        println!("{during}: {tallies:?}");
    }
}

/// The command of a client in a pod. A freshly started kubelet may not list a running pod yet: only then the command
/// is retried, and nothing has been dialled.
fn in_pod(pod: &str) -> String {
    let script = format!(
        r#"said=$(mktemp); for try in $(seq 60); do
kubectl exec --stdin {pod} -- {DIALER} "$1" 2>"$said" && exit 0
grep -q "unable to upgrade connection: pod does not exist" "$said" || break
sleep 1; done; cat "$said" >&2; exit 1"#
    );
    format!("sh -c '{script}' in-pod")
}

/// A client's counts.
#[derive(Debug, serde::Deserialize)]
struct Tally {
    connected: u64,
    failed: BTreeMap<String, u64>,
}
