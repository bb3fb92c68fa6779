//! Maglev: a node without flows sends each client to the same backend as before, as any other node would.

use std::collections::BTreeSet;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::fabric::Switches;
use holdfast_tests::packets::{Clients, Family, frontend, outside, sign};

use crate::node::{SERVED, last_lines, on_a_node};

/// A client has a UDP flow from each of these ports.
const PORTS: std::ops::Range<u16> = 41_000..41_040;

/// The backend of each of the client's UDP flows, at the service with backends on both nodes.
#[track_caller]
fn who_answers(clients: &mut Clients, address: &str) -> Vec<String> {
    let questions = [Family::V4, Family::V6].into_iter().flat_map(|family| {
        let to = frontend("many", address, family).unwrap();
        PORTS.map(move |port| Question::new(Transport::Udp, to).from(outside(family, port)))
    });
    let questions: Vec<_> = questions.collect();
    let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
    let who = |(question, outcome): (&Question, Outcome)| match outcome {
        Outcome::Answered { by, .. } => by,
        other => panic!("{question:?}: {other:?}"),
    };
    questions.iter().zip(outcomes).map(who).collect()
}

#[test]
fn a_node_without_flows_selects_the_same_backend() {
    on_a_node(Switches::default(), "\n[packets]\nmaglev = true\n", |_, daemon, clients| {
        let of = |clients: &mut Clients| ["balancer", "node"].map(|address| who_answers(clients, address));
        let before = of(clients);
        for each in &before {
            assert_eq!(each.iter().collect::<BTreeSet<_>>().len(), 3, "all backends are used: {each:?}");
        }
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
        daemon.start().unwrap();
        let served = clients.wait_for(&sign(), SERVED).unwrap();
        assert!(served, "nothing comes back; the daemon said:\n{}", last_lines(daemon));
        assert_eq!(of(clients), before);
    });
}

/// Without Maglev, each flow selects at random, and this many never select alike twice.
#[test]
fn without_maglev_a_node_without_flows_selects_at_random() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        let before = who_answers(clients, "balancer");
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
        daemon.start().unwrap();
        assert!(clients.wait_for(&sign(), SERVED).unwrap(), "{}", last_lines(daemon));
        assert_ne!(who_answers(clients, "balancer"), before);
    });
}
