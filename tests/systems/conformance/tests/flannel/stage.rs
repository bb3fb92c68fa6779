//! Two nodes with Flannel's network: a server and a client on each, and what each of them is answered.
//!
//! Invariant: a server says as whom it sees its client, so a packet of the wrong way or source shows.

use std::ops::RangeInclusive;

use holdfast_conformance::{Cluster, Cni, Proxy, Topology};

use super::typing::{eventually, typed};

const OBJECTS: &str = include_str!("objects.yaml");

/// The namespace of its DaemonSet.
const FLANNEL: &str = "kube-flannel";

/// The addresses of `n1`, to which clients outside connect, and the client's own, of both families.
const NODE: [&str; 2] = ["172.30.0.11", "[fd30::11]"];
const CLIENT: [&str; 2] = ["172.30.0.100", "fd30::100"];

/// How packets of `n1` go to the pods of `n2`.
pub(crate) struct Place {
    /// Its sources, of both families.
    pub(crate) sources: [&'static str; 2],
    /// The device that leads there.
    pub(crate) device: &'static str,
    /// The ports that a client outside may get there.
    pub(crate) ports: RangeInclusive<u16>,
}

pub(crate) fn start(cni: Cni, config: &str) -> Cluster {
    let proxy = Proxy::Holdfast { config: config.to_owned() };
    let cluster = Cluster::start(&Topology { nodes: 2, cni, proxy, ..Topology::default() }).unwrap();
    cluster.apply(OBJECTS).unwrap();
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s"]).unwrap();
    cluster
}

/// Starts holdfast of `n1` anew with further configuration.
pub(crate) fn restart_with(cluster: &Cluster, config: &str) {
    let node = cluster.on("n1").unwrap();
    let path = "/etc/holdfast/config.toml";
    let old = typed(cluster, "n1", &format!("cat {path}"));
    node.write(path, format!("{old}\n{config}")).unwrap();
    cluster.restart("proxy").unwrap();
    eventually("holdfast is ready again", || {
        let status = node.run(&["holdfast", "status"]).unwrap();
        let status = String::from_utf8_lossy(&status.stdout);
        status.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == ["ready", "yes"])
    });
}

/// Checks clients outside, on the node and in a pod, at backends of their node and of the other one.
pub(crate) fn check_everyone_is_served(cluster: &Cluster, place: &Place) {
    let way = typed(cluster, "n1", "ip route get 10.244.2.5");
    assert!(way.contains(place.device), "{way}");
    for (family, ((node, own), source)) in NODE.iter().zip(CLIENT).zip(place.sources).enumerate() {
        check_source(cluster, "out", &format!("{node}:30701"), own);
        let port = check_source(cluster, "out", &format!("{node}:30702"), source);
        assert!(place.ports.contains(&port), "{port} at {node}");
        let [one, two] = ["one", "two"].map(|service| cluster_ip(cluster, service, family));
        check_source(cluster, "n1", &two, source);
        let pod = pod_address(cluster, family);
        check_source_of_pod(cluster, &two, &pod);
        check_source_of_pod(cluster, &one, &pod);
    }
}

/// The address and port of a Service, for a URL.
fn cluster_ip(cluster: &Cluster, service: &str, family: usize) -> String {
    let path = format!("jsonpath={{.spec.clusterIPs[{family}]}}");
    let address = cluster.kubectl(&["get", "service", service, "-o", &path]).unwrap();
    if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") }
}

fn pod_address(cluster: &Cluster, family: usize) -> String {
    let path = format!("jsonpath={{.status.podIPs[{family}].ip}}");
    cluster.kubectl(&["get", "pod", "client", "-o", &path]).unwrap()
}

#[track_caller]
fn check_source(cluster: &Cluster, machine: &str, target: &str, source: &str) -> u16 {
    check(&format!("{machine} at {target}"), source, || {
        let answer = cluster.on(machine).unwrap().run(&ask(target)).unwrap();
        String::from_utf8_lossy(&answer.stdout).into_owned()
    })
}

#[track_caller]
fn check_source_of_pod(cluster: &Cluster, target: &str, source: &str) {
    let url = ask(target);
    let command: Vec<&str> = ["exec", "client", "--"].into_iter().chain(url).collect();
    check(&format!("the pod at {target}"), source, || cluster.kubectl(&command).unwrap_or_default());
}

fn ask(target: &str) -> [&str; 5] {
    let url: &'static str = Box::leak(format!("http://{target}/clientip").into_boxed_str());
    ["curl", "-s", "--max-time", "5", url]
}

/// Waits until the server is served, and returns the port that it has seen with this source.
#[track_caller]
fn check(who: &str, source: &str, mut answer: impl FnMut() -> String) -> u16 {
    let mut last = String::new();
    eventually(&format!("{who} is answered"), || {
        last = answer();
        !last.is_empty()
    });
    println!("{who}: {last}");
    let (seen, port) = last.rsplit_once(':').unwrap();
    assert_eq!(seen.trim_matches(['[', ']']), source, "{who}");
    port.trim().parse().unwrap()
}

/// Takes the overlay's device away. Flannel makes another one at once, and its routes when it starts anew.
pub(crate) fn renew_overlay(cluster: &Cluster) {
    let gone = typed(cluster, "n1", "cat /sys/class/net/flannel.1/ifindex && ip link delete flannel.1");
    eventually("a new device has its address", || {
        let now = typed(cluster, "n1", "ip -o -4 address show | grep ' flannel.1 ' || true");
        !now.is_empty() && !now.starts_with(&format!("{}:", gone.trim()))
    });
    cluster.kubectl(&["-n", FLANNEL, "rollout", "restart", "daemonset/kube-flannel-ds"]).unwrap();
    let rollout = ["-n", FLANNEL, "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=180s"];
    cluster.kubectl(&rollout).unwrap();
}

/// Checks that holdfast serves a device, and that its packets do not bypass this chain of Flannel's.
#[track_caller]
pub(crate) fn assert_served_by_the_stack(cluster: &Cluster, device: &str, chain: &str) {
    let datapath = typed(cluster, "n1", "holdfast datapath");
    let row = datapath.lines().find(|line| line.split_whitespace().next() == Some(device));
    let row = row.unwrap_or_else(|| panic!("no {device}: {datapath}"));
    let served = row.split_whitespace().skip(1).take(2).collect::<Vec<_>>() == ["outer", "yes"];
    assert!(served && row.contains("packets go through the stack: table ip"), "{row}");
    assert!(row.contains(&format!("chain {chain} ")), "{row}");
}
