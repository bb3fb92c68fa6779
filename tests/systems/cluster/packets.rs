//! The real kube-proxy's treatment of packets: the table of expectations, row by row.

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{Stopwatch, wait_until};
use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, POD_CIDRS, Switches};
use holdfast_tests::bed::{Bed, Location, Server, succeed};
use holdfast_tests::packets::{self, CASES, Clients, Family, Proxy, frontend, outside, rows, sign};
use holdfast_tests::peers::{Api, Cluster, Kind, Part};
use serde_json::{Value, json};

use crate::stage::{self, NODE};

/// Writes an object with the status that kubelet or the cloud controller would write.
fn write(api: &Api<'_>, object: &Value) {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let created = api.apply_object(object);
    created.unwrap_or_else(|error| panic!("{}: {error}", word("/metadata/name")));
    if let Some(status) = object.get("status") {
        let name = format!("default/{}", word("/metadata/name"));
        api.merge_status(Kind::Service, &name, &json!({"status": status})).unwrap();
    }
}

/// A cluster on a fabric, with both nodes and all services of the table.
fn cluster(switches: Switches) -> Cluster {
    let cluster = Cluster::start_with_pod_ranges(fabric::layout(), 1, POD_CIDRS).unwrap();
    fabric::lay(cluster.bed(), switches).unwrap();
    let api = cluster.api(0).unwrap();
    api.add_node(NODE, "zone-a").unwrap();
    api.add_node("n2", "zone-a").unwrap();
    let addresses = NODE_ADDRESSES.map(|address| json!({"type": "InternalIP", "address": address}));
    api.merge_status(Kind::Node, NODE, &json!({"status": {"addresses": addresses}})).unwrap();
    packets::objects().iter().for_each(|object| write(&api, object));
    cluster
}

/// Starts kube-proxy, with clients and servers around it.
fn served(cluster: &Cluster) -> (Clients, Vec<Server>) {
    let servers = packets::serve(cluster.bed()).unwrap();
    let mut clients = Clients::start(cluster.bed()).unwrap();
    cluster.start_part(Part::Proxy).unwrap();
    assert!(clients.wait_for(&sign(), TEST_TIMEOUT).unwrap(), "kube-proxy does not serve");
    (clients, servers)
}

#[track_caller]
fn check_table(switches: Switches) {
    let cluster = cluster(switches);
    let (mut clients, _servers) = served(&cluster);
    let begun = Stopwatch::start();
    let lines = clients.differences(&rows(), Proxy::KubeProxy).unwrap();
    println!("{} rows of two families and protocols in {:?}", rows().len(), begun.read());
    assert!(lines.is_empty(), "{} answers are not as expected:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn packets_kube_proxy_matches_the_table() {
    check_table(Switches::default());
}

#[test]
fn packets_kube_proxy_matches_the_table_behind_a_firewall_with_checksums() {
    check_table(Switches { strict_rp_filter: true, guarded: true, no_offload: true, ..Switches::default() });
}

#[test]
fn packets_kube_proxy_passes_every_case() {
    let cluster = cluster(CASES[0].switches);
    let (mut clients, _servers) = served(&cluster);
    let failed = CASES.iter().flat_map(|case| {
        if case.switches.narrow {
            fabric::narrow_path(cluster.bed()).unwrap();
        }
        let begun = Stopwatch::start();
        let lines = (case.run)(cluster.bed(), &mut clients).unwrap();
        println!("{} in {:?}", case.name, begun.read());
        lines.into_iter().map(|line| format!("{}: {line}", case.name))
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Holds connections of this client, to tell former and later ones apart.
fn hold(clients: &mut Clients, client: &str, count: usize) {
    for (family, service) in
        [(Family::V4, "here"), (Family::V6, "here"), (Family::V4, "away"), (Family::V6, "away")]
    {
        let to = frontend(service, "node", family).unwrap();
        let held = clients.client(client).unwrap().hold(to, None, count / 4).unwrap();
        assert_eq!(held, HeldConnections { alive: count / 4, ..HeldConnections::default() }, "{client} {to}");
    }
}

#[track_caller]
fn check_alive(clients: &mut Clients, client: &str, count: usize, when: &str) {
    let held = clients.client(client).unwrap().try_held().unwrap();
    assert_eq!(held, HeldConnections { alive: count, ..HeldConnections::default() }, "{client}: {when}");
}

/// Removes its rules as `kube-proxy --cleanup` does.
fn remove_rules(bed: &Bed) {
    for family in ["ip", "ip6"] {
        let mut nft = bed.command(Location::OUTSIDE, "nft").unwrap();
        nft.args(["delete", "table", family, "kube-proxy"]);
        succeed(nft, TEST_TIMEOUT).unwrap();
    }
}

/// The first client's connections use kube-proxy, the third one's holdfast. kube-proxy's translations last as long as
/// the kernel has any NAT rules: its own until they are removed.
#[test]
fn packets_a_node_moves_from_kube_proxy_to_holdfast_under_live_connections() {
    let cluster = cluster(Switches { strict_rp_filter: true, guarded: true, ..Switches::default() });
    stage::permit(&cluster, 1, stage::MANIFEST, (stage::USER, &[]));
    let (mut clients, _servers) = served(&cluster);
    hold(&mut clients, "outside", 200);
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(&cluster, 1)).unwrap();
    daemon.start().unwrap();
    assert!(clients.wait_for(&sign(), TEST_TIMEOUT).unwrap());
    check_alive(&mut clients, "outside", 200, "both serve");
    hold(&mut clients, "outside-3", 200);
    cluster.stop(Part::Proxy).unwrap();
    check_alive(&mut clients, "outside", 200, "kube-proxy has ended");
    hold(&mut clients, "outside-3", 100);
    remove_rules(cluster.bed());
    check_alive(&mut clients, "outside-3", 300, "kube-proxy's rules are gone");
    hold(&mut clients, "outside-3", 100);
    daemon.stop().unwrap();
    cluster.start_part(Part::Proxy).unwrap();
    check_alive(&mut clients, "outside-3", 400, "kube-proxy is back");
    go_back(&cluster, &daemon, clients);
}

fn has_rule(bed: &Bed, node_port: u16) -> bool {
    let mut nft = bed.command(Location::OUTSIDE, "nft").unwrap();
    nft.args(["list", "table", "ip", "kube-proxy"]);
    succeed(nft, TEST_TIMEOUT).is_ok_and(|rules| rules.contains(&format!(". {node_port} :")))
}

/// Former connections end by themselves, and kube-proxy serves new ones.
#[track_caller]
fn go_back(cluster: &Cluster, daemon: &Daemon<'_>, mut clients: Clients) {
    let to = frontend("away", "node", Family::V4).unwrap();
    wait_until("kube-proxy has no rules", || has_rule(cluster.bed(), to.port()));
    assert!(!daemon.drain().unwrap(), "clients are there");
    check_alive(&mut clients, "outside-3", 400, "the node drains");
    let mut other = cluster.bed().asker(Location::far("client")).unwrap();
    assert_eq!(
        other.hold(to, None, 100).unwrap(),
        HeldConnections { alive: 100, ..HeldConnections::default() }
    );
    check_alive(&mut clients, "outside-3", 400, "others come");
    drop(clients);
    wait_until("somebody still has a flow", || daemon.drain().unwrap());
    assert_eq!(
        other.try_held().unwrap(),
        HeldConnections { alive: 100, ..HeldConnections::default() },
        "these were never ours"
    );
}

/// Two services with a UDP flow at each of these addresses: one loses its only endpoint, the other one is deleted.
const UDP_ADDRESSES: [&str; 4] = ["cluster", "balancer", "external", "node"];
const EMPTIED: (&str, u16) = ("here", 41_000);
const REMOVED: (&str, u16) = ("away", 41_010);

/// The outcome of a datagram in each flow. The flows of a service begin at consecutive ports of the outside client.
fn flows(clients: &mut Clients, (service, first): (&str, u16)) -> [&'static str; 4] {
    let mut ports = first..;
    UDP_ADDRESSES.map(|address| {
        let to = frontend(service, address, Family::V4).unwrap();
        let from = outside(Family::V4, ports.next().unwrap());
        let question = Question::new(Transport::Udp, to).from(from);
        match clients.client("outside").unwrap().ask(question).unwrap() {
            Outcome::Answered { .. } => "answered",
            Outcome::Refused => "refused",
            _ => "lost",
        }
    })
}

/// Checks the flows of both services.
#[track_caller]
fn check_udp(cluster: &Cluster, clients: &mut Clients, emptied: [&str; 4], removed: [&str; 4]) {
    let api = cluster.api(0).unwrap();
    assert_eq!([EMPTIED, REMOVED].map(|flow| flows(clients, flow)), [["answered"; 4]; 2]);
    api.delete(Kind::Slice, "default/here-v4").unwrap();
    wait_until("its endpoint is gone", || flows(clients, EMPTIED)[0] == "refused");
    assert_eq!(flows(clients, EMPTIED), emptied);
    api.delete(Kind::Service, "default/away").unwrap();
    // Each attempt uses a new client, because former ones may have flows.
    let mut ports = (42_000..).step_by(UDP_ADDRESSES.len());
    let mut look = || flows(clients, ("away", ports.next().unwrap()))[3];
    wait_until("it is gone for new clients", || look() != "answered");
    assert_eq!(flows(clients, REMOVED), removed);
}

#[test]
fn packets_kube_proxy_refuses_udp_without_endpoints_except_at_node_ports() {
    let cluster = cluster(Switches::default());
    let (mut clients, _servers) = served(&cluster);
    check_udp(&cluster, &mut clients, ["refused", "refused", "refused", "answered"], ["answered"; 4]);
}

#[test]
fn packets_holdfast_sends_no_udp_to_a_removed_endpoint() {
    let cluster = cluster(Switches::default());
    stage::permit(&cluster, 1, stage::MANIFEST, (stage::USER, &[]));
    let _servers = packets::serve(cluster.bed()).unwrap();
    let mut clients = Clients::start(cluster.bed()).unwrap();
    let config = stage::by_certificate(&cluster, 1) + "[hold]\non_empty = \"refuse\"\n";
    let mut daemon = Daemon::new(cluster.bed(), &config).unwrap();
    daemon.start().unwrap();
    assert!(clients.wait_for(&sign(), TEST_TIMEOUT).unwrap(), "holdfast does not serve");
    // No host has the addresses of a deleted service.
    check_udp(&cluster, &mut clients, ["refused"; 4], ["lost", "lost", "lost", "refused"]);
}
