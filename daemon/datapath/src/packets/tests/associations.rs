//! What is SCTP's own: a sum over all of a packet, and chunks that say what becomes of an association.

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
/// A frontend with the port of its backend: nothing of it changes but addresses.
const SAME: &str = "203.0.113.11:8080";

const ENDS: [(&str, &str, &str); 2] =
    [("198.51.100.7", "203.0.113.10", "10.1.0.5"), ("[2001:db8:1::7]", "[2001:db8:f::10]", "[fd01::5]")];

/// How long the header of Ethernet is, and that of IPv4 and of IPv6.
const ETHERNET: usize = 14;
const IP: [usize; 2] = [20, 40];

/// How much of a long packet a program is given: a test run takes no packet of full length, and no program looks at the
/// bytes behind these.
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

/// A packet with a header that says so many bytes of SCTP, and only the first of these bytes; and all of these bytes.
fn long(random: &mut Random, from: &str, to: &str, length: usize) -> (Vec<u8>, Vec<u8>) {
    let mut whole: Vec<u8> = (0..length).map(|_| random.number().to_le_bytes()[0]).collect();
    for (at, port) in [(0, address(from).port()), (2, address(to).port())] {
        whole[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
    let sum = sum_of(&whole);
    whole[SUM..HEADER].copy_from_slice(&sum);
    // The header of IP says the whole length, and IPv4's own sum is right.
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

/// The one law of SCTP's sum: the program corrects it to what a sender would make over the whole packet.
#[test]
fn kernel_invariant_13_a_corrected_sum_is_the_one_that_would_be_made_anew() {
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
            assert_eq!(out[at..at + SUM], whole[..SUM], "the ports, and the tag");
            assert_eq!(
                out[at + SUM..at + HEADER],
                sum_of(&whole),
                "{length} bytes of {client} to {frontend}"
            );
        }
    });
}

/// A sum of 0 means "still to be made" only where the kernel says so of the packet, which it never does of one that
/// came by a wire.
#[test]
fn kernel_a_sum_that_happens_to_be_zero_is_one() {
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
fn kernel_an_association_begins_with_an_init_and_nothing_else() {
    Node::test(|node| {
        serve(node);
        for kind in [DATA, INIT_ACK, SACK, HEARTBEAT, ABORT, SHUTDOWN, COOKIE_ECHO, COOKIE_ACK, 0xc1] {
            node.check_passed(&says(CLIENT, FRONTEND, kind));
        }
        // An INIT has its packet to itself.
        let both = [chunk(INIT, &[7; 16]), chunk(DATA, &[1; 12])].concat();
        node.check_passed(&Sent::chunks(CLIENT, FRONTEND, both));
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 0);
        assert_eq!(node.counted(packet_count::COUNT_MIDSTREAM), 10);
        associate(node, OLD);
        let (_, flow) = found(node, CLIENT).unwrap();
        assert_eq!((flow.transport, u32::from(flow.state)), (132, flow_state::FLOW_OPEN.0));
    });
}

/// Any host may send an INIT in a client's name, and a backend answers each. It does not answer a cookie that it did
/// not give.
#[test]
fn kernel_an_association_is_open_once_its_backend_says_so() {
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
            assert!(is_in(node, flow_state::FLOW_OPENING), "a stranger may have said that: {kind}");
        }
        answers(node, OLD, COOKIE_ACK);
        assert!(is_in(node, flow_state::FLOW_OPEN));
        node.serve_local(&Port { frontends: &[FRONTEND], backends: &[address(NEW)], ..Port::SCTP });
        goes(node, INIT);
        answers(node, OLD, INIT_ACK);
        assert!(is_in(node, flow_state::FLOW_OPEN), "a stranger's INIT is answered too");
        assert_eq!(goes(node, DATA), address(OLD));
    });
}

/// A client begins anew from the port of an association that is over; an association that lives is left alone.
#[test]
fn kernel_an_init_begins_anew_where_both_sides_have_shut_down() {
    for [first, second] in [[CLIENT, OLD], [OLD, CLIENT]] {
        Node::test(move |node| {
            serve(node);
            associate(node, OLD);
            node.serve_local(&Port { frontends: &[FRONTEND], backends: &[address(NEW)], ..Port::SCTP });
            let say = |from: &str, kind| match from == CLIENT {
                true => _ = goes(node, kind),
                false => answers(node, OLD, kind),
            };
            assert_eq!(goes(node, DATA), address(OLD), "an association stays where it is");
            assert_eq!(goes(node, INIT), address(OLD), "a stranger's INIT ends nothing");
            answers(node, OLD, INIT_ACK);
            assert_eq!(goes(node, COOKIE_ECHO), address(OLD));
            say(first, SHUTDOWN);
            assert_eq!(goes(node, INIT), address(OLD), "one side is not the end");
            answers(node, OLD, SACK);
            say(second, SHUTDOWN_ACK);
            say(first, SHUTDOWN_COMPLETE);
            assert_eq!(goes(node, INIT), address(NEW), "both sides are");
        });
    }
}

#[test]
fn kernel_an_abort_is_believed_of_a_backend() {
    Node::test(|node| {
        serve(node);
        associate(node, OLD);
        node.serve_local(&Port { frontends: &[FRONTEND], backends: &[address(NEW)], ..Port::SCTP });
        assert_eq!(goes(node, ABORT), address(OLD));
        assert_eq!(goes(node, INIT), address(OLD), "any host may say so in a client's name");
        answers(node, OLD, ABORT);
        assert_eq!(goes(node, INIT), address(NEW));
    });
}

/// A chunk is heard behind other ones too; what is inside of a chunk, and what fills up a frame, says nothing.
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
            "data is no chunk"
        );
        assert_eq!(heard_of_client(node, [chunk(SACK, &[1; 12]), vec![0; 10]].concat()) & fin, 0);
        let waits_for_nothing =
            |node: &Node| u32::from(found(node, CLIENT).unwrap().1.unacked) == unacked::UNACKED_NOTHING.0;
        assert!(waits_for_nothing(node), "a SACK asks for nothing, nor does what fills up a frame");
        assert_eq!(heard_of_client(node, [long.concat(), chunk_of(FIN, b"")].concat()) & fin, fin);
    });
}

/// The sum of SCTP covers the bytes of all pieces, so it cannot be corrected in the first one alone. Where no port
/// changes, it stays as it is.
#[test]
fn kernel_a_packet_in_pieces_is_translated_only_where_its_ports_stay() {
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
                assert_eq!(verdict, SHOT, "its sum would be wrong");
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

/// If a flow were left, what the client sends next would follow it to a backend that never heard of the client.
#[test]
fn kernel_a_first_packet_that_cannot_be_written_leaves_no_flow() {
    Node::test(|node| {
        serve(node);
        let first = Sent { fragment: Some((7, 0, true)), ..says(CLIENT, FRONTEND, INIT) };
        assert_eq!(node.come(&first.frame()).0, SHOT, "its sum would be wrong");
        assert_eq!(node.counted(packet_count::COUNT_UNWRITABLE), 1);
        assert_eq!(goes(node, DATA), address(FRONTEND), "it is of no flow");
        associate(node, OLD);
    });
}

/// The host that sent an INIT knows it again by the tag in it, so the error quotes the INIT.
#[test]
fn kernel_an_sctp_client_without_a_backend_is_told_that_the_port_is_closed() {
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
                assert_eq!(quoted.payload, sent.payload[..INIT_BYTES], "the whole of an INIT, and no more");
            }
            let short = Sent::chunks(&client, &frontend, vec![INIT, 0, 0, 4]);
            assert_eq!(node.come(&short.frame()).0, SHOT, "it is no INIT");
            node.serve(&Port { frontends: &[&frontend], flags: WordFlags::DROP, ..Port::SCTP });
            assert_eq!(node.come(&says(&client, &frontend, INIT).frame()).0, SHOT);
        });
    }
}
