//! Two nodes with a daemon each, where all nodes choose alike: a node without a connection's flow forwards its packets
//! to the node that has it.

use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::Bed;
use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::packets::{Clients, Service, changing, frontend, outside};

use crate::direct::{FAMILIES, counted, on_two_nodes, route_to};
use crate::node::{SERVED, ip, write};

const MAGLEV: &str = "maglev = true\n";

/// Connections of each family.
const EACH: usize = 50;

/// The other node, with the backend that all nodes choose.
const OTHER_NODE: [&str; 2] = ["10.0.0.6", "fd00:a::6"];

/// A download of many full-size packets.
const DOWNLOAD: usize = 400_000;

/// Opens connections to a service in each family.
#[track_caller]
fn open(clients: &mut Clients, service: &Service) {
    for family in FAMILIES {
        let to = service.frontend("balancer", family).unwrap();
        let held = clients.client("outside").unwrap().hold(to, None, EACH).unwrap();
        assert_eq!(held, HeldConnections { alive: EACH, ..HeldConnections::default() });
    }
}

/// Checks that all connections live after the router has moved them to this node.
#[track_caller]
fn check_alive_here(bed: &Bed, here: &Daemon<'_>, clients: &mut Clients) {
    let joined = counted(here, "adopted");
    route_to(bed, fabric::NODE_ADDRESSES);
    let all = HeldConnections { alive: FAMILIES.len() * EACH, ..HeldConnections::default() };
    assert_eq!(clients.client("outside").unwrap().try_held().unwrap(), all);
    assert!(counted(here, "adopted") > joined, "this node has sent them on");
}

/// Writes the service to both daemons, and waits until new clients reach only these backends.
#[track_caller]
fn change(daemons: &[Daemon<'_>; 2], endpoints: &'static [&'static str]) {
    let service = changing().with(endpoints);
    for daemon in daemons {
        write(daemon, "changing", &service.objects());
        let until = Instant::now() + SERVED;
        while !leads_to(daemon, endpoints.len()) {
            assert!(Instant::now() < until, "the daemon does not take the change");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether each frontend of the service has this many backends.
fn leads_to(daemon: &Daemon<'_>, backends: usize) -> bool {
    let leads = |family| {
        let address = changing().frontend("balancer", family).unwrap().ip().to_string();
        let told = daemon.ask(&["frontends", "--address", &address]).unwrap();
        let rows = told["frontends"].as_array().cloned().unwrap_or_default();
        rows.len() == 2
            && rows.iter().all(|row| row["backends"].as_array().is_some_and(|it| it.len() == backends))
    };
    FAMILIES.into_iter().all(leads)
}

#[test]
fn connections_of_a_single_backend_go_on_through_another_node() {
    on_two_nodes(Switches::default(), MAGLEV, |bed, daemons, clients| {
        change(daemons, &["r"]);
        route_to(bed, OTHER_NODE);
        open(clients, &changing());
        check_alive_here(bed, &daemons[0], clients);
    });
}

#[test]
fn connections_of_the_remaining_backend_go_on_through_another_node() {
    on_two_nodes(Switches::default(), MAGLEV, |bed, daemons, clients| {
        change(daemons, &["a", "r"]);
        route_to(bed, OTHER_NODE);
        open(clients, &changing());
        change(daemons, &["r"]);
        check_alive_here(bed, &daemons[0], clients);
    });
}

/// Routers balance ICMP errors by other rules than packets, so any node may receive a "packet too big".
#[test]
fn a_backend_learns_the_path_mtu_through_either_node() {
    on_two_nodes(Switches { narrow: true, ..Switches::default() }, MAGLEV, |bed, _, clients| {
        route_to(bed, OTHER_NODE);
        lead_errors_here(bed);
        let questions = [("away", 42_000), ("many", 42_010)].into_iter().flat_map(|(service, first)| {
            FAMILIES.into_iter().flat_map(move |family| {
                let to = frontend(service, "balancer", family).unwrap();
                let ask = move |port| {
                    let question = Question::new(Transport::Tcp, to).from(outside(family, port));
                    Question { patience: SERVED, ..question.sized(0, DOWNLOAD) }
                };
                (first..first + 10).map(ask)
            })
        });
        let questions: Vec<Question> = questions.collect();
        let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
        for (question, outcome) in questions.iter().zip(outcomes) {
            assert!(matches!(outcome, Outcome::Answered { .. }), "{question:?}: {outcome:?}");
        }
    });
}

/// Routes the router's own ICMP errors to the frontends' addresses to this node.
fn lead_errors_here(bed: &Bed) {
    let [v4, v6] = fabric::NODE_ADDRESSES;
    for (family, to, via) in [("-4", "203.0.113.0/24", v4), ("-6", "2001:db8:113::/64", v6)] {
        ip(bed, "router", &format!("{family} route add {to} via {via} table 99"));
        ip(bed, "router", &format!("{family} rule add iif lo to {to} lookup 99"));
    }
}
