//! Servers behind Services on two nodes, and clients of them: outside, on a node, in pods.
//!
//! Invariant: each client asks each of its targets by TCP and by UDP.

use std::collections::BTreeMap;
use std::thread;

use holdfast_conformance::{Cluster, MachineName, Topology};

use crate::typing::{eventually, typed};

const OBJECTS: &str = include_str!("objects.yaml");
const ASKER: &str = include_str!("asker.sh");

/// The places of clients, each with its targets. The name of a target says by which address it is asked: its ClusterIP,
/// the NodePort of `n1`, that of `n2` (`far`), its own. `one` is on `n1`, `two` on `n2`; `local` is `one` with the
/// traffic policy Local.
const CLIENTS: [(&str, &[&str]); 6] = [
    ("out", &["nodeport-one", "nodeport-two", "nodeport-local", "far-one"]),
    ("n1", &["clusterip-one", "clusterip-two", "nodeport-one", "pod-two"]),
    (
        "client-n1",
        &["clusterip-one", "clusterip-two", "nodeport-one", "nodeport-two", "far-one", "pod-one", "pod-two"],
    ),
    ("client-n2", &["clusterip-one", "clusterip-two", "nodeport-one", "far-one", "pod-one"]),
    ("other-n1", &["clusterip-one", "clusterip-two", "nodeport-one"]),
    ("server-n1", &["clusterip-one"]),
];

/// The addresses of the nodes.
const NODES: [&str; 2] = ["172.30.0.11", "172.30.0.12"];

/// How often clients that were stopped ask again.
const AGAIN_MAX: usize = 3;

/// The ways to a target.
const WAYS: [&str; 2] = ["tcp", "udp"];

/// Clients, each with its targets in words for their program.
type Clients = Vec<(&'static str, Vec<String>)>;

/// The verdict for each client and target, and for each way to it.
pub(crate) type Verdicts = BTreeMap<(&'static str, String), BTreeMap<String, String>>;

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    mark: &'static str,
    clients: Clients,
}

impl Stage {
    /// Starts a cluster and fills it. `mark` is what the rules of an enforced policy say, `POLICY` being its name.
    pub(crate) fn start(topology: Topology, mark: &'static str) -> Self {
        let machines = [MachineName::Outside, MachineName::Node(1), MachineName::Node(2)];
        let files = machines.map(|name| (name, "/opt/asker/asker.sh".to_owned(), ASKER.to_owned()));
        let files = [topology.files, files.to_vec()].concat();
        let cluster = Cluster::start(&Topology { files, ..topology }).unwrap();
        cluster.apply(OBJECTS).unwrap();
        cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s"]).unwrap();
        let addresses = Addresses::read(&cluster);
        let clients = CLIENTS.map(|(client, targets)| {
            (client, targets.iter().flat_map(|target| addresses.ways(target)).collect())
        });
        Self { cluster, mark, clients: clients.to_vec() }
    }

    /// Opens a connection by each way, and waits until each is answered.
    pub(crate) fn hold(&self) {
        let mut stopped = Vec::new();
        eventually("all connections are answered", || {
            stopped = ways_with(&self.ask("hold", &self.clients), "stopped");
            if !stopped.is_empty() {
                println!("not answered yet: {stopped:?}");
            }
            stopped.is_empty()
        });
    }

    /// Whether the held connections are still answered, and whether new ones are.
    pub(crate) fn held_and_new(&self) -> (Verdicts, Verdicts) {
        thread::scope(|scope| {
            let held = scope.spawn(|| self.ask("held", &self.clients));
            let new = self.ask_anew();
            (held.join().unwrap(), new)
        })
    }

    /// Asks by new connections. Clients that were stopped ask again until nobody is answered any more, because a busy
    /// machine lets a client wait, too. What has passed once passes: nobody asks before the policy is in force.
    fn ask_anew(&self) -> Verdicts {
        let mut verdicts = self.ask("ask", &self.clients);
        for _ in 0..AGAIN_MAX {
            let again = self.ask("ask", &self.stopped(&verdicts));
            let late = ways_with(&again, "passes");
            for (row, ways) in again {
                verdicts.entry(row).or_default().extend(ways);
            }
            if late.is_empty() {
                return verdicts;
            }
            println!("answered late: {late:?}");
        }
        panic!("after {AGAIN_MAX} times, clients were still answered late");
    }

    /// The clients and their targets that were stopped.
    fn stopped(&self, verdicts: &Verdicts) -> Clients {
        let is_stopped = |client: &'static str, target: &String| {
            let (name, _) = target.split_once('=').unwrap();
            let (name, way) = name.split_once('@').unwrap();
            verdicts[&(client, name.to_owned())][way] != "passes"
        };
        let all = self.clients.iter().map(|(client, targets)| {
            let stopped = targets.iter().filter(|target| is_stopped(client, target));
            (*client, stopped.cloned().collect::<Vec<_>>())
        });
        all.filter(|(_, targets)| !targets.is_empty()).collect()
    }

    /// These clients at once.
    fn ask(&self, order: &str, clients: &Clients) -> Verdicts {
        thread::scope(|scope| {
            let asked: Vec<_> = clients
                .iter()
                .map(|(client, targets)| (*client, scope.spawn(|| self.run(client, order, targets))))
                .collect();
            let mut verdicts = Verdicts::new();
            for (client, said) in asked {
                for line in said.join().unwrap().lines() {
                    let (target, verdict) = line.split_once(' ').unwrap();
                    let (target, way) = target.split_once('@').unwrap();
                    let row = verdicts.entry((client, target.to_owned())).or_default();
                    row.insert(way.to_owned(), verdict.to_owned());
                }
            }
            verdicts
        })
    }

    fn run(&self, client: &str, order: &str, targets: &[String]) -> String {
        let command = ["bash", "/opt/asker/asker.sh", order];
        let command: Vec<&str> = command.into_iter().chain(targets.iter().map(String::as_str)).collect();
        if client.contains('-') {
            let inside: Vec<&str> = ["exec", client, "--"].into_iter().chain(command).collect();
            return self.cluster.kubectl(&inside).unwrap();
        }
        let said = self.cluster.on(client).unwrap().run(&command).unwrap();
        String::from_utf8(said.stdout).unwrap()
    }

    /// Applies a policy, and waits until both nodes have its rules.
    pub(crate) fn enforce(&self, policy: &str) {
        let name = policy_name(policy);
        self.cluster.apply(policy).unwrap();
        eventually(&format!("{name} is in force"), || self.rules_name(name).iter().all(|has| *has));
    }

    pub(crate) fn lift(&self, policy: &str) {
        let name = policy_name(policy);
        self.cluster.kubectl(&["delete", "networkpolicy", name]).unwrap();
        eventually(&format!("{name} is gone"), || self.rules_name(name).iter().all(|has| !has));
    }

    /// Whether the rules of each node name a policy.
    fn rules_name(&self, policy: &str) -> [bool; 2] {
        let mark = self.mark.replace("POLICY", policy);
        ["n1", "n2"].map(|node| typed(&self.cluster, node, "iptables-save -t filter").contains(&mark))
    }
}

pub(crate) fn policy_name(policy: &str) -> &str {
    let (_, name) = policy.split_once("metadata: {name: ").unwrap();
    name.split_once('}').unwrap().0
}

/// The ways with a verdict.
fn ways_with(verdicts: &Verdicts, verdict: &str) -> Vec<String> {
    let all = verdicts.iter().flat_map(|((client, target), ways)| {
        let these = ways.iter().filter(|(_, it)| *it == verdict);
        these.map(move |(way, _)| format!("{client} {target} {way}"))
    });
    all.collect()
}

/// The addresses of servers and their Services.
struct Addresses {
    services: BTreeMap<&'static str, String>,
    pods: BTreeMap<&'static str, String>,
}

impl Addresses {
    fn read(cluster: &Cluster) -> Self {
        let get = |kind: &str, name: &str, path: &str| {
            cluster.kubectl(&["get", kind, name, "-o", &format!("jsonpath={path}")]).unwrap()
        };
        let services = ["one", "two"].map(|name| (name, get("service", name, "{.spec.clusterIP}")));
        let pods = [("one", "server-n1"), ("two", "server-n2")];
        let pods = pods.map(|(name, pod)| (name, get("pod", pod, "{.status.podIP}")));
        Self { services: services.into(), pods: pods.into() }
    }

    /// A target for the client's program, by each way.
    fn ways(&self, target: &str) -> [String; 2] {
        let (kind, server) = target.split_once('-').unwrap();
        let node_port = match server {
            "one" => 30_701,
            "two" => 30_702,
            _ => 30_703,
        };
        WAYS.map(|protocol| {
            let own = if protocol == "tcp" { 8_080 } else { 8_081 };
            let (address, port) = match kind {
                "clusterip" => (&self.services[server], 80),
                "pod" => (&self.pods[server], own),
                "far" => (&NODES[1].to_owned(), node_port),
                _ => (&NODES[0].to_owned(), node_port),
            };
            format!("{target}@{protocol}={protocol},{address},{port}")
        })
    }
}
