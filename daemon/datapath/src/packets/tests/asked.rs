//! A cached route serves equal look-ups of the same second, and no others.

use super::craft::{SYN, Sent, UDP};
use super::network::{self, OUTER};
use super::node::{NEXT, Node, REDIRECTED, next_second};
use super::past::{Way, serve};

/// Outside clients without their ports, their frontends, and backends of another node.
const WAYS: [Way; 2] = [
    ("198.51.100.7", "203.0.113.10:80", "10.2.0.5:8080"),
    ("[2001:db8:1::7]", "[2001:db8:f::10]:80", "[fd02::5]:8080"),
];

/// On a busy machine a second may pass while a command runs.
const TRIES: u16 = 100;

/// The verdicts of frames that follow another one after the routers were flushed: frames that share its cached route
/// take the fast path in the same second.
fn after_another(node: &Node, frames: Vec<Vec<u8>>) -> Vec<i32> {
    network::know_routers();
    let mut frames = frames.into_iter();
    assert_eq!(node.come(&frames.next().unwrap()).0, REDIRECTED);
    network::forget_routers();
    frames.map(|frame| node.come(&frame).0).collect()
}

/// Retries until everything falls into one second. Frames that must not share a route share it in no try. Each try has
/// its own number.
#[track_caller]
fn meet(node: &Node, frames: impl Fn(u16) -> Vec<Vec<u8>>, expected: &[i32]) {
    let is_met = |number| {
        let met = after_another(node, frames(number));
        let is_apart = met.iter().zip(expected).all(|(met, expected)| met == expected || *met == NEXT);
        assert!(is_apart, "{met:?}, not {expected:?}");
        met == expected
    };
    assert!((1..TRIES).any(is_met), "a second is too short");
}

/// The first datagram of a client, from one of two ports for that number.
fn first(client: &str, frontend: &str, number: u16, is_second: bool) -> Vec<u8> {
    let port = 20_000 + 2 * number + u16::from(is_second);
    Sent::by(UDP, &format!("{client}:{port}"), frontend, SYN, b"?").frame()
}

/// From another port, with another flow label, and of another class or host.
fn others(way: Way, number: u16) -> Vec<Vec<u8>> {
    let (client, frontend, _) = way;
    let one = first(client, frontend, number, false);
    let of_host = first(&client.replace('7', "8"), frontend, number, true);
    let mut frames = vec![one, first(client, frontend, number, true)];
    if client.starts_with('[') {
        // The class begins in the last bits of the first byte, and the label ends in the fourth.
        for (at, bits) in [(17, 1), (14, 2)] {
            let mut other = first(client, frontend, 5_000 + number, at == 14);
            other[at] |= bits;
            frames.push(other);
        }
    }
    frames.push(of_host);
    frames
}

#[track_caller]
fn check(plain: [bool; 2], expected: [&'static [i32]; 2]) {
    Node::test(move |node| {
        serve(node, &WAYS);
        node.tell_of_plain(OUTER, plain);
        for (way, expected) in WAYS.into_iter().zip(expected) {
            meet(node, |number| others(way, number), expected);
        }
    });
}

#[test]
fn kernel_connections_of_two_hosts_share_a_route_if_ports_do_not_count() {
    check([true, true], [&[REDIRECTED, NEXT], &[REDIRECTED, REDIRECTED, NEXT, NEXT]]);
}

#[test]
fn kernel_connections_of_two_hosts_share_no_route_if_ports_count() {
    check([false, false], [&[NEXT, NEXT], &[NEXT, NEXT, NEXT, NEXT]]);
    check([true, false], [&[REDIRECTED, NEXT], &[NEXT, NEXT, NEXT, NEXT]]);
}

#[test]
fn kernel_a_cached_route_is_looked_up_again_in_the_next_second() {
    Node::test(|node| {
        serve(node, &WAYS);
        node.tell_of_plain(OUTER, [true, true]);
        for way in WAYS {
            let frames = |number| vec![first(way.0, way.1, number, false), first(way.0, way.1, number, true)];
            meet(node, frames, &[REDIRECTED]);
            next_second();
            assert_eq!(node.come(&first(way.0, way.1, TRIES, false)).0, NEXT, "no router is resolved");
        }
    });
}
