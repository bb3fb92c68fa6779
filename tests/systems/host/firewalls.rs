//! Firewalls as Debian installs them, beside holdfast on one node: which clients they stop, the settings of
//! docs/network.md that let them in, and clients that connect while a firewall starts, reloads, stops and is flushed.
//!
//! holdfast serves a pod at a NodePort, a VIP and a ClusterIP, and a process of the node at a VIP and a ClusterIP.

use std::fs;

use holdfast_tests::bed::{Dialer, Server};
use holdfast_tests::host::Host;

use super::{CONFIG, First, address, boot, install, page, property, repository};

/// The node's uplink to an outside host, and its pod.
const NETWORK: [&str; 18] = [
    "ip netns add outside",
    "ip netns add pod",
    "ip link add eth0 type veth peer name eth0 netns outside",
    "ip link add veth1 type veth peer name eth0 netns pod",
    "ip address add 192.0.2.1/24 dev eth0",
    "ip link set eth0 up",
    "ip address add 10.244.0.1/24 dev veth1",
    "ip link set veth1 up",
    "ip -n outside link set lo up",
    "ip -n outside address add 192.0.2.100/24 dev eth0",
    "ip -n outside link set eth0 up",
    "ip -n outside route add default via 192.0.2.1",
    "ip -n pod link set lo up",
    "ip -n pod address add 10.244.0.5/24 dev eth0",
    "ip -n pod link set eth0 up",
    "ip -n pod route add default via 10.244.0.1",
    "ip route add default via 192.0.2.100",
    "sysctl -qw net.ipv4.ip_forward=1",
];

const SERVED: &str = "[manifests]\npath = \"manifests\"\n";

const MANIFESTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: pod, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pod-1, namespace: default, labels: {kubernetes.io/service-name: pod}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.5]}]
---
apiVersion: v1
kind: Service
metadata: {name: process, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.11
  ports: [{port: 80, targetPort: 8080, nodePort: 30081}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.11}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: process-1, namespace: default, labels: {kubernetes.io/service-name: process}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [192.0.2.1]}]
"#;

/// Where a client is, and what it dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A client outside, at a VIP of the pod.
    Vip,
    /// A client outside, at the pod's NodePort.
    NodePort,
    /// A client outside, at a VIP of a process of the node.
    Process,
    /// The pod, at the ClusterIP of a process of the node.
    Pod,
    /// A process of the node, at the pod's ClusterIP.
    Node,
}

const ALL: [Way; 5] = [Way::Vip, Way::NodePort, Way::Process, Way::Pod, Way::Node];

/// A firewall's own rules let the node dial, and nobody in.
const ONLY_NODE: [Way; 1] = [Way::Node];

impl Way {
    fn dial(self, host: &Host) -> Dialer {
        match self {
            Self::Vip => host.dial_from("outside", address("203.0.113.10:80")),
            Self::NodePort => host.dial_from("outside", address("192.0.2.1:30080")),
            Self::Process => host.dial_from("outside", address("203.0.113.11:80")),
            Self::Pod => host.dial_in("pod", address("10.96.0.11:80")),
            Self::Node => host.dial(address("10.96.0.10:80")),
        }
        .unwrap()
    }
}

struct Node {
    host: Host,
    _servers: [Server; 2],
}

impl Node {
    /// A node whose firewall comes before holdfast. The lines start the firewall as Debian ships it.
    fn behind(firewall: &[&str]) -> Self {
        let host = boot();
        typed(&host, &NETWORK);
        let servers = [
            host.serve_in("pod", "pod", address("10.244.0.5:8080")).unwrap(),
            host.serve("process", address("192.0.2.1:8080")).unwrap(),
        ];
        typed(&host, firewall);
        install(&host, First);
        host.write("/etc/holdfast/manifests/services.yaml", MANIFESTS).unwrap();
        host.write(CONFIG, SERVED).unwrap();
        typed(&host, &["systemctl start holdfast"]);
        assert_eq!(property(&host, "StatusText"), "2 services, 2 backends, 0 held");
        Self { host, _servers: servers }
    }

    /// Checks which ways connect, each for some seconds. Until holdfast has seen a new rule, packets may pass it by the
    /// shortcut.
    #[track_caller]
    fn check_reached(&mut self, expected: &[Way]) {
        let mut dialers = ALL.map(|way| (way, way.dial(&self.host)));
        let mut tallies = || {
            typed(&self.host, &["sleep 3"]);
            dialers.each_mut().map(|(way, dialer)| (*way, dialer.tally().unwrap()))
        };
        tallies();
        let tallies = tallies();
        for (way, tally) in &tallies {
            let connects = tally.connected > 10 && tally.failed.is_empty();
            assert!(connects || tally.connected == 0, "{tallies:#?}");
            assert_eq!(connects, expected.contains(way), "{way:?}: {tallies:#?}");
        }
    }

    /// Runs each line while clients connect on all ways. None fails, and each connects after the line.
    #[track_caller]
    fn check_no_connect_fails(&mut self, lines: &[&str]) {
        let mut dialers = ALL.map(|way| (way, way.dial(&self.host)));
        for line in lines {
            typed(&self.host, &[line]);
            for (way, dialer) in &mut dialers {
                // An attempt may have begun before the line.
                let during = dialer.tally().unwrap();
                let mut after = 0;
                self.host
                    .wait_for("connections after a change of the firewall", |_| {
                        let tally = dialer.tally().unwrap();
                        assert!(tally.failed.is_empty(), "{line}: {way:?}: {tally}");
                        after += tally.connected;
                        after > 10
                    })
                    .unwrap();
                assert!(during.failed.is_empty(), "{line}: {way:?}: {during}");
                println!("{line}: {way:?}: {} connected, none failed", during.connected + after);
            }
        }
    }

    /// Waits until `holdfast status` names a chain.
    #[track_caller]
    fn wait_for_named(&mut self, chain: &str) {
        let is_named =
            |host: &mut Host| host.run(&["holdfast", "status"]).is_ok_and(|said| said.out.contains(chain));
        self.host.wait_for("the name of the firewall's chain", is_named).unwrap();
    }
}

#[track_caller]
fn typed(host: &Host, lines: &[&str]) {
    lines.iter().for_each(|line| _ = host.shell(line).unwrap().expect_success());
}

/// The section of the page, and its only block.
fn section(heading: &str) -> (String, String) {
    let network = fs::read_to_string(repository().join("docs/network.md")).unwrap();
    let [block] = page::blocks(&network, heading);
    let rest = network.split_once(&format!("# {heading}\n")).unwrap().1.split("\n#").next().unwrap();
    (rest.to_owned(), block)
}

#[test]
fn firewalld_needs_a_policy_and_fails_no_connect() {
    let mut node = Node::behind(&["systemctl start firewalld"]);
    node.check_reached(&ONLY_NODE);
    node.wait_for_named("filter_FORWARD");
    let (_, policy) = section("firewalld");
    policy.lines().for_each(|line| typed(&node.host, &[line]));
    node.check_reached(&[Way::Vip, Way::NodePort, Way::Pod, Way::Node]);
    typed(
        &node.host,
        &["firewall-cmd --permanent --zone=public --add-port=8080/tcp", "firewall-cmd --reload"],
    );
    node.check_reached(&ALL);
    node.check_no_connect_fails(&[
        "firewall-cmd --reload",
        "systemctl reload firewalld",
        "systemctl restart firewalld",
        "nft flush ruleset",
        "systemctl restart firewalld",
        "systemctl stop firewalld",
        "systemctl start firewalld",
    ]);
    node.check_reached(&ALL);
}

#[test]
fn ufw_needs_two_rules_and_fails_no_connect() {
    let mut node = Node::behind(&["ufw --force enable"]);
    node.check_reached(&ONLY_NODE);
    let (text, rules) = section("ufw");
    let route = "ufw route allow to 10.244.0.0/16";
    assert!(text.contains(&format!("`{route}`")), "{text}");
    typed(&node.host, &[route]);
    node.check_reached(&[Way::Vip, Way::NodePort, Way::Node]);
    rules.lines().for_each(|line| typed(&node.host, &[line]));
    node.check_reached(&ALL);
    node.check_no_connect_fails(&[
        "ufw reload",
        "systemctl restart ufw",
        "ufw --force disable",
        "ufw --force enable",
        "nft flush ruleset",
        "ufw reload",
    ]);
    node.check_reached(&ALL);
}

/// Debian's service with a configuration that drops by default: what it accepts in INPUT and FORWARD beyond that.
fn nftables(input: &str, forward: &str) -> String {
    format!(
        "flush ruleset
table inet filter {{
 chain input {{
  type filter hook input priority filter; policy drop;
  ct state established,related accept
  iifname \"lo\" accept
  {input}
 }}
 chain forward {{
  type filter hook forward priority filter; policy drop;
  ct state established,related accept
  {forward}
 }}
}}
"
    )
}

#[test]
fn nftables_needs_rules_for_backends_and_fails_no_connect() {
    const FILE: &str = "/etc/nftables.conf";
    let host_file = |node: &Node, text: &str| {
        node.host.write(FILE, text).unwrap();
        typed(&node.host, &["systemctl reload nftables"]);
    };
    let mut node = Node::behind(&["systemctl start nftables"]);
    node.check_reached(&ALL);
    host_file(&node, &nftables("", ""));
    node.check_reached(&ONLY_NODE);
    host_file(&node, &nftables("", "ip daddr 10.244.0.0/16 accept"));
    node.check_reached(&[Way::Vip, Way::NodePort, Way::Node]);
    host_file(&node, &nftables("tcp dport 8080 accept", "ip daddr 10.244.0.0/16 accept"));
    node.check_reached(&ALL);
    node.check_no_connect_fails(&[
        "systemctl reload nftables",
        "systemctl restart nftables",
        "nft flush ruleset",
        "systemctl restart nftables",
        "systemctl stop nftables",
        "systemctl start nftables",
    ]);
    node.check_reached(&ALL);
}
