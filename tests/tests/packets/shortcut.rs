//! Packets of flows with other nodes pass by the stack where nothing needs them there, and go through it where a
//! firewall does.

use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Bed, Location, succeed};
use holdfast_tests::packets::{Clients, Family, frontend, outside};
use serde_json::Value;

use crate::node::{SERVED, last_lines, on_this};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Questions that are asked of a service at once.
const ASKED: usize = 4;

/// Counts what the stack sends on to the pod of the other node, and does nothing else.
const COUNTED: &str = "table inet counted {
 counter seen { }
 chain forward {
  type filter hook forward priority filter;
  ip daddr 10.244.9.10 counter name seen
  ip6 daddr fd00:244:9::10 counter name seen
 }
}
";

const CLOSED: &str = "table inet closed {
 chain forward {
  type filter hook forward priority filter; policy drop;
 }
}
";

fn nft(bed: &Bed, words: &str) -> String {
    let mut nft = bed.command(Location::OUTSIDE, "nft").unwrap();
    nft.args(words.split(' '));
    succeed(nft, SERVED).unwrap()
}

/// How many packets to the pod of the other node the stack has seen.
fn seen(bed: &Bed) -> u64 {
    let said = nft(bed, "list counter inet counted seen");
    said.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap().parse().unwrap()
}

#[track_caller]
fn wait_until_said(daemon: &Daemon<'_>, words: &str) {
    let until = Instant::now() + SERVED;
    loop {
        let said = daemon.tell(&["datapath"]).unwrap();
        if said.contains(words) {
            return;
        }
        assert!(Instant::now() < until, "{words:?} is not said:\n{said}\n{}", last_lines(daemon));
        thread::sleep(Duration::from_millis(100));
    }
}

/// One question in each family by TCP and UDP, to a pod of the other node and to one of this.
fn outcomes(clients: &mut Clients, service: &str) -> Vec<Outcome> {
    let ways = FAMILIES.into_iter().flat_map(|of| [Transport::Tcp, Transport::Udp].map(|by| (of, by)));
    // A stream of many segments, and a datagram that is not cut into pieces.
    let size = |by| if by == Transport::Tcp { 100_000 } else { 900 };
    let question = |(of, by)| {
        Question::new(by, frontend(service, "balancer", of).unwrap())
            .from(outside(of, 0))
            .sized(size(by), size(by))
    };
    clients.of("outside").unwrap().ask_all(&ways.map(question).collect::<Vec<_>>()).unwrap()
}

#[track_caller]
fn check_answered(clients: &mut Clients, service: &str) {
    let outcomes = outcomes(clients, service);
    let are_answered = outcomes.iter().all(|it| matches!(it, Outcome::Answered { .. }));
    assert!(are_answered, "{service}: {outcomes:?}");
}

/// Checks that of the flows with a service's addresses those of the last questions take the shortcut, or none.
#[track_caller]
fn check_flows(daemon: &Daemon<'_>, service: &str, expected: bool) {
    let said: Value = serde_json::from_str(&daemon.tell(&["flows", "-o", "json"]).unwrap()).unwrap();
    let addresses = FAMILIES.map(|of| frontend(service, "balancer", of).unwrap().ip().to_string());
    let flows = said["flows"].as_array().unwrap();
    let of_service: Vec<_> =
        flows.iter().filter(|flow| addresses.iter().any(|it| flow["frontend_address"] == **it)).collect();
    let taken = of_service.iter().filter(|flow| flow["shortcut"] == true).count();
    assert!(if expected { taken >= ASKED } else { taken == 0 }, "{service}: {said}");
    assert!(of_service.len() >= ASKED, "{service}: {said}");
}

#[test]
fn packets_to_other_nodes_pass_by_the_stack_and_those_to_this_node_do_not() {
    for switches in
        [Switches::default(), Switches { strict_rp_filter: true, no_offload: true, ..Switches::default() }]
    {
        let bed = fabric::bed(switches).unwrap();
        fabric::rules(&bed, COUNTED).unwrap();
        on_this(&bed, "", |_, daemon, clients| {
            wait_until_said(daemon, "packets to other nodes pass by the stack");
            // The first flows find no neighbour known.
            check_answered(clients, "away");
            let before = seen(&bed);
            check_answered(clients, "away");
            check_answered(clients, "here");
            let said = daemon.tell(&["datapath"]).unwrap();
            assert_eq!(seen(&bed), before, "the stack has seen packets:\n{said}");
            check_flows(daemon, "away", true);
            check_flows(daemon, "here", false);
        });
    }
}

#[test]
fn packets_go_through_the_stack_where_the_configuration_says_so() {
    let bed = fabric::bed(Switches::default()).unwrap();
    fabric::rules(&bed, COUNTED).unwrap();
    on_this(&bed, "[packets]\nshortcut = \"never\"\n", |_, daemon, clients| {
        wait_until_said(daemon, "packets go through the stack: packets.shortcut is \"never\"");
        check_answered(clients, "away");
        assert!(seen(&bed) > 0);
        check_flows(daemon, "away", false);
    });
}

/// The firewall is noticed at once, also by flows that are there.
#[test]
fn a_firewall_that_comes_gets_the_packets_and_one_that_goes_leaves_them() {
    let bed = fabric::bed(Switches::default()).unwrap();
    on_this(&bed, "", |_, daemon, clients| {
        wait_until_said(daemon, "packets to other nodes pass by the stack");
        check_answered(clients, "away");
        fabric::rules(&bed, CLOSED).unwrap();
        wait_until_said(daemon, "packets go through the stack: table inet closed, chain forward");
        let outcomes = outcomes(clients, "away");
        assert!(outcomes.iter().all(|it| *it == Outcome::Silent), "the firewall lets through: {outcomes:?}");
        nft(&bed, "delete table inet closed");
        wait_until_said(daemon, "packets to other nodes pass by the stack");
        check_answered(clients, "away");
    });
}
