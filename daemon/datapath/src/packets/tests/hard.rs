//! Complex packets: fragments, options, extensions, no Ethernet, garbage.

use holdfast_core::op::FrontendType;
use libbpf_rs::{MapCore, MapFlags};

use super::craft::{SYN, Sent, TCP, UDP, address};
use super::lives;
use super::node::{NEXT, Node};
use super::sctp::SCTP;
use crate::abi::packets::types::{lifetime, packet_count};
use crate::kernel::bed::Port;
use crate::map::{self, Map};

fn serve(node: &mut Node) {
    let kind = FrontendType::LoadBalancer;
    for (index, (frontend, backend)) in
        (1..).zip([("203.0.113.10:80", "10.1.0.5:8080"), ("[2001:db8:f::10]:80", "[fd01::5]:8080")])
    {
        let backends = [address(backend)];
        let (frontends, base) = ([frontend], index);
        node.serve(&Port { index, kind, frontends: &frontends, backends: &backends, base, ..Port::TCP });
        for (index, base) in [(index + 2, Port::UDP), (index + 4, Port::SCTP)] {
            node.serve(&Port {
                index,
                kind,
                frontends: &frontends,
                backends: &backends,
                base: index,
                ..base
            });
        }
    }
}

fn each(client: &str, frontend: &str) -> [Sent; 3] {
    [TCP, UDP, SCTP].map(|transport| Sent::by(transport, client, frontend, SYN, b"xyz"))
}

const WAYS: [(&str, &str, &str); 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.1.0.5:8080"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
];

#[test]
fn kernel_options_and_extension_headers_are_skipped() {
    Node::test(|node| {
        serve(node);
        let (client, frontend, backend) = WAYS[0];
        for words in 1..=10 {
            let sent = Sent { options: vec![1; words * 4], ..Sent::tcp(client, frontend, SYN) };
            let seen = node.comes(&sent);
            assert_eq!((seen.to, seen.is_valid), (address(backend), true), "{words} words of options");
        }
        let (client, frontend, backend) = WAYS[1];
        let hop = |length: u8| (0, [vec![0, length], vec![1; usize::from(length) * 8 + 6]].concat());
        let (routing, options) = ((43, vec![0; 8]), (60, vec![0, 0, 1, 4, 0, 0, 0, 0]));
        for extensions in [vec![hop(0)], vec![hop(2), options.clone()], vec![hop(1), routing, options]] {
            let sent = Sent { extensions, ..Sent::tcp(client, frontend, SYN) };
            let seen = node.comes(&sent);
            assert_eq!((seen.to, seen.is_valid), (address(backend), true), "{sent:?}");
        }
        let endless = Sent { extensions: vec![hop(0); 7], ..Sent::tcp(client, frontend, SYN) };
        node.check_passed(&endless);
    });
}

#[test]
fn kernel_fragments_follow_their_first_one_both_ways() {
    Node::test(|node| {
        serve(node);
        for (client, frontend, backend) in WAYS {
            let part = |from: &str, to: &str, offset: u16, more, payload: &[u8]| Sent {
                fragment: Some((7, offset, more)),
                ..Sent::udp(from, to, payload)
            };
            let early = part(client, frontend, 16, false, b"and the rest");
            node.check_passed(&early);
            let seen = node.comes(&part(client, frontend, 0, true, b"12345678"));
            assert_eq!((seen.from.ip(), seen.to), (address(client).ip(), address(backend)));
            let through = seen.from.to_string();
            for (offset, more) in [(16, true), (32, false)] {
                let seen = node.comes(&part(client, frontend, offset, more, b"and the rest"));
                assert_eq!(seen.to.ip(), address(backend).ip(), "the part at {offset}");
                assert_eq!((seen.from.ip(), seen.is_valid), (address(client).ip(), true));
                assert_eq!(seen.payload, b"and the rest");
            }
            let seen = node.leaves(&part(backend, &through, 0, true, b"12345678"));
            assert_eq!((seen.from, seen.to), (address(frontend), address(client)));
            let seen = node.leaves(&part(backend, &through, 16, false, b"the end"));
            assert_eq!((seen.from.ip(), seen.is_valid), (address(frontend).ip(), true));
        }
        assert!(node.counted(packet_count::COUNT_FRAGMENTS) >= 2);
    });
}

/// A fragment of a UDP datagram: its offset, and whether more follows.
fn part(from: &str, to: &str, offset: u16, more: bool) -> Sent {
    Sent { fragment: Some((7, offset, more)), ..Sent::udp(from, to, b"12345678") }
}

const OPTIONS: u8 = 60;

/// A fragment with IPv6 options behind the fragment header: only the first one contains them, while all fragments name
/// them as the next header.
fn part_with_options(from: &str, to: &str, transport: u8, offset: u16) -> Sent {
    let payload = b"12345678";
    if offset > 0 {
        let fragment = Some((7, offset, false));
        return Sent { transport: OPTIONS, fragment, ..Sent::udp(from, to, payload) };
    }
    let extensions = vec![(44, vec![0, 0, 0, 1, 0, 0, 0, 7]), (OPTIONS, vec![0, 0, 1, 4, 0, 0, 0, 0])];
    Sent { extensions, ..Sent::by(transport, from, to, SYN, payload) }
}

#[test]
fn kernel_fragments_with_options_follow_their_first_one_both_ways() {
    for transport in [UDP, TCP] {
        Node::test(move |node| {
            serve(node);
            let (client, frontend, backend) = WAYS[1];
            let seen = node.comes(&part_with_options(client, frontend, transport, 0));
            assert_eq!(seen.to, address(backend));
            let through = seen.from.to_string();
            let seen = node.comes(&part_with_options(client, frontend, transport, 24));
            assert_eq!((seen.to.ip(), seen.payload.as_slice()), (address(backend).ip(), &b"12345678"[..]));
            let seen = node.leaves(&part_with_options(backend, &through, transport, 0));
            assert_eq!((seen.from, seen.to), (address(frontend), address(client)));
            let seen = node.leaves(&part_with_options(backend, &through, transport, 24));
            assert_eq!((seen.from.ip(), seen.to.ip()), (address(frontend).ip(), address(client).ip()));
            assert_eq!(node.counted(packet_count::COUNT_FRAGMENTS), 0);
        });
    }
}

/// In IPv4 each protocol numbers its datagrams separately.
#[test]
fn kernel_an_ipv4_fragment_follows_no_first_one_of_another_protocol() {
    Node::test(|node| {
        serve(node);
        let (client, frontend, backend) = WAYS[0];
        let through = node.comes(&part(client, frontend, 0, true)).from.to_string();
        node.leaves(&part(backend, &through, 0, true));
        for transport in [OPTIONS, 51] {
            for (from, to) in [(client, frontend), (backend, through.as_str())] {
                node.check_passed(&Sent { transport, ..part(from, to, 16, false) });
            }
        }
    });
}

/// A node has many foreign fragments, as of tunnels and files. None is lost here.
#[test]
fn kernel_only_fragments_to_frontends_count_as_early() {
    Node::test(|node| {
        serve(node);
        let strangers =
            ["192.0.2.1:9", "192.0.2.1:61001", "198.18.0.1:80", "[2001:db8::1]:9", "[fd01::5]:80"];
        for to in strangers {
            let from = if to.starts_with('[') { WAYS[1].0 } else { WAYS[0].0 };
            node.check_passed(&part(from, to, 16, false));
            node.check_passed(&part(from, to, 0, true));
            node.check_passed(&part(from, to, 16, false));
        }
        assert_eq!(node.counted(packet_count::COUNT_FRAGMENTS), 0);
        for (before, (client, frontend, _)) in (0..).zip(WAYS) {
            assert_eq!(node.counted(packet_count::COUNT_FRAGMENTS), before);
            let early = part(client, frontend, 16, false).frame();
            assert_eq!(node.come(&early), (NEXT, early.clone()));
            assert_eq!(node.counted(packet_count::COUNT_FRAGMENTS), before + 1);
        }
    });
}

/// So many turns pass for all known first fragments.
fn age_fragments(node: &Node, turns: u16) {
    let fragments = map::find_handle(&node.handles, Map::Fragments).unwrap();
    for key in fragments.keys().collect::<Vec<_>>() {
        let ports = fragments.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        fragments.delete(&key).unwrap();
        let mut aged = key.clone();
        let turn = aged.last_chunk_mut::<2>().unwrap();
        *turn = u16::from_ne_bytes(*turn).wrapping_sub(turns).to_ne_bytes();
        node.put(Map::Fragments, &aged, &ports);
    }
}

/// Datagram ids wrap around; an entry lives no longer than the kernel's own.
#[test]
fn kernel_a_fragment_follows_no_expired_first_one() {
    let turn = || lives::now() / lifetime::FRAGMENT_TURN.0;
    Node::test(move |node| {
        serve(node);
        let judged = WAYS.into_iter().cycle().take(6).filter(|(client, frontend, backend)| {
            let began = turn();
            let through = node.comes(&part(client, frontend, 0, true)).from.to_string();
            node.leaves(&part(backend, &through, 0, true));
            age_fragments(node, 1);
            let follow = [part(client, frontend, 16, false), part(backend, &through, 16, false)];
            let [came, left] = [node.come(&follow[0].frame()), node.leave(&follow[1].frame())];
            age_fragments(node, 1);
            let [later, last] = [node.come(&follow[0].frame()), node.leave(&follow[1].frame())];
            if turn() != began {
                return false;
            }
            assert!(came.1 != follow[0].frame() && left.1 != follow[1].frame(), "in time: {client}");
            assert_eq!(later, (NEXT, follow[0].frame()), "too late");
            assert_eq!(last, (NEXT, follow[1].frame()), "too late");
            true
        });
        assert!(judged.count() > 2);
    });
}

#[test]
fn kernel_a_fragment_follows_no_former_datagram_with_its_id() {
    Node::test(|node| {
        for (index, (to, backend)) in
            (1..).zip([("192.0.2.1", "10.1.0.5:53"), ("[2001:db8::1]", "[fd01::5]:53")])
        {
            let (frontend, other) = (format!("{to}:30001"), format!("{to}:9999"));
            let port = Port { index, base: 2 * index, kind: FrontendType::NodePort, ..Port::UDP };
            node.serve(&Port { frontends: &[&frontend], backends: &[address(backend)], ..port });
            let client = if index == 1 { "198.51.100.7:40000" } else { "[2001:db8:1::7]:40000" };
            let seen = node.comes(&part(client, &frontend, 0, true));
            assert_eq!(seen.to, address(backend));
            node.check_passed(&part(client, &other, 0, true));
            node.check_passed(&part(client, &other, 16, false));
            let through = seen.from.to_string();
            assert_eq!(node.leaves(&part(backend, &through, 0, true)).from, address(&frontend));
            let elsewhere = format!("{}:9", through.rsplit_once(':').unwrap().0);
            node.check_passed(&part(backend, &elsewhere, 0, true));
            node.check_passed(&part(backend, &elsewhere, 16, false));
        }
    });
}

/// A device in promiscuous mode receives it too.
#[test]
fn kernel_a_frame_for_another_host_is_left_alone() {
    Node::test(|node| {
        serve(node);
        for (client, frontend, _) in WAYS {
            let mut frame = Sent::tcp(client, frontend, SYN).frame();
            frame[5] ^= 0x10;
            assert_eq!(node.come(&frame), (NEXT, frame.clone()));
        }
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 0);
    });
}

#[test]
fn kernel_a_datagram_without_a_checksum_stays_without_one() {
    Node::test(|node| {
        serve(node);
        let (client, frontend, backend) = WAYS[0];
        let seen = node.comes(&Sent { no_sum: true, ..Sent::udp(client, frontend, b"x") });
        assert_eq!((seen.to, seen.is_valid), (address(backend), true));
    });
}

/// A wrong checksum stays wrong: a check still finds the corruption.
#[test]
fn kernel_invariant_13_a_wrong_checksum_stays_wrong() {
    Node::test(|node| {
        serve(node);
        for (client, frontend, _) in WAYS {
            for sent in each(client, frontend) {
                let mut frame = sent.frame();
                let at = frame.len() - 1;
                frame[at] ^= 0x55;
                let (_, out) = node.come(&frame);
                assert!(!super::craft::see(&out, true).is_valid, "{sent:?}");
            }
        }
    });
}

const SPOILERS: [u8; 8] = [0, 1, 0x0f, 0x2c, 0x45, 0x4f, 0x6f, 0xff];

/// Corrupts each byte of a frame from its protocol type on.
fn spoilt(frame: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let at = (12..frame.len()).flat_map(|at| SPOILERS.map(|value| (at, value)));
    at.map(|(at, value)| {
        let mut spoilt = frame.to_vec();
        spoilt[at] = value;
        spoilt
    })
}

/// Each truncation of a packet, and each header byte corrupted: no failure, no read beyond the end.
#[test]
fn kernel_corrupted_packets_cause_no_failure() {
    Node::test(|node| {
        serve(node);
        let mut taken = 0;
        for (client, frontend, _) in WAYS {
            for sent in each(client, frontend) {
                let frame = sent.frame();
                for end in 15..frame.len() - sent.payload.len() {
                    let Some([came, left]) = node.take(&frame[..end]) else { continue };
                    taken += 1;
                    assert_eq!((came.1.as_slice(), left.1.as_slice()), (&frame[..end], &frame[..end]));
                }
                taken += spoilt(&frame).filter_map(|frame| node.take(&frame)).count();
            }
        }
        assert!(taken > 1500, "{taken}");
        let (client, frontend, backend) = WAYS[0];
        assert_eq!(
            node.comes(&Sent::tcp(client, frontend, SYN)).to,
            address(backend),
            "the programs still translate"
        );
    });
}
