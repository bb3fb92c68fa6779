//! Clients that connect all the time, to a ClusterIP and to NodePorts: in pods, on nodes and outside.
//!
//! Invariant: each attempt is counted once, and a client without counts fails its test.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_conformance::{Cluster, Running};

use super::stage::{NODES, eventually};

/// A service with three backends, and a pod on each node that can dial.
pub(crate) const OBJECTS: &str = include_str!("objects.yaml");

pub(crate) const CLUSTER_IP: &str = "10.96.7.7:80";
const NODE_PORT: u16 = 30080;

/// The client's command, on machines and in pods: `OBJECTS` mounts it at the same path.
const DIALER: &str = "/opt/dialer/bed_child dial";

/// The file that ends the clients on a machine: each then tells what it counted.
const END: &str = "/run/dialers.end";

/// How many connects each client must have had: fewer would prove nothing of what was done meanwhile.
const CONNECTED_MIN: u64 = 100;

/// Clients that dial until they are told to end.
pub(crate) struct Clients<'a> {
    cluster: &'a Cluster,
    running: Vec<(String, Running)>,
}

impl<'a> Clients<'a> {
    /// Starts a client for each way by which the service is reached on these nodes.
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

    /// A client tells what came of its attempts when it is asked on its standard input.
    fn add(&mut self, machine: &str, who: &str, dial: &str, to: &str) {
        let name = format!("{who}-{to}").replace([':', '.'], "-");
        let script = format!("{{ until [ -e {END} ]; do sleep 0.1; done; echo; sleep 1; }} | {dial} {to}");
        let running = self.cluster.on(machine).unwrap().spawn(&name, &["sh", "-c", &script]).unwrap();
        self.running.push((name, running));
    }

    /// Ends the clients, and checks that not one of their connects has failed.
    #[track_caller]
    pub(crate) fn end_without_a_failure(mut self, during: &str) {
        // Clients go on for a while after the last change, so that they meet what it leads to.
        std::thread::sleep(Duration::from_secs(2));
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

/// The command of a client in a pod. A kubelet that was started a moment ago may not know a running pod yet: only then
/// is the command tried again, and nothing has been dialled.
fn in_pod(pod: &str) -> String {
    let script = format!(
        r#"said=$(mktemp); for try in $(seq 60); do
kubectl exec --stdin {pod} -- {DIALER} "$1" 2>"$said" && exit 0
grep -q "unable to upgrade connection: pod does not exist" "$said" || break
sleep 1; done; cat "$said" >&2; exit 1"#
    );
    format!("sh -c '{script}' in-pod")
}

/// What a client counts.
#[derive(Debug, serde::Deserialize)]
struct Tally {
    connected: u64,
    failed: BTreeMap<String, u64>,
}
