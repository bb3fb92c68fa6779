//! Specifics of SCTP: a checksum over the whole packet, and chunks that set an association's state.

use holdfast_core::op::WordFlags;
use holdfast_laws::simulation::Random;

use super::craft::{FIN, Sent, address, see};
use super::lives::found;
use super::node::{NEXT, Node, REDIRECTED, SHOT};
use super::sctp::{
    ABORT, COOKIE_ACK, COOKIE_ECHO, DATA, HEADER, HEARTBEAT, INIT, INIT_ACK, INIT_BYTES, SACK, SHUTDOWN,
    SHUTDOWN_ACK, SHUTDOWN_COMPLETE, SUM, chunk, chunk_of, end_that_makes_zero, is_right, sum_of,
};
use crate::abi::flow::types::{flow_flag, flow_state, unacked};
use crate::abi::packets::types::packet_count;
use crate::kernel::bed::Port;

const CLIENT: &str = "198.51.100.7:40000";
const FRONTEND: &str = "203.0.113.10:80";
const OLD: &str = "10.1.0.5:8080";
const NEW: &str = "10.1.0.6:8080";
/// A frontend with its backend's port: translation changes only addresses.
const SAME: &str = "203.0.113.11:8080";

const ENDS: [(&str, &str, &str); 2] =
    [("198.51.100.7", "203.0.113.10", "10.1.0.5"), ("[2001:db8:1::7]", "[2001:db8:f::10]", "[fd01::5]")];

/// The bytes of the headers of Ethernet, IPv4 and IPv6.
const ETHERNET: usize = 14;
const IP: [usize; 2] = [20, 40];

/// How much of a long packet a program gets: a test run accepts no packet of full length, and no program reads beyond
/// these bytes.
const BYTES_MOST: usize = 1_000;

fn serve(node: &mut Node) {
    node.serve_local(&Port { frontends: &[FRONTEND], backends: &[address(OLD)], ..Port::SCTP });
}

fn says(from: &str, to: &str, kind: u8) -> Sent {
    let content: &[u8] = if kind == INIT || kind == INIT_ACK { &[7; 16] } else { &[9; 12] };
    Sent::chunks(from, to, chunk(kind, content))
}

#[track_caller]
fn goes(node: &Node, kind: u8) -> std::net::SocketAddr {
    let seen = node.comes(&says(CLIENT, FRONTEND, kind));
    assert!(seen.is_valid, "{seen:?}");
    seen.to
}

#[track_caller]
fn answers(node: &Node, backend: &str, kind: u8) {
    let seen = node.leaves(&says(backend, CLIENT, kind));
    assert_eq!((seen.from, seen.to, seen.is_valid), (address(FRONTEND), address(CLIENT), true), "{seen:?}");
}

#[track_caller]
fn associate(node: &Node, backend: &str) {
    assert_eq!(goes(node, INIT), address(backend));
    answers(node, backend, INIT_ACK);
    assert_eq!(goes(node, COOKIE_ECHO), address(backend));
    answers(node, backend, COOKIE_ACK);
}

/// A packet whose header claims so many bytes of SCTP but that contains only the first ones; and all of these bytes.
fn long(random: &mut Random, from: &str, to: &str, length: usize) -> (Vec<u8>, Vec<u8>) {
    let mut whole: Vec<u8> = (0..length).map(|_| random.number().to_le_bytes()[0]).collect();
    for (at, port) in [(0, address(from).port()), (2, address(to).port())] {
        whole[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
    let sum = sum_of(&whole);
    whole[SUM..HEADER].copy_from_slice(&sum);
    // The IP header has the whole length, and IPv4's own checksum is right.
    let mut frame = Sent::chunks(from, to, Vec::new()).frame();
    let total = u16::try_from(length + if address(from).is_ipv4() { IP[0] } else { 0 }).unwrap();
    let ip = &mut frame[ETHERNET..];
    if address(from).is_ipv4() {
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[10..12].fill(0);
        let sum = !super::craft::folded(0, &ip[..IP[0]]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.truncate(ETHERNET + IP[0]);
    } else {
        ip[4..6].copy_from_slice(&total.to_be_bytes());
        frame.truncate(ETHERNET + IP[1]);
    }
    frame.extend(&whole[..length.min(BYTES_MOST)]);
    (frame, whole)
}

/// The law of SCTP's checksum: the program's result equals the one that a sender would compute over the whole packet.
#[test]
fn kernel_invariant_13_a_corrected_checksum_equals_a_computed_one() {
    Node::test_with(4096, |node| {
        let mut random = Random::new(1);
        for case in 0..600_u32 {
            let (client, frontend, backend) = ENDS[case as usize % 2];
            let mut port = || 1_024 + u16::try_from(random.below(28_000)).unwrap();
            let [client, frontend, backend] = [(client, port()), (frontend, port()), (backend, port())]
                .map(|(ip, port)| format!("{ip}:{port}"));
            let index = 1 + case % 2;
            let port = Port { index, base: index, frontends: &[&frontend], ..Port::SCTP };
            node.serve(&Port { backends: &[address(&backend)], ..port });
            let seen = node.comes(&says(&client, &frontend, INIT));
            assert_eq!((seen.to, seen.is_valid), (address(&backend), true));
            let length = match case {
                0..2 => HEADER,
                2..4 => 65_515,
                _ if random.chance(500) => HEADER + random.below(65_515 - HEADER + 1),
                _ => HEADER + random.below(1_500),
            };
            let (frame, mut whole) = long(&mut random, &client, &frontend, length);
            let (verdict, out) = node.come(&frame);
            assert_eq!((verdict, out.len()), (NEXT, frame.len()), "{length} bytes");
            let at = ETHERNET + IP[usize::from(!address(&client).is_ipv4())];
            for (at, port) in [(0, seen.from.port()), (2, seen.to.port())] {
                whole[at..at + 2].copy_from_slice(&port.to_be_bytes());
            }
            assert_eq!(out[at..at + SUM], whole[..SUM], "the ports and the tag");
            assert_eq!(
                out[at + SUM..at + HEADER],
                sum_of(&whole),
                "{length} bytes of {client} to {frontend}"
            );
        }
    });
}

/// A checksum of 0 means "to be computed" only if the kernel marks the packet so, which it never does for packets from
/// a wire.
#[test]
fn kernel_a_checksum_of_zero_is_a_valid_checksum() {
    Node::test(|node| {
        serve(node);
        associate(node, OLD);
        let mut sent = Sent::chunks(CLIENT, FRONTEND, chunk(DATA, &[5; 20]));
        let segment = sent.packet()[IP[0]..].to_vec();
        let mut before = segment[..segment.len() - 4].to_vec();
        before[SUM..HEADER].fill(0);
        let end = end_that_makes_zero(&before);
        let at = sent.payload.len() - 4;
        sent.payload[at..].copy_from_slice(&end);
        let segment = &sent.packet()[IP[0]..];
        assert!(segment[SUM..HEADER] == [0; 4] && is_right(segment));
        let seen = node.comes(&sent);
        assert_eq!((seen.to, seen.is_valid), (address(OLD), true));
    });
}

#[test]
fn kernel_only_an_init_opens_an_association() {
    Node::test(|node| {
        serve(node);
        for kind in [DATA, INIT_ACK, SACK, HEARTBEAT, ABORT, SHUTDOWN, COOKIE_ECHO, COOKIE_ACK, 0xc1] {
            node.check_passed(&says(CLIENT, FRONTEND, kind));
        }
        // An INIT is the only chunk of its packet.
        let both = [chunk(INIT, &[7; 16]), chunk(DATA, &[1; 12])].concat();
        node.check_passed(&Sent::chunks(CLIENT, FRONTEND, both));
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 0);
        assert_eq!(node.counted(packet_count::COUNT_MIDSTREAM), 10);
        associate(node, OLD);
        let (_, flow) = found(node, CLIENT).unwrap();
        assert_eq!((flow.transport, u32::from(flow.state)), (132, flow_state::FLOW_OPEN.0));
    });
}

/// Any host may send an INIT in a client's name, and a backend replies to each. It does not reply to a cookie that it
/// did not issue.
#[test]
fn kernel_an_association_is_open_once_its_backend_confirms_it() {
    Node::test(|node| {
        serve(node);
        let is_in =
            |node: &Node, state: flow_state| u32::from(found(node, CLIENT).unwrap().1.state) == state.0;
        for kind in [INIT, COOKIE_ECHO, DATA] {
            goes(node, kind);
            assert!(is_in(node, flow_state::FLOW_OPENING), "{kind}");
        }
        answers(node, OLD, INIT_ACK);
        for kind in [COOKIE_ECHO, DATA] {
            goes(node, kind);
            assert!(is_in(node, flow_state::FLOW_OPENING), "any host may have sent that: {kind}");
        }
        answers(node, OLD, COOKIE_ACK);
        assert!(is_in(node, flow_state::FLOW_OPEN));
        node.serve_local(&Port { frontends: &[FRONTEND], backends: &[address(NEW)], ..Port::SCTP });
        goes(node, INIT);
        answers(node, OLD, INIT_ACK);
        assert!(is_in(node, flow_state::FLOW_OPEN), "a forged INIT gets a reply too");
        assert_eq!(goes(node, DATA), address(OLD));
    });
}

/// A client reconnects from the port of a closed association; an open association is left alone.
#[test]
fn kernel_an_init_reopens_an_association_that_both_sides_closed() {
    for [first, second] in [[CLIENT, OLD], [OLD, CLIENT]] {
        Node::test(move |node| {
            serve(node);
            associate(node, OLD);
            node.serve_local(&Port { frontends: &[FRONTEND], backends: &[address(NEW)], ..Port::SCTP });
            let say = |from: &str, kind| match from == CLIENT {
                true => _ = goes(node, kind),
                false => answers(node, OLD, kind),
            };
            assert_eq!(goes(node, DATA), address(OLD), "an association keeps its backend");
            assert_eq!(goes(node, INIT), address(OLD), "a forged INIT ends nothing");
            answers(node, OLD, INIT_ACK);
            assert_eq!(goes(node, COOKIE_ECHO), address(OLD));
            say(first, SHUTDOWN);
            assert_eq!(goes(node, INIT), address(OLD), "one side is not enough");
            answers(node, OLD, SACK);
            say(second, SHUTDOWN_ACK);
            say(first, SHUTDOWN_COMPLETE);
            assert_eq!(goes(node, INIT), address(NEW), "both sides are enough");
        });
    }
}

#[test]
fn kernel_only_a_backends_abort_ends_an_association() {
    Node::test(|node| {
        serve(node);
        associate(node, OLD);
        node.serve_local(&Port { frontends: &[FRONTEND], backends: &[address(NEW)], ..Port::SCTP });
        assert_eq!(goes(node, ABORT), address(OLD));
        assert_eq!(goes(node, INIT), address(OLD), "any host may send an ABORT in a client's name");
        answers(node, OLD, ABORT);
        assert_eq!(goes(node, INIT), address(NEW));
    });
}

/// Chunks count in any position; the content of a chunk and the padding of a frame do not.
#[test]
fn kernel_chunks_are_read_one_after_the_other() {
    Node::test(|node| {
        serve(node);
        associate(node, OLD);
        let heard_of_client = |node: &Node, chunks: Vec<u8>| {
            node.comes(&Sent::chunks(CLIENT, FRONTEND, chunks));
            u32::from(found(node, CLIENT).unwrap().1.client_flags)
        };
        let fin = flow_flag::FLOW_FIN_SEEN.0;
        let long = [chunk(SACK, &[1; 13]), chunk(HEARTBEAT, b"odd"), chunk(COOKIE_ACK, b"")];
        assert_eq!(
            heard_of_client(node, chunk(DATA, &[7, 0, 0, 4, 7, 0, 0, 4])) & fin,
            0,
            "data is not parsed as chunks"
        );
        assert_eq!(heard_of_client(node, [chunk(SACK, &[1; 12]), vec![0; 10]].concat()) & fin, 0);
        let waits_for_nothing =
            |node: &Node| u32::from(found(node, CLIENT).unwrap().1.unacked) == unacked::UNACKED_NOTHING.0;
        assert!(waits_for_nothing(node), "neither a SACK nor padding needs a reply");
        assert_eq!(heard_of_client(node, [long.concat(), chunk_of(FIN, b"")].concat()) & fin, fin);
    });
}

/// The checksum of SCTP covers all fragments, so the first one alone cannot be corrected. If no port changes, it stays
/// as it is.
#[test]
fn kernel_a_fragmented_sctp_packet_is_translated_only_with_the_same_port() {
    Node::test(|node| {
        serve(node);
        let same = Port { index: 2, base: 2, frontends: &[SAME], backends: &[address(OLD)], ..Port::SCTP };
        node.serve_local(&same);
        for (frontend, client) in [(FRONTEND, CLIENT), (SAME, "198.51.100.8:40000")] {
            node.comes(&says(client, frontend, INIT));
            let part = |offset, more, content: &[u8]| Sent {
                fragment: Some((7, offset, more)),
                ..Sent::chunks(client, frontend, chunk(DATA, content))
            };
            let first = part(0, true, &[1; 16]).frame();
            let (verdict, out) = node.come(&first);
            if frontend == FRONTEND {
                assert_eq!(verdict, SHOT, "its checksum would be wrong");
                continue;
            }
            let segment = ETHERNET + IP[0];
            assert_eq!((verdict, &out[segment..]), (NEXT, &first[segment..]), "no byte of SCTP changes");
            assert_eq!(see(&out, true).to, address(OLD));
            let later = node.comes(&part(32, false, &[2; 16]));
            assert_eq!((later.to.ip(), later.is_valid), (address(OLD).ip(), true));
        }
        assert_eq!(node.counted(packet_count::COUNT_UNWRITABLE), 1);
    });
}

/// A remaining flow would send the client's next packet to a backend that never saw the client.
#[test]
fn kernel_an_unwritable_first_packet_opens_no_flow() {
    Node::test(|node| {
        serve(node);
        let first = Sent { fragment: Some((7, 0, true)), ..says(CLIENT, FRONTEND, INIT) };
        assert_eq!(node.come(&first.frame()).0, SHOT, "its checksum would be wrong");
        assert_eq!(node.counted(packet_count::COUNT_UNWRITABLE), 1);
        assert_eq!(goes(node, DATA), address(FRONTEND), "it has no flow");
        associate(node, OLD);
    });
}

/// The sender matches the error by the INIT's tag, so the error quotes the INIT.
#[test]
fn kernel_an_sctp_client_without_a_backend_gets_port_unreachable() {
    for (at, (client, frontend, _)) in ENDS.into_iter().enumerate() {
        Node::test(move |node| {
            let (client, frontend) = (format!("{client}:40000"), format!("{frontend}:80"));
            node.serve(&Port { frontends: &[&frontend], ..Port::SCTP });
            for extra in [0, 4, 100, 2_000] {
                let sent = Sent::chunks(&client, &frontend, chunk(INIT, &vec![7; 16 + extra]));
                let (verdict, frame) = node.come(&sent.frame());
                assert_eq!(verdict, REDIRECTED, "{extra} bytes");
                let seen = see(&frame, true);
                assert!(seen.is_valid, "{seen:?}");
                assert_eq!((seen.from.ip(), seen.to.ip()), (address(&frontend).ip(), address(&client).ip()));
                let (kind, code, quoted) = seen.error.unwrap();
                assert_eq!((kind, code), [(3, 3), (1, 4)][at]);
                assert_eq!((quoted.from, quoted.to), (address(&client), address(&frontend)));
                assert_eq!(quoted.payload, sent.payload[..INIT_BYTES], "exactly the INIT");
            }
            let short = Sent::chunks(&client, &frontend, vec![INIT, 0, 0, 4]);
            assert_eq!(node.come(&short.frame()).0, SHOT, "a truncated INIT");
            node.serve(&Port { frontends: &[&frontend], flags: WordFlags::DROP, ..Port::SCTP });
            assert_eq!(node.come(&says(&client, &frontend, INIT).frame()).0, SHOT);
        });
    }
}
