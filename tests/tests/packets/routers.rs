//! Routers around a node: one that is passed twice, hops that are too narrow, and addresses that lead elsewhere.

use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::uplinks::ONE_GATEWAY;
use holdfast_tests::bed::{Bed, Location, succeed};
use holdfast_tests::packets::{Clients, Family, frontend, outside};

use crate::node::{SERVED, on_this};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A stream of some thousand segments.
const MUCH: usize = 3 << 20;

/// Fits a device, and no hop of 1400 bytes.
const LARGE: usize = 1440;

/// What is lost before a path is known is asked for again.
const SHORT: Duration = Duration::from_millis(500);

#[track_caller]
fn ip(bed: &Bed, place: &str, words: &str) {
    let location = if place == "node" { Location::OUTSIDE } else { Location::far(place) };
    let mut command = bed.command(location, "ip").unwrap();
    command.args(words.split(' '));
    succeed(command, SERVED).unwrap();
}

fn is_answered(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered { .. })
}

/// A datagram that is too large is lost, and the next one comes in pieces, if the error has reached who sent it.
fn is_answered_in_time(clients: &mut Clients, question: &Question) -> bool {
    let until = Instant::now() + SERVED;
    while Instant::now() < until {
        if is_answered(&clients.of("outside").unwrap().ask(question.clone()).unwrap()) {
            return true;
        }
    }
    false
}

/// A node whose only gateway has these routes, with nothing larger than 1400 bytes: what is too large for them comes
/// through, there and back.
#[track_caller]
fn check_narrow(narrow: &[&str]) {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    fabric::lay_by(&bed, Switches::default(), &ONE_GATEWAY).unwrap();
    narrow.iter().for_each(|route| ip(&bed, "router", &format!("route replace {route} mtu lock 1400")));
    on_this(&bed, "", |_, _, clients| {
        for family in FAMILIES {
            let from = outside(family, 0);
            let [node, balancer] = ["node", "balancer"].map(|it| frontend("away", it, family).unwrap());
            let sizes = [(MUCH, 0), (0, MUCH)];
            let stream = |(take, give)| Question::new(Transport::Tcp, node).from(from).sized(take, give);
            let outcomes = clients.of("outside").unwrap().ask_all(&sizes.map(stream)).unwrap();
            assert!(outcomes.iter().all(is_answered), "{family:?}: {outcomes:?}");
            for (take, give) in [(LARGE, 0), (0, LARGE)] {
                let question = Question::new(Transport::Udp, balancer).from(from).sized(take, give);
                let question = Question { patience: SHORT, ..question };
                assert!(is_answered_in_time(clients, &question), "{family:?}: {take} there, {give} back");
            }
        }
    });
}

/// Its error is about an answer to a client; sent on with the router's own address, the router would drop it.
#[test]
fn a_router_that_is_passed_twice_tells_backends_of_a_narrow_hop_to_clients() {
    check_narrow(&["10.20.0.0/24 dev client", "fd00:20::/64 dev client metric 256"]);
}

#[test]
fn a_router_that_is_passed_twice_tells_clients_of_a_narrow_hop_to_backends() {
    check_narrow(&["10.244.9.0/24 via 10.0.0.6", "fd00:244:9::/64 via fd00:a::6"]);
}
