//! A drained node returns to a proxy that masquerades with conntrack: conntrack has the ports of remaining clients as
//! used.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, Switches};
use holdfast_tests::bed::tracked::{TrackedConnection, tracked, untrack};
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::{Clients, Family, frontend, outside};

use crate::node::on_a_node;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Connections of each family, and as many UDP flows.
const EACH: usize = 10;

/// The service's only pod, and a server next to it.
const AWAY: [&str; 2] = ["10.244.9.10:8080", "[fd00:244:9::10]:8080"];
const BESIDE_IT: &str = "10.0.0.6:8080";

/// As kube-proxy masquerades packets to other nodes, with as few ports as the node allocates.
const PORTS: std::ops::RangeInclusive<u16> = 61_000..=61_003;
const SNAT: &str = "[packets]\nsnat_ports = \"61000-61003\"\n";
const MASQUERADE: &str = "table ip other {
 chain post {
  type nat hook postrouting priority srcnat;
  ip saddr 10.244.1.10 oifname eth0 meta l4proto tcp masquerade to :61000-61003 fully-random
 }
}
";

#[track_caller]
fn hold(clients: &mut Clients, family: Family, count: usize) {
    let held =
        clients.client("outside").unwrap().hold(frontend("away", "node", family).unwrap(), None, count);
    assert_eq!(held.unwrap(), HeldConnections { alive: count, ..HeldConnections::default() });
}

#[track_caller]
fn check_alive(clients: &mut Clients, count: usize) {
    let held = clients.client("outside").unwrap().try_held().unwrap();
    assert_eq!(held, HeldConnections { alive: count, ..HeldConnections::default() });
}

/// Sends datagrams, each from a port of its own, and returns what the backend saw.
fn datagrams(clients: &mut Clients, family: Family) -> Vec<TrackedConnection> {
    let to = frontend("away", "node", family).unwrap();
    let questions: Vec<Question> = (20_000..)
        .take(EACH)
        .map(|port| Question::new(Transport::Udp, to).from(outside(family, port)))
        .collect();
    let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
    let seen = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Answered { seen, .. } => seen,
        other => panic!("{other:?}"),
    });
    let backend = family.of(AWAY).parse().unwrap();
    seen.map(|seen| TrackedConnection::plain(Transport::Udp, seen, backend)).collect()
}

/// The connections in the daemon's flow table.
fn connections(daemon: &Daemon<'_>) -> Vec<TrackedConnection> {
    let flows = daemon.ask(&["flows"]).unwrap();
    let end = |flow: &serde_json::Value, of: &str| {
        let ip = flow[format!("{of}_address")].as_str()?.parse().ok()?;
        Some(SocketAddr::new(ip, flow[format!("{of}_port")].as_u64()?.try_into().ok()?))
    };
    let flows = flows["flows"].as_array().unwrap().iter().filter(|flow| flow["protocol"] == "TCP");
    flows
        .filter_map(|flow| {
            Some(TrackedConnection::plain(Transport::Tcp, end(flow, "nat")?, end(flow, "backend")?))
        })
        .collect()
}

#[track_caller]
fn check_entered(bed: &Bed, expected: &BTreeSet<TrackedConnection>) {
    let there: BTreeSet<TrackedConnection> = tracked(bed, Location::OUTSIDE).unwrap().into_iter().collect();
    let missing: Vec<_> = expected.difference(&there).collect();
    assert!(missing.is_empty(), "{} of {} are not there: {missing:?}", missing.len(), expected.len());
}

#[test]
fn a_drain_enters_live_flows_into_conntrack() {
    on_a_node(Switches::default(), "", |bed, daemon, clients| {
        FAMILIES.iter().for_each(|family| hold(clients, *family, EACH));
        let mut expected: BTreeSet<TrackedConnection> = connections(daemon).into_iter().collect();
        expected.extend(FAMILIES.iter().flat_map(|family| datagrams(clients, *family)));
        assert_eq!(expected.len(), 4 * EACH);
        daemon.kill().unwrap();
        assert!(!daemon.drain().unwrap(), "clients are there");
        check_entered(bed, &expected);
        untrack(bed, Location::OUTSIDE).unwrap();
        assert!(!daemon.drain().unwrap(), "clients are there still");
        check_entered(bed, &expected);
        assert!(!daemon.drain().unwrap(), "what is entered already is fine");
        check_alive(clients, 2 * EACH);
    });
}

/// A pod dials a server from that port, and the rule allocates one of four: the outcome, and the node's port in
/// conntrack.
fn masqueraded(bed: &Bed, clients: &mut Clients, port: u16, to: &str) -> (Outcome, Option<u16>) {
    let (from, to) = (SocketAddr::from(([10, 244, 1, 10], port)), to.parse().unwrap());
    let asked = clients.client("bare-a").unwrap().ask(Question::new(Transport::Tcp, to).from(from)).unwrap();
    let entries = tracked(bed, Location::OUTSIDE).unwrap();
    let entry = entries.into_iter().find(|it| it.transport == Transport::Tcp && it.ends == [from, to]);
    let [_, answered] = entry.map_or([to; 2], |it| it.answer);
    (asked, entry.map(|_| answered.port()))
}

/// Before the drain, conntrack has none of the clients' ports and gives a pod one in use. Afterwards it finds none
/// free at that backend, and all of them at another one.
#[test]
fn a_drained_nodes_kernel_masquerades_with_no_live_flows_port() {
    on_a_node(Switches::default(), SNAT, |bed, daemon, clients| {
        hold(clients, Family::V4, PORTS.count());
        fabric::rules(bed, MASQUERADE).unwrap();
        let (asked, port) = masqueraded(bed, clients, 40_001, AWAY[0]);
        assert_eq!(asked, Outcome::Silent, "the backend has another connection from there");
        assert!(port.is_some_and(|port| PORTS.contains(&port)), "{port:?}");
        daemon.kill().unwrap();
        assert!(!daemon.drain().unwrap(), "clients are there");
        assert_eq!(masqueraded(bed, clients, 40_002, AWAY[0]), (Outcome::Silent, None), "no port is free");
        let (asked, port) = masqueraded(bed, clients, 40_003, BESIDE_IT);
        assert!(matches!(asked, Outcome::Answered { .. }), "{asked:?}");
        assert!(port.is_some_and(|port| PORTS.contains(&port)), "{port:?}");
        let [node, _] = NODE_ADDRESSES.map(|it| it.parse().unwrap());
        let (away, at) = (AWAY[0].parse().unwrap(), |port| SocketAddr::new(node, port));
        let there = tracked(bed, Location::OUTSIDE).unwrap();
        for port in PORTS {
            assert!(there.iter().any(|it| it.answer == [away, at(port)]), "{port} is free: {there:?}");
        }
        check_alive(clients, PORTS.count());
    });
}
