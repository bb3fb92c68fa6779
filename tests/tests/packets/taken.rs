//! A node that another proxy has served before: holdfast allocates no port that the proxy's connections use at the
//! same backend.

use std::net::SocketAddr;

use holdfast_tests::bed::ask::HeldConnections;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, Switches};
use holdfast_tests::packets::{Clients, Family, frontend};

use crate::node::{Around, daemon};

/// Forwards a node port's client to another node's backend as kube-proxy does, with a few SNAT ports only: half of
/// holdfast's.
const OTHER_PROXY: &str = "table ip other {
 chain pre {
  type nat hook prerouting priority dstnat;
  tcp dport 31999 dnat to 10.244.9.10:8080
 }
 chain post {
  type nat hook postrouting priority srcnat;
  ip daddr 10.244.9.10 ct status dnat meta l4proto tcp masquerade to :61000-61003 fully-random
 }
}
";
const SNAT: &str = "[packets]\nsnat_ports = \"61000-61007\"\n";
const THEIRS: std::ops::RangeInclusive<u64> = 61_000..=61_003;

#[track_caller]
fn hold(clients: &mut Clients, client: &str, to: SocketAddr, count: usize) {
    let held = clients.client(client).unwrap().hold(to, None, count).unwrap();
    assert_eq!(held, HeldConnections { alive: count, ..HeldConnections::default() }, "{client} {to}");
}

#[track_caller]
fn check_alive(clients: &mut Clients, client: &str, count: usize) {
    let held = clients.client(client).unwrap().try_held().unwrap();
    assert_eq!(held, HeldConnections { alive: count, ..HeldConnections::default() }, "{client}");
}

/// The SNAT ports of clients with backends of other nodes.
fn given(daemon: &Daemon<'_>) -> Vec<u64> {
    let flows = daemon.ask(&["flows"]).unwrap();
    flows["flows"].as_array().unwrap().iter().filter_map(|flow| flow["nat_port"].as_u64()).collect()
}

#[test]
fn another_proxys_snat_port_is_not_allocated() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut around = Around::start(&bed);
    fabric::rules(&bed, OTHER_PROXY).unwrap();
    let theirs = SocketAddr::new(NODE_ADDRESSES[0].parse().unwrap(), 31_999);
    hold(&mut around.clients, "outside", theirs, THEIRS.count());
    let mut daemon = daemon(&bed, SNAT);
    daemon.start().unwrap();
    around.wait_until_served(&daemon);
    assert_eq!(daemon.ask(&["flows"]).unwrap()["swept"]["ports_kept_free"], THEIRS.count());
    hold(&mut around.clients, "outside-3", frontend("away", "node", Family::V4).unwrap(), 2);
    let given = given(&daemon);
    assert!(given.len() == 2 && !given.iter().any(|port| THEIRS.contains(port)), "{given:?}");
    check_alive(&mut around.clients, "outside", THEIRS.count());
    check_alive(&mut around.clients, "outside-3", 2);
}
