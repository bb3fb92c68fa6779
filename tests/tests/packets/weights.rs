//! Backends with weights, with real clients: from outside by packets, on the node by sockets.

use std::collections::BTreeMap;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::fabric::Switches;
use holdfast_tests::packets::Clients;

use crate::node::on_a_node;

/// Pods of both nodes; the last one has weight 0.
const CONFIG: &str = r#"
[[service]]
name = "weighted"
protocol = "UDP"
frontends = ["203.0.113.77:80"]
backends = [
    { address = "10.244.1.10:8080", weight = 7 },
    { address = "10.244.9.10:8080", weight = 3 },
    { address = "10.244.2.10:8080", weight = 0 },
]
"#;

const FRONTEND: &str = "203.0.113.77:80";

/// How many of the clients each backend answers.
#[track_caller]
fn answers(clients: &mut Clients, who: &str, count: usize) -> BTreeMap<String, usize> {
    let question = Question::new(Transport::Udp, FRONTEND.parse().unwrap());
    let mut each = BTreeMap::new();
    // Each client of a batch has a thread.
    for _ in 0..count / 50 {
        for outcome in clients.client(who).unwrap().ask_all(&vec![question.clone(); 50]).unwrap() {
            let Outcome::Answered { by, .. } = outcome else { panic!("{who}: {outcome:?}") };
            *each.entry(by).or_default() += 1;
        }
    }
    each
}

/// Of 1,000 clients, 700 reach the first backend, give or take 90, which is six deviations.
#[test]
fn clients_follow_the_weights_and_none_reaches_weight_zero() {
    on_a_node(Switches::default(), CONFIG, |_, _, clients| {
        for who in ["outside", "host"] {
            let each = answers(clients, who, 1_000);
            assert_eq!(each.len(), 2, "{who}: {each:?}");
            let first = each["a"];
            assert!((610..=790).contains(&first), "{who}: {each:?}");
        }
    });
}
