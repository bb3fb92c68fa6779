//! Common firewalls of nodes, in front of services and behind them.

use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::packets::{Clients, Family, frontend, outside};

use crate::node::{Around, SERVED, daemon, last_lines, on_this};

/// Docker's policy, with kube-proxy's rule in it.
const MARKED_ONLY: &str = "table inet docker {
 chain forward {
  type filter hook forward priority filter; policy drop;
  ct state established,related accept
  meta mark & 0x4000 == 0x4000 accept
 }
}
";

const NODE_PORT_DROPPED: &str = "table inet raw {
 chain pre {
  type filter hook prerouting priority raw;
  tcp dport 30001 ip saddr 10.20.0.0/24 drop
 }
}
";

/// The outcomes at a pod here, on a bridge and on another node, in both families.
fn outcomes(clients: &mut Clients, transport: Transport) -> Vec<Outcome> {
    let ways =
        ["here", "bridged", "away"].into_iter().flat_map(|it| [Family::V4, Family::V6].map(|of| (it, of)));
    let question = |(service, family)| {
        Question::new(transport, frontend(service, "node", family).unwrap()).from(outside(family, 0))
    };
    clients.client("outside").unwrap().ask_all(&ways.map(question).collect::<Vec<_>>()).unwrap()
}

/// Waits for the log line; the daemon reads rules some seconds after the start.
#[track_caller]
fn wait_until_said(daemon: &Daemon<'_>, words: &[&str]) {
    let until = Instant::now() + SERVED;
    loop {
        let said = daemon.tell(&["status"]).unwrap();
        if words.iter().all(|word| said.contains(word)) {
            return;
        }
        assert!(Instant::now() < until, "{words:?} is not said:\n{said}\n{}", last_lines(daemon));
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_firewall_that_accepts_a_mark_passes_marked_services() {
    let bed = fabric::bed(Switches::default()).unwrap();
    fabric::rules(&bed, MARKED_ONLY).unwrap();
    on_this(&bed, "[packets]\nforward_mark = \"0x4000\"\n", |_, daemon, clients| {
        for transport in [Transport::Tcp, Transport::Udp] {
            let outcomes = outcomes(clients, transport);
            let are_answered = outcomes.iter().all(|it| matches!(it, Outcome::Answered { .. }));
            assert!(are_answered, "{transport:?}: {outcomes:?}");
        }
        thread::sleep(Duration::from_secs(6));
        let said = daemon.tell(&["status"]).unwrap();
        assert!(!said.contains("table inet docker"), "a chain that accepts it is no trouble:\n{said}");
    });
}

#[test]
fn a_firewall_that_needs_a_mark_is_reported_without_it() {
    let bed = fabric::bed(Switches::default()).unwrap();
    fabric::rules(&bed, MARKED_ONLY).unwrap();
    let mut around = Around::start(&bed);
    let mut daemon = daemon(&bed, "");
    daemon.start().unwrap();
    wait_until_said(&daemon, &["table inet docker, chain forward (forward, priority 0): policy drop"]);
    assert!(outcomes(&mut around.clients, Transport::Tcp).iter().all(|it| *it == Outcome::Silent));
}

#[test]
fn a_rule_that_drops_a_node_port_is_reported_with_its_chain() {
    let bed = fabric::bed(Switches::default()).unwrap();
    fabric::rules(&bed, NODE_PORT_DROPPED).unwrap();
    on_this(&bed, "", |_, daemon, _| {
        wait_until_said(
            daemon,
            &[
                "filters",
                "table inet raw, chain pre (prerouting, priority -300): drops packets to port 30001",
            ],
        );
        let found = daemon.tell(&["diagnose", "default/here", "--no-probe", "-o", "json"]).unwrap();
        assert!(found.contains("clients that it excluded get in now"), "{found}");
    });
}
