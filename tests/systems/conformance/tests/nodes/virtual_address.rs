//! Kubelets that use only holdfast's virtual address, in a cluster with two apiservers. The tests repeat what has cut
//! nodes off with other such addresses.
//!
//! Invariant: a node that was unready even for a moment fails its test, because its condition has the time of its last
//! change.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{env, fs};

use holdfast_conformance::{Cluster, Family, Running, Topology};
use holdfast_fixtures::clock::pause;

use super::typing::{eventually, typed};

/// The apiserver that nodes prefer, which has neither the controllers nor the tests, and the other one.
const PREFERRED: (&str, &str) = ("apiserver-2", "172.30.0.20:6443");
const OTHER: (&str, &str) = ("apiserver", "172.30.0.10:6443");

const VIRTUAL: &str = "169.254.20.1:6443";

/// How often an apiserver dies and returns, and after how many deaths a node's daemon dies too.
const DEATHS: usize = 20;
const DAEMON_DIES_EACH: usize = 4;

/// How often an apiserver ends as planned: each takes more than a minute, because it waits for its watches.
const PLANNED_ENDS: usize = 2;

/// How long a daemon gets no processor: longer than the 50 s after which a silent node is given up.
const STARVED: Duration = Duration::from_secs(60);

/// How long each of two apiservers is down in turn: longer than other balancers take to drop a server.
const TURN: Duration = Duration::from_secs(20);

const DIALER: &str = "/opt/dialer/bed_child";

/// The file that ends a node's client, which then prints its counts.
const END: &str = "/run/dialer.end";

/// Fewer connects would prove nothing about the events meanwhile.
const CONNECTED_MIN: u64 = 1_000;

const NODES: [&str; 2] = ["n1", "n2"];

struct VipCluster {
    cluster: Cluster,
    nodes: &'static [&'static str],
}

/// A client of the virtual address on a node, which connects in a loop.
struct Client<'a> {
    vip: &'a VipCluster,
    running: Running,
}

#[derive(Debug, serde::Deserialize)]
struct Tally {
    connected: u64,
    failed: BTreeMap<String, u64>,
}

impl VipCluster {
    fn start(nodes: &'static [&'static str]) -> Self {
        let topology = Topology {
            nodes: u8::try_from(nodes.len()).unwrap(),
            family: Family::Ipv4,
            virtual_address: true,
            balancer: false,
            ..Topology::default()
        };
        let vip = Self { cluster: Cluster::start(&topology).unwrap(), nodes };
        vip.leads_to(PREFERRED);
        vip
    }

    /// Waits until each node has led to this apiserver at some time: one may leave it before another one reaches it.
    #[track_caller]
    fn leads_to(&self, (_, address): (&str, &str)) {
        let mut left = self.nodes.to_vec();
        eventually(&format!("each of {left:?} leads to {address}"), || {
            left.retain(|node| self.led(node).as_deref() != Some(address));
            left.is_empty()
        });
    }

    fn led(&self, node: &str) -> Option<String> {
        let said = self.cluster.on(node).ok()?.run(&["holdfast", "apiserver", "-o", "json"]).ok()?;
        let said: serde_json::Value = serde_json::from_slice(&said.stdout).ok()?;
        said["vip"]["leads_to"].as_str().map(str::to_owned)
    }

    /// Sends a signal to a service, which is restarted when it ends.
    fn signal(&self, machine: &str, signal: &str, service: &str) {
        typed(&self.cluster, machine, &format!("kill -{signal} $(cat /run/services/{service}.pid)"));
    }

    fn pid(&self, service: &str) -> String {
        typed(&self.cluster, "cp", &format!("cat /run/services/{service}.pid"))
    }

    /// Each node's readiness, and since when.
    fn ready(&self) -> String {
        let ready = r#"{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}"#;
        let since = r#"{.status.conditions[?(@.type=="Ready")].lastTransitionTime}"#;
        let each = format!("jsonpath={{range .items[*]}}{ready} {since}{{\"\\n\"}}{{end}}");
        self.cluster.kubectl(&["get", "nodes", "-o", &each]).unwrap()
    }

    /// The last renewal of each kubelet's lease, as this apiserver has it.
    fn heard(&self, (_, address): (&str, &str)) -> Vec<String> {
        let server = format!("--server=https://{address}");
        let time = ["-o", "jsonpath={.spec.renewTime}"];
        let asked = ["--tls-server-name=kubernetes", &server, "-n", "kube-node-lease", "get", "lease"];
        let heard = |node: &&str| self.cluster.kubectl(&[&asked, &[*node][..], &time].concat());
        self.nodes.iter().map(|node| heard(node).unwrap_or_default()).collect()
    }

    /// Waits until each kubelet renews its lease at this apiserver.
    #[track_caller]
    fn is_heard(&self, by: (&str, &str)) {
        let before = self.heard(by);
        eventually("each kubelet heard", || {
            let now = self.heard(by);
            now.iter().zip(&before).all(|(now, before)| !now.is_empty() && now != before)
        });
    }

    /// Checks that no node was given up since `before`, and that kubelets follow the cluster.
    #[track_caller]
    fn was_never_unready(&self, before: &str) {
        self.is_heard(OTHER);
        assert_eq!(self.ready(), before, "a node was not ready");
        self.cluster.kubectl(&["-n", "kube-system", "rollout", "restart", "deployment/coredns"]).unwrap();
        self.cluster.wait_until_ready().unwrap();
    }

    fn client(&self, node: &str) -> Client<'_> {
        let machine = self.cluster.on(node).unwrap();
        let program =
            env::var_os("HOLDFAST_DIALER").expect("HOLDFAST_DIALER, which `make part PART=nodes` sets");
        machine.write(DIALER, fs::read(program).unwrap()).unwrap();
        typed(&self.cluster, node, &format!("chmod 755 {DIALER}; rm -f {END}"));
        let dial =
            format!("{{ until [ -e {END} ]; do sleep 0.1; done; echo; sleep 1; }} | {DIALER} dial {VIRTUAL}");
        Client { vip: self, running: machine.spawn("dialer", &["sh", "-c", &dial]).unwrap() }
    }
}

impl Client<'_> {
    /// Ends the client and checks that none of its connects failed.
    #[track_caller]
    fn end_without_a_failure(mut self, node: &str) {
        self.vip.cluster.on(node).unwrap().write(END, "").unwrap();
        eventually("the client told", || !self.running.runs());
        let said = self.running.written().unwrap();
        let tally: Tally = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
        println!("{node}: {tally:?}");
        assert!(tally.failed.is_empty() && tally.connected >= CONNECTED_MIN, "{tally:?}");
    }
}

#[test]
fn nodes_stay_ready_while_an_apiserver_restarts_20_times() {
    let vip = VipCluster::start(&NODES);
    let before = vip.ready();
    for death in 1..=DEATHS {
        vip.signal("cp", "KILL", PREFERRED.0);
        vip.leads_to(OTHER);
        if death % DAEMON_DIES_EACH == 0 {
            vip.signal("n1", "KILL", "proxy");
        }
        vip.leads_to(PREFERRED);
    }
    vip.was_never_unready(&before);
}

#[test]
fn a_planned_apiserver_end_costs_a_nodes_client_no_connect() {
    let vip = VipCluster::start(&NODES[..1]);
    let (before, client) = (vip.ready(), vip.client("n1"));
    for _ in 0..PLANNED_ENDS {
        let old = vip.pid(PREFERRED.0);
        vip.signal("cp", "TERM", PREFERRED.0);
        vip.leads_to(OTHER);
        vip.signal("n1", "KILL", "proxy");
        eventually("it has ended and begun anew", || vip.pid(PREFERRED.0) != old);
        vip.leads_to(PREFERRED);
    }
    client.end_without_a_failure("n1");
    vip.was_never_unready(&before);
}

/// In that issue, the process of all connections got no processor on a node with thousands of pods.
#[test]
fn a_daemon_without_processor_time_cuts_no_kubelet_as_talos_8112() {
    let vip = VipCluster::start(&NODES[..1]);
    let (before, client) = (vip.ready(), vip.client("n1"));
    vip.signal("n1", "STOP", "proxy");
    pause(STARVED);
    vip.is_heard(OTHER);
    vip.signal("n1", "CONT", "proxy");
    vip.leads_to(PREFERRED);
    client.end_without_a_failure("n1");
    vip.was_never_unready(&before);
}

/// In that issue, a node's balancer stayed with the last server until that one returned.
#[test]
fn alternating_apiserver_outages_lose_no_node_as_k3s_11349() {
    let vip = VipCluster::start(&NODES[..1]);
    let (before, cp) = (vip.ready(), vip.cluster.on("cp").unwrap());
    for (away, there) in [(PREFERRED, OTHER), (OTHER, PREFERRED), (PREFERRED, OTHER), (OTHER, PREFERRED)] {
        cp.stop(away.0).unwrap();
        vip.leads_to(there);
        pause(TURN);
        vip.is_heard(there);
        cp.start(away.0).unwrap();
        eventually("it serves again", || !vip.heard(away).concat().is_empty());
    }
    vip.leads_to(PREFERRED);
    vip.was_never_unready(&before);
}

/// In that issue, some nodes booted after an update without a listener at the address.
#[test]
fn a_kubelet_starts_before_or_after_holdfast_as_talos_10598() {
    let vip = VipCluster::start(&NODES[..1]);
    let complaints =
        || typed(&vip.cluster, "n1", "grep -c 'dial tcp 169.254.20.1' /var/log/machine/kubelet.log; true");
    let before = complaints();
    reboot_without(&vip, "proxy", || eventually("a kubelet that dials in vain", || complaints() != before));
    reboot_without(&vip, "kubelet", || vip.leads_to(PREFERRED));
    let cp = vip.cluster.on("cp").unwrap();
    [PREFERRED, OTHER].iter().for_each(|(apiserver, _)| cp.stop(apiserver).unwrap());
    vip.cluster.stop_machine("n1").unwrap();
    vip.cluster.boot_machine("n1").unwrap();
    // The other apiserver served last, and ended last.
    eventually("a daemon that knows where it led", || vip.led("n1").as_deref() == Some(OTHER.1));
    cp.start(PREFERRED.0).unwrap();
    vip.leads_to(PREFERRED);
    vip.is_heard(PREFERRED);
    cp.start(OTHER.0).unwrap();
    vip.cluster.wait_for_nodes().unwrap();
    vip.leads_to(PREFERRED);
}

/// Reboots the node, except for one service, which starts only after `seen`.
#[track_caller]
fn reboot_without(vip: &VipCluster, service: &str, seen: impl FnOnce()) {
    let (node, script) = (vip.cluster.on("n1").unwrap(), format!("/etc/machine/services/{service}"));
    let whole = typed(&vip.cluster, "n1", &format!("cat {script}"));
    let go = format!("/run/{service}.go");
    node.write(&script, format!("until [[ -e {go} ]]; do sleep 0.1; done\n{whole}")).unwrap();
    vip.cluster.stop_machine("n1").unwrap();
    vip.cluster.boot_machine("n1").unwrap();
    seen();
    node.write(&go, "").unwrap();
    vip.is_heard(OTHER);
    node.write(&script, whole).unwrap();
}
