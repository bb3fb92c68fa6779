//! CoreDNS on the node: as the instance of kube-dns that the node prefers, and at an address of the node.
//!
//! Invariant: each CoreDNS answers with an address of its own, so that each answer names its server. A question may
//! fail while an instance is dead and nobody has said so; none fails afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{pause, wait_until};
use holdfast_tests::bed::ask::Transport;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::queries::{Answers, NAME, PATIENCE, Queries, now};
use holdfast_tests::bed::{Bed, Location, succeed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::control::{CONTROL_PORT, Control, Stalls};
use crate::programs;

/// The whole rate, by UDP and TCP, from a pod and from the node.
const PER_SECOND: u32 = 1000;

/// Its place, how it asks, and its name.
type Client = (Location<'static>, Transport, &'static str);

pub(crate) const CLIENTS: [Client; 4] = [
    (Location::pod("pod-a"), Transport::Udp, "the pod by UDP"),
    (Location::pod("pod-a"), Transport::Tcp, "the pod by TCP"),
    (Location::NODE, Transport::Udp, "the node by UDP"),
    (Location::NODE, Transport::Tcp, "the node by TCP"),
];

const KUBE_DNS: &str = "10.96.0.10:53";

/// The address of upstream's NodeLocal DNSCache.
const NODE_LOCAL: &str = "169.254.20.10";

/// How long each state lasts under load.
const STATE: Duration = Duration::from_secs(2);

/// How long the cluster takes to see that an instance is dead; kubelet takes longer.
const UNNOTICED: Duration = Duration::from_secs(1);

/// What an instance answers: local, on another node, the local one's successor, at the node's address.
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const AWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const NEXT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
const CACHE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

/// A running CoreDNS.
struct CoreDns(Child);

impl CoreDns {
    /// Starts one that answers with this address, and waits for it. `more` has further lines of its Corefile.
    #[track_caller]
    fn start(bed: &Bed, daemon: &Daemon<'_>, place: Location<'_>, at: &str, answer: Ipv4Addr) -> Self {
        let hosts = format!("hosts {{\n  {answer} {NAME}\n  ttl 1\n }}");
        let corefile = format!(
            ".:53 {{\n bind {at}\n health {at}:8080 {{\n  lameduck 2s\n }}\n errors\n {hosts}\n}}\n\
             .:{CONTROL_PORT} {{\n bind {at}\n {hosts}\n}}\n"
        );
        let file = daemon.folder().join(format!("Corefile-{at}"));
        fs::write(&file, corefile).unwrap();
        let mut command = bed.command(place, programs::path("coredns")).unwrap();
        command.arg("-conf").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        let server = Self(command.spawn().unwrap());
        wait_for_answers(bed, place, &format!("{at}:53"), answer);
        server
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for its end.
    fn wait(mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for CoreDns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn wait_for_answers(bed: &Bed, place: Location<'_>, server: &str, answer: Ipv4Addr) {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut queries = bed.queries(place, transport, server.parse().unwrap(), 50).unwrap();
        wait_until(format_args!("{server} by {transport:?} answers {answer}"), || {
            // Enough for several queries.
            pause(Duration::from_millis(100));
            let answers = queries.tally().unwrap();
            answers.lost.is_empty() && answers.by.keys().eq([&answer])
        });
    }
}

/// An instance in the slice of kube-dns.
#[derive(Clone, Copy)]
struct Endpoint {
    address: &'static str,
    node: &'static str,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Ready,
    Unready,
    Terminating,
}

const fn endpoint(address: &'static str, node: &'static str, phase: Phase) -> Endpoint {
    Endpoint { address, node, phase }
}

const AWAY_READY: Endpoint = endpoint("10.244.9.10", "n2", Phase::Ready);

/// kube-dns with `trafficDistribution: PreferSameNode`, and the hints that its controller writes for it: for each ready
/// endpoint its own node.
fn kube_dns(endpoints: &[Endpoint]) -> String {
    let ports = [("dns", "UDP"), ("dns-tcp", "TCP")];
    let meta = |name: &str| json!({"name": name, "namespace": "kube-system"});
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": meta("kube-dns"),
        "spec": {
            "clusterIP": "10.96.0.10", "trafficDistribution": "PreferSameNode",
            "ports": ports.map(|(name, protocol)| json!({"name": name, "port": 53, "protocol": protocol})),
        },
    });
    let row = |it: &Endpoint| {
        let is_ready = it.phase == Phase::Ready;
        let hints = if is_ready { json!({"forNodes": [{"name": it.node}]}) } else { Value::Null };
        json!({
            "addresses": [it.address], "nodeName": it.node, "hints": hints,
            "conditions": {
                "ready": is_ready, "serving": it.phase != Phase::Unready,
                "terminating": it.phase == Phase::Terminating,
            },
        })
    };
    let mut metadata = meta("kube-dns-1");
    metadata["labels"] = json!({"kubernetes.io/service-name": "kube-dns"});
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": metadata,
        "ports": ports.map(|(name, protocol)| json!({"name": name, "port": 53, "protocol": protocol})),
        "endpoints": endpoints.iter().map(row).collect::<Vec<_>>(),
    });
    format!("{service}\n---\n{slice}\n")
}

/// A node under load.
struct Stage<'a> {
    bed: &'a Bed,
    daemon: Daemon<'a>,
    clients: Vec<Queries>,
    control: Option<Control>,
    /// Pods are served by their packets: a datagram from a port that was used a moment ago goes on to the same
    /// instance while that serves.
    has_flows: bool,
}

impl<'a> Stage<'a> {
    #[track_caller]
    fn start(bed: &'a Bed, datapath: &str, more: &str) -> Self {
        let mut daemon = Daemon::new(bed, &format!("[node]\nname = \"n1\"\n{more}")).unwrap();
        let text = fs::read_to_string(daemon.config()).unwrap();
        let text = text.replacen("[datapath]\n", &format!("[datapath]\n{datapath}"), 1);
        fs::write(daemon.config(), text).unwrap();
        daemon.write_manifest("dns.yaml", &kube_dns(&[AWAY_READY])).unwrap();
        daemon.start().unwrap();
        let has_flows = more.contains("pod_devices");
        Self { bed, daemon, clients: Vec::new(), control: None, has_flows }
    }

    #[track_caller]
    fn server(&self, place: &'static str, at: &str, answer: Ipv4Addr) -> CoreDns {
        CoreDns::start(self.bed, &self.daemon, Location::far(place), at, answer)
    }

    /// Tells the daemon of these endpoints, and returns the moment when it says that it uses only these.
    #[track_caller]
    fn publish(&self, endpoints: &[Endpoint], used: &[&str]) -> Duration {
        let begun = now();
        self.daemon.write_manifest("dns.yaml", &kube_dns(endpoints)).unwrap();
        let shown =
            std::fmt::from_fn(|f| f.write_str(&self.daemon.tell(&["frontends", "-o", "wide"]).unwrap()));
        wait_until(shown, || self.is_used(used));
        println!("  the daemon uses {used:?} after {:?}", now() - begun);
        now()
    }

    fn is_used(&self, used: &[&str]) -> bool {
        let answer = self.daemon.ask(&["frontends", "--address", "10.96.0.10"]).unwrap();
        let rows = answer["frontends"].as_array().unwrap();
        let is_row_used = |row: &Value| {
            let addresses: Vec<_> = row["backends"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["address"].as_str().unwrap())
                .collect();
            row["status"] == "done" && addresses == used
        };
        rows.len() == 2 && rows.iter().all(is_row_used)
    }

    /// Lets all clients ask this server, and the control group these instances.
    #[track_caller]
    fn begin_load(&mut self, server: &str, instances: &[(&str, Ipv4Addr)]) {
        let server: SocketAddr = server.parse().unwrap();
        self.control = Some(Control::start(self.bed, instances));
        let rate = PER_SECOND / u32::try_from(CLIENTS.len()).unwrap();
        let start = |(place, transport, _)| self.bed.queries(place, transport, server, rate).unwrap();
        self.clients = CLIENTS.map(start).into();
    }

    /// Waits a while under load; then no question that was sent since `known` may have failed, but where the control
    /// group lost some of its own. The last answers are those of `by`.
    #[track_caller]
    fn check(&mut self, what: &str, known: Duration, by: &[Ipv4Addr]) {
        let (former, last, stalls) = self.watch(by);
        let since = known + self.grace();
        let mut wrong = Vec::new();
        for ((client, former), last) in CLIENTS.iter().zip(&former).zip(&last) {
            let who = client.2;
            let answered: u64 = former.by.values().chain(last.by.values()).sum();
            let lost: Vec<_> = former.lost.iter().chain(&last.lost).collect();
            let after: Vec<_> = lost.iter().filter(|it| it.sent > since && !stalls.excuse(it.sent)).collect();
            println!(
                "  {what}: {who}: {answered} answered, {} lost, {} of them late, {} of the control group; then by {:?}",
                lost.len(),
                after.len(),
                stalls.count(),
                last.by
            );
            if !after.is_empty() || !self.is_expected(client, last, by) {
                wrong.push(format!("{who} at {:?}: by {:?}: {after:?}", now(), last.by));
            }
        }
        assert!(wrong.is_empty(), "{what}, known at {known:?}: {}", wrong.join("\n"));
    }

    /// The answers from now on until the state has lasted a while, those after that, and the machine's stalls.
    #[track_caller]
    fn watch(&mut self, by: &[Ipv4Addr]) -> (Vec<Answers>, Vec<Answers>, Stalls) {
        pause(STATE + PATIENCE);
        let former = self.tally();
        pause(STATE);
        let last = self.tally();
        (former, last, self.control.as_mut().unwrap().stalls(by))
    }

    /// Whether each of these instances answers the client, and no other.
    fn is_expected(&self, (place, transport, _): &Client, last: &Answers, by: &[Ipv4Addr]) -> bool {
        let may_linger = self.has_flows && *transport == Transport::Udp && *place != Location::NODE;
        let others = last.by.keys().filter(|it| !by.contains(it) && (!may_linger || **it != AWAY));
        others.count() == 0 && by.iter().all(|it| last.by.contains_key(it))
    }

    /// Packets of one second follow their flow: a port that is used again within it leads to the same instance.
    fn grace(&self) -> Duration {
        if self.has_flows { Duration::from_secs(1) } else { Duration::ZERO }
    }

    fn tally(&mut self) -> Vec<Answers> {
        self.clients.iter_mut().map(|it| it.tally().unwrap()).collect()
    }

    /// Sets the link of the local instance.
    #[track_caller]
    fn link(&self, words: &[&str]) {
        for line in words {
            let mut ip = self.bed.command(Location::far("pod-b"), "ip").unwrap();
            ip.args(line.split(' '));
            succeed(ip, TEST_TIMEOUT).unwrap();
        }
    }
}

/// The local instance is cut off, killed, restarted and replaced while clients ask.
#[track_caller]
fn check_preferred_instance(datapath: &str, more: &str) {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut stage = Stage::start(&bed, datapath, more);
    let _away = stage.server("pod-r", "10.244.9.10", AWAY);
    let local = |phase| endpoint("10.244.1.11", "n1", phase);
    let both = [local(Phase::Ready), AWAY_READY];
    let (here, there) = (["10.244.1.11"], ["10.244.9.10"]);

    let first = stage.server("pod-b", "10.244.1.11", LOCAL);
    stage.publish(&both, &here);
    for place in [Location::pod("pod-a"), Location::NODE] {
        wait_for_answers(&bed, place, KUBE_DNS, LOCAL);
    }
    stage.begin_load(KUBE_DNS, &[("10.244.1.11", LOCAL), ("10.244.9.10", AWAY), ("10.244.2.11", NEXT)]);
    stage.check("at rest", Duration::ZERO, &[LOCAL]);

    stage.link(&["link set eth0 down"]);
    pause(UNNOTICED);
    let known = stage.publish(&[local(Phase::Unready), AWAY_READY], &there);
    stage.check("cut off", known, &[AWAY]);
    stage.link(&["link set eth0 up", "route add 10.244.1.1 dev eth0", "route add default via 10.244.1.1"]);
    wait_for_answers(&bed, Location::OUTSIDE, "10.244.1.11:53", LOCAL);
    stage.publish(&both, &here);
    stage.check("joined again", Duration::ZERO, &[LOCAL]);

    first.signal(Signal::SIGKILL);
    first.wait();
    pause(UNNOTICED);
    let known = stage.publish(&[local(Phase::Unready), AWAY_READY], &there);
    stage.check("killed", known, &[AWAY]);
    let second = stage.server("pod-b", "10.244.1.11", LOCAL);
    stage.publish(&both, &here);
    stage.check("started again", Duration::ZERO, &[LOCAL]);

    // Kubernetes tells the slice and the instance at once; CoreDNS answers on while it is lame.
    second.signal(Signal::SIGTERM);
    stage.publish(&[local(Phase::Terminating), AWAY_READY], &there);
    second.wait();
    stage.publish(&[AWAY_READY], &there);
    stage.check("restarting", Duration::ZERO, &[AWAY]);
    let third = stage.server("pod-b", "10.244.1.11", LOCAL);
    stage.publish(&both, &here);
    stage.check("restarted", Duration::ZERO, &[LOCAL]);

    let next = endpoint("10.244.2.11", "n1", Phase::Ready);
    let _fourth = stage.server("pod-d", "10.244.2.11", NEXT);
    stage.publish(&[local(Phase::Ready), next, AWAY_READY], &["10.244.1.11", "10.244.2.11"]);
    third.signal(Signal::SIGTERM);
    stage.publish(&[local(Phase::Terminating), next, AWAY_READY], &["10.244.2.11"]);
    third.wait();
    stage.publish(&[next, AWAY_READY], &["10.244.2.11"]);
    stage.check("rolled", Duration::ZERO, &[NEXT]);
    stage.daemon.stop().unwrap();
}

#[test]
fn only_the_local_instances_own_time_costs_questions() {
    check_preferred_instance("", "");
}

#[test]
fn only_the_local_instances_own_time_costs_questions_of_pods_at_devices() {
    check_preferred_instance("sockets = \"host\"\n", "[packets]\npod_devices = \"auto\"\n");
}

/// The block of the recipe: the cluster's address of DNS leads to the node's cache.
const REDIRECT: &str = r#"
[[service]]
name = "node-local-dns"
protocol = "UDP"
frontends = ["10.96.0.10:53"]
backends = ["169.254.20.10:53"]

[[service]]
name = "node-local-dns-tcp"
protocol = "TCP"
frontends = ["10.96.0.10:53"]
backends = ["169.254.20.10:53"]
"#;

/// Who answers at each address, from the pod and from the node.
#[track_caller]
fn check_answers(bed: &Bed, expected: &BTreeMap<&str, Ipv4Addr>) {
    for (server, answer) in expected {
        for place in [Location::pod("pod-a"), Location::NODE] {
            wait_for_answers(bed, place, server, *answer);
        }
    }
}

fn give_node(bed: &Bed, address: &str) {
    let mut ip = bed.command(Location::OUTSIDE, "ip").unwrap();
    ip.args(["address", "add", &format!("{address}/32"), "dev", "lo"]);
    succeed(ip, TEST_TIMEOUT).unwrap();
}

/// Upstream's NodeLocal DNSCache has both addresses on a device of the node.
#[test]
fn a_cache_at_the_nodes_address_is_asked_only_by_its_own_address() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let stage = Stage::start(&bed, "", "");
    let _away = stage.server("pod-r", "10.244.9.10", AWAY);
    for address in [NODE_LOCAL, "10.96.0.10"] {
        give_node(&bed, address);
    }
    let _caches = [NODE_LOCAL, "10.96.0.10"].map(|address| {
        let file = stage.daemon.folder().join(format!("Corefile-{address}"));
        fs::write(&file, format!(".:53 {{\n bind {address}\n hosts {{\n  {CACHE} {NAME}\n }}\n}}\n"))
            .unwrap();
        let mut command = bed.command(Location::OUTSIDE, programs::path("coredns")).unwrap();
        command.arg("-conf").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        CoreDns(command.spawn().unwrap())
    });
    // A process whose sockets nobody translates finds the cache at both.
    for address in [NODE_LOCAL, "10.96.0.10"] {
        wait_for_answers(&bed, Location::OUTSIDE, &format!("{address}:53"), CACHE);
    }
    check_answers(&bed, &[("169.254.20.10:53", CACHE), (KUBE_DNS, AWAY)].into());
}

#[test]
fn a_block_leads_the_cluster_address_to_the_cache_and_its_removal_leads_back() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut stage = Stage::start(&bed, "", REDIRECT);
    let _away = stage.server("pod-r", "10.244.9.10", AWAY);
    give_node(&bed, NODE_LOCAL);
    let cache = CoreDns::start(&bed, &stage.daemon, Location::OUTSIDE, NODE_LOCAL, CACHE);
    check_answers(&bed, &[("169.254.20.10:53", CACHE), (KUBE_DNS, CACHE)].into());

    stage.begin_load(KUBE_DNS, &[(NODE_LOCAL, CACHE), ("10.244.9.10", AWAY)]);
    stage.check("at rest", Duration::ZERO, &[CACHE]);
    cache.signal(Signal::SIGTERM);
    cache.wait();
    let _cache = CoreDns::start(&bed, &stage.daemon, Location::OUTSIDE, NODE_LOCAL, CACHE);
    stage.check("restarted", now(), &[CACHE]);

    let text = fs::read_to_string(stage.daemon.config()).unwrap();
    fs::write(stage.daemon.config(), text.replace(REDIRECT, "")).unwrap();
    stage.daemon.tell(&["reload"]).unwrap();
    wait_for_answers(&bed, Location::NODE, KUBE_DNS, AWAY);
    stage.check("led back", Duration::ZERO, &[AWAY]);
    stage.daemon.stop().unwrap();
}
