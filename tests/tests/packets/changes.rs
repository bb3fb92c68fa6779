//! Changes of a service with established flows: TCP continues to its end, UDP leaves a removed backend.

use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::Switches;
use holdfast_tests::packets::{Clients, Family, Service, changing, outside};

use crate::node::{SERVED, on_a_node, write};

/// Moving UDP flows do so within a second.
const SEVERAL_SWEEPS: Duration = Duration::from_secs(3);

/// Sends UDP requests from one port, so that they are one flow, and returns the outcome.
fn same_flow(clients: &mut Clients, family: Family, address: &str) -> Outcome {
    let to = changing().frontend(address, family).unwrap();
    let question = Question::new(Transport::Udp, to).from(outside(family, 41_000));
    clients.client("outside").unwrap().ask(question).unwrap()
}

fn is_by(outcome: &Outcome, name: &str) -> bool {
    matches!(outcome, Outcome::Answered { by, .. } if by == name)
}

/// Writes the service, and waits until new clients reach the expected backend.
#[track_caller]
fn change(daemon: &Daemon<'_>, clients: &mut Clients, service: Service, expected: &str) {
    write(daemon, "changing", &service.objects());
    for (family, transport) in [Family::V4, Family::V6].iter().zip([Transport::Tcp, Transport::Udp]) {
        let question = Question::new(transport, service.frontend("node", *family).unwrap());
        wait_until(|| is_by(&clients.client("outside").unwrap().ask(question.clone()).unwrap(), expected));
    }
}

#[track_caller]
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + SERVED;
    while !holds() {
        assert!(Instant::now() < until, "it does not come about");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn tcp_survives_the_end_of_its_endpoint_and_of_its_service() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        for (first, second) in [(&["a"], &["r"]), (&["r"], &["a"])] {
            change(daemon, clients, changing().with(first), first[0]);
            for (family, address) in [(Family::V4, "node"), (Family::V6, "balancer")] {
                let to = changing().frontend(address, family).unwrap();
                assert_eq!(clients.client("outside").unwrap().hold(to, None, 10).unwrap().alive, 10);
            }
            change(daemon, clients, changing().with(second), second[0]);
        }
        write(daemon, "changing", &[]);
        let gone = Question::new(Transport::Tcp, changing().frontend("node", Family::V4).unwrap());
        wait_until(|| clients.client("outside").unwrap().ask(gone.clone()).unwrap() == Outcome::Refused);
        let held = clients.client("outside").unwrap().try_held().unwrap();
        assert_eq!(held, HeldConnections { alive: 40, ..HeldConnections::default() });
    });
}

#[test]
fn udp_leaves_a_removed_endpoint_and_stays_with_a_terminating_one() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        for (family, address) in [(Family::V4, "node"), (Family::V6, "node"), (Family::V4, "balancer")] {
            change(daemon, clients, changing().with(&["a"]), "a");
            assert!(is_by(&same_flow(clients, family, address), "a"));
            change(daemon, clients, changing().with(&["a-", "r"]), "r");
            assert!(is_by(&same_flow(clients, family, address), "a"), "it serves to its end");
            change(daemon, clients, changing().with(&["r"]), "r");
            wait_until(|| is_by(&same_flow(clients, family, address), "r"));
            change(daemon, clients, changing().with(&["a", "r!"]), "a");
            wait_until(|| is_by(&same_flow(clients, family, address), "a"));
        }
    });
}

/// calico#4310: backends that policy Local filters out were taken for removed ones.
#[test]
fn flows_under_policy_local_survive_list_changes() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        change(daemon, clients, changing().local().with(&["a"]), "a");
        for family in [Family::V4, Family::V6] {
            let to = changing().frontend("node", family).unwrap();
            assert_eq!(clients.client("outside").unwrap().hold(to, None, 10).unwrap().alive, 10);
            assert!(is_by(&same_flow(clients, family, "node"), "a"));
        }
        change(daemon, clients, changing().local().with(&["a-", "c", "r"]), "c");
        let until = Instant::now() + SEVERAL_SWEEPS;
        while Instant::now() < until {
            for family in [Family::V4, Family::V6] {
                assert!(is_by(&same_flow(clients, family, "node"), "a"), "it serves to its end");
            }
            thread::sleep(Duration::from_millis(100));
        }
        let held = clients.client("outside").unwrap().try_held().unwrap();
        assert_eq!(held, HeldConnections { alive: 20, ..HeldConnections::default() });
    });
}

/// kubernetes#98305: the flow of a refused datagram blocked later ones.
#[test]
fn a_refused_udp_client_is_served_once_a_backend_exists() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        for (family, address) in [(Family::V4, "node"), (Family::V6, "balancer")] {
            write(daemon, "changing", &changing().with(&[]).objects());
            wait_until(|| same_flow(clients, family, address) == Outcome::Refused);
            write(daemon, "changing", &changing().with(&["r"]).objects());
            wait_until(|| is_by(&same_flow(clients, family, address), "r"));
        }
    });
}
