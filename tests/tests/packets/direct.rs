//! Two nodes with a daemon each, which forward clients' packets with their source address: the backend sees the
//! client, and its reply bypasses the first node.

use holdfast_tests::bed::Bed;
use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::uplinks::ONE_GATEWAY;
use holdfast_tests::packets::{Clients, Family, frontend, outside};

use crate::node::{Around, daemon, ip, last_lines, other_daemon};
use crate::routers::{SHORT, is_answered_in_time};

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

const DSR: &str = "[packets]\ndsr = \"all\"\ndsr_from = [\"10.0.0.0/24\", \"fd00:a::/64\"]\n";

/// Several megabytes in each direction, for segments of every size.
const MANY: usize = 4 << 20;

#[track_caller]
pub(crate) fn on_two_nodes(
    switches: Switches,
    more: &str,
    run: impl FnOnce(&Bed, &mut [Daemon<'_>; 2], &mut Clients),
) {
    on_these_nodes(&fabric::bed(switches).unwrap(), more, run);
}

/// Runs a closure on the two nodes of an existing fabric.
#[track_caller]
fn on_these_nodes(bed: &Bed, more: &str, run: impl FnOnce(&Bed, &mut [Daemon<'_>; 2], &mut Clients)) {
    let config = format!("{DSR}{more}");
    let mut around = Around::start(bed);
    let mut there = other_daemon(bed, &config);
    there.start().unwrap();
    let mut here = daemon(bed, &config);
    here.start().unwrap();
    around.wait_until_served(&here);
    wait_for_devices(&mut there);
    run(bed, &mut [here, there], &mut around.clients);
}

/// Waits until a daemon without clients has its programs at its device.
#[track_caller]
fn wait_for_devices(daemon: &mut Daemon<'_>) {
    let is_there = |daemon: &Daemon<'_>| {
        let told = daemon.ask(&["datapath"])?;
        let devices = told["kernel"]["packets"]["devices"].as_array().cloned().unwrap_or_default();
        Ok(devices.iter().any(|it| it["name"] == "eth0" && it["attached"] == true))
    };
    daemon.wait_until(is_there).unwrap();
}

/// A client's requests to the service with its only backend on the other node.
fn questions(size: usize) -> Vec<Question> {
    let of = |family: Family| {
        let to = frontend("away", "balancer", family).unwrap();
        let from = outside(family, 0);
        let tcp = Question::new(Transport::Tcp, to).from(from);
        let tcp = if size > 0 { tcp.sized(size, size) } else { tcp };
        [tcp, Question::new(Transport::Udp, to).from(from)]
    };
    FAMILIES.into_iter().flat_map(of).collect()
}

/// Checks that the backend sees the client's own address.
#[track_caller]
fn check_seen(clients: &mut Clients, size: usize, when: &str) {
    let questions = questions(size);
    let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
    for (question, outcome) in questions.iter().zip(outcomes) {
        let own = question.from.unwrap().ip();
        let is_own = matches!(&outcome, Outcome::Answered { seen, .. } if seen.ip() == own);
        assert!(is_own, "{when}: {question:?}: {outcome:?}");
    }
}

/// A packet counter of a daemon.
#[track_caller]
pub(crate) fn counted(daemon: &Daemon<'_>, event: &str) -> u64 {
    let told = daemon.ask(&["flows"]).unwrap();
    let events = told["events"].as_array().unwrap().clone();
    events.iter().find(|it| it["event"] == event).unwrap()["count"].as_u64().unwrap()
}

#[track_caller]
fn check_all(switches: Switches) {
    on_two_nodes(switches, "", |_, [here, there], clients| {
        check_seen(clients, 0, "a question");
        check_seen(clients, MANY, "megabytes");
        assert!(counted(here, "encap") > 0, "{}", last_lines(here));
        assert!(counted(there, "decap") > 0, "{}", last_lines(there));
    });
}

#[test]
fn a_remote_backend_sees_the_client_and_replies_directly() {
    check_all(Switches::default());
}

#[test]
fn a_remote_backend_replies_directly_with_checksums_and_strict_routers() {
    check_all(Switches { strict_rp_filter: true, no_offload: true, tracked: true, ..Switches::default() });
}

#[test]
fn a_remote_backend_replies_directly_over_a_narrow_path() {
    check_all(Switches { narrow: true, ..Switches::default() });
}

/// Three fragments on an ordinary link, and none of the first two fits behind the outer header.
const DATAGRAM_BYTES: usize = 4000;

#[track_caller]
fn check_datagrams(clients: &mut Clients, when: &str) {
    for family in FAMILIES {
        let question = Question::new(Transport::Udp, frontend("away", "balancer", family).unwrap());
        let question = question.from(outside(family, 0)).sized(DATAGRAM_BYTES, DATAGRAM_BYTES);
        let question = Question { patience: SHORT, ..question };
        assert!(is_answered_in_time(clients, &question), "{when}: {family:?}");
    }
}

#[test]
fn datagrams_in_fragments_reach_a_remote_backend() {
    on_two_nodes(Switches::default(), "", |_, [here, there], clients| {
        check_datagrams(clients, "a plain link");
        assert!(counted(here, "encap") > 0 && counted(there, "decap") > 0, "{}", last_lines(here));
    });
}

/// The router between the nodes reports the MTU about the outer packet.
#[test]
fn clients_get_through_a_narrow_link_between_two_nodes() {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    fabric::lay_by(&bed, Switches::default(), &ONE_GATEWAY).unwrap();
    for route in ["10.244.9.0/24 via 10.0.0.6", "fd00:244:9::/64 via fd00:a::6"] {
        ip(&bed, "router", &format!("route replace {route} mtu lock 1400"));
    }
    on_these_nodes(&bed, "", |_, [here, there], clients| {
        check_seen(clients, MANY, "a narrow link");
        check_datagrams(clients, "a narrow link");
        assert!(counted(here, "encap") > 0 && counted(there, "decap") > 0, "{}", last_lines(here));
    });
}

/// Either daemon may be killed: the programs keep running, and flows survive.
#[test]
fn invariant_14_neither_daemons_end_breaks_flows_between_two_nodes() {
    on_two_nodes(Switches::default(), "", |_, daemons, clients| {
        const EACH: usize = 50;
        for family in FAMILIES {
            let to = frontend("away", "balancer", family).unwrap();
            let held = clients.client("outside").unwrap().hold(to, None, EACH).unwrap();
            assert_eq!(held, HeldConnections { alive: EACH, ..HeldConnections::default() });
        }
        let all = HeldConnections { alive: 2 * EACH, ..HeldConnections::default() };
        for at in [0, 1] {
            daemons[at].kill().unwrap();
            check_seen(clients, 100_000, "without a daemon");
            assert_eq!(clients.client("outside").unwrap().try_held().unwrap(), all);
            daemons[at].start().unwrap();
            check_seen(clients, 100_000, "with the next daemon");
            assert_eq!(clients.client("outside").unwrap().try_held().unwrap(), all);
        }
    });
}

/// Routes the virtual addresses of load balancers to the other node, or back to this one.
#[track_caller]
pub(crate) fn route_to(bed: &Bed, [v4, v6]: [&str; 2]) {
    ip(bed, "router", &format!("route replace 203.0.113.0/24 via {v4}"));
    ip(bed, "router", &format!("route replace 2001:db8:113::/64 via {v6}"));
}

/// The nodes have a separate network between them, with no route to clients.
#[test]
fn a_lost_connection_is_reset_through_the_clients_network() {
    on_two_nodes(Switches::default(), "", |bed, [_, there], clients| {
        const EACH: usize = 5;
        fabric::part_clients_from_nodes(bed).unwrap();
        for family in FAMILIES {
            let to = frontend("away", "balancer", family).unwrap();
            let held = clients.client("outside").unwrap().hold(to, None, EACH).unwrap();
            assert_eq!(held, HeldConnections { alive: EACH, ..HeldConnections::default() });
        }
        there.stop().unwrap();
        there.cleanup().unwrap();
        there.start().unwrap();
        wait_for_devices(there);
        let broken = [(format!("{:?}", Outcome::Reset), 2 * EACH)].into();
        assert_eq!(
            clients.client("outside").unwrap().try_held().unwrap(),
            HeldConnections { alive: 0, broken }
        );
    });
}

/// The router moves the route and moves it back.
#[test]
fn connections_rerouted_to_the_backends_node_go_on() {
    on_two_nodes(Switches::default(), "", |bed, [_, there], clients| {
        const EACH: usize = 50;
        for family in FAMILIES {
            let to = frontend("away", "balancer", family).unwrap();
            let held = clients.client("outside").unwrap().hold(to, None, EACH).unwrap();
            assert_eq!(held, HeldConnections { alive: EACH, ..HeldConnections::default() });
        }
        let all = HeldConnections { alive: 2 * EACH, ..HeldConnections::default() };
        let unwrapped = counted(there, "decap");
        route_to(bed, ["10.0.0.6", "fd00:a::6"]);
        assert_eq!(clients.client("outside").unwrap().try_held().unwrap(), all, "by the other node");
        assert_eq!(counted(there, "decap"), unwrapped, "none came by this node");
        route_to(bed, fabric::NODE_ADDRESSES);
        assert_eq!(clients.client("outside").unwrap().try_held().unwrap(), all, "by this node again");
    });
}

/// The other node has no flows with backends on this node: it computes their backends, and forwards the packets.
#[test]
fn rerouted_flows_go_on_with_backends_of_both_nodes() {
    on_two_nodes(Switches::default(), "maglev = true\n", |bed, [_, there], clients| {
        let questions = FAMILIES.into_iter().flat_map(|family| {
            let to = frontend("many", "balancer", family).unwrap();
            (41_000..41_020).map(move |port| Question::new(Transport::Udp, to).from(outside(family, port)))
        });
        let questions: Vec<Question> = questions.collect();
        let before = clients.client("outside").unwrap().ask_all(&questions).unwrap();
        assert!(before.iter().all(|it| matches!(it, Outcome::Answered { .. })), "{before:?}");
        let wrapped = counted(there, "encap");
        route_to(bed, ["10.0.0.6", "fd00:a::6"]);
        assert_eq!(
            clients.client("outside").unwrap().ask_all(&questions).unwrap(),
            before,
            "by the other node"
        );
        assert!(counted(there, "encap") > wrapped, "the other node has sent them on");
    });
}

/// The router loses the node that all clients used. Neither node has all flows, and the backends of both go on.
#[test]
fn ten_thousand_rerouted_connections_go_on_with_their_backends() {
    on_two_nodes(Switches::default(), "maglev = true\n", |bed, [here, there], clients| {
        const EACH: usize = 5_000;
        for family in FAMILIES {
            let to = frontend("many", "balancer", family).unwrap();
            let held = clients.client("outside").unwrap().hold(to, None, EACH).unwrap();
            assert_eq!(held, HeldConnections { alive: EACH, ..HeldConnections::default() });
        }
        let all = HeldConnections { alive: 2 * EACH, ..HeldConnections::default() };
        here.kill().unwrap();
        route_to(bed, ["10.0.0.6", "fd00:a::6"]);
        assert_eq!(clients.client("outside").unwrap().try_held().unwrap(), all, "by the other node");
        assert!(counted(there, "adopted") > 0, "the other node has sent them on");
        here.start().unwrap();
        route_to(bed, fabric::NODE_ADDRESSES);
        assert_eq!(clients.client("outside").unwrap().try_held().unwrap(), all, "by this node again");
    });
}
