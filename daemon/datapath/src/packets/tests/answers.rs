//! The replies that unserved clients get.

use holdfast_core::op::{FrontendType, QuotaId, WordFlags};
use holdfast_fixtures::clock::measure;

use super::craft::{ACK, RST, SYN, Sent, address, folded, see};
use super::node::{Node, QUOTED_LEAST, QUOTED_MOST, REDIRECTED, SHOT};
use crate::abi::packets::types::packet_count;
use crate::kernel::bed::Port;
use crate::refusals::Refusal;

const CLIENTS: [(&str, &str); 2] =
    [("198.51.100.7:40000", "203.0.113.10:80"), ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80")];

const ETHERNET: usize = 14;

fn refuse(node: &mut Node, flags: WordFlags) {
    for (index, (_, frontend)) in (1..).zip(CLIENTS) {
        let kind = FrontendType::LoadBalancer;
        node.serve(&Port { index, kind, frontends: &[frontend], flags, ..Port::TCP });
        node.serve(&Port { index: index + 2, kind, frontends: &[frontend], flags, ..Port::UDP });
        node.serve(&Port { index: index + 4, kind, frontends: &[frontend], flags, ..Port::SCTP });
    }
}

#[test]
fn kernel_a_client_without_backend_is_rejected_from_the_dialled_address() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        for (client, frontend) in CLIENTS {
            let (verdict, frame) = node.come(&Sent::tcp(client, frontend, SYN).frame());
            assert_eq!(verdict, REDIRECTED);
            let seen = see(&frame, true);
            assert_eq!((seen.from, seen.to), (address(frontend), address(client)));
            assert_eq!((seen.flags, seen.is_valid), (RST | ACK, true), "{seen:?}");
            let number = if client.starts_with('[') { 14 + 40 + 8 } else { 14 + 20 + 8 };
            assert_eq!(frame[number..number + 4], [0, 0, 0, 8], "the RST acknowledges the SYN");
            assert_eq!(frame[..6], [2, 0, 0, 0, 0, 2], "back to the sender's hardware address");
            for size in [0, 1, 7, 100, 1100] {
                let quoted = is_told(node, &Sent::udp(client, frontend, &vec![0xa5; size]));
                assert_eq!(quoted, size, "a short datagram is quoted whole");
            }
        }
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERABLE), 0);
    });
}

/// Checks that the sender of a datagram gets an ICMP error, and returns how much of the datagram it quotes.
#[track_caller]
fn is_told(node: &Node, sent: &Sent) -> usize {
    let (verdict, frame) = node.come(&sent.frame());
    let size = sent.payload.len();
    assert_eq!(verdict, REDIRECTED, "{size} bytes to {}", sent.to);
    assert!(frame.len() <= 1280, "{size} bytes: the error fits any MTU");
    let seen = see(&frame, true);
    assert_eq!((seen.from.ip(), seen.to.ip()), (sent.to.ip(), sent.from.ip()));
    assert!(seen.is_valid, "{size} bytes: {seen:?}");
    let (kind, code, quoted) = seen.error.unwrap();
    let expected = if sent.to.is_ipv6() { (1, 4) } else { (3, 3) };
    assert_eq!((kind, code), expected);
    assert_eq!((quoted.from, quoted.to), (sent.from, sent.to));
    let shown = &frame[ETHERNET + if sent.to.is_ipv6() { 48 } else { 28 }..];
    assert_eq!(shown, &sent.frame()[ETHERNET..][..shown.len()], "{size} bytes: as it was sent");
    quoted.payload.len()
}

/// How much of a long datagram is quoted after its ports, length and checksum.
const BEGINNING: usize = QUOTED_LEAST - 8;

/// The first datagram of QUIC has at least 1,200 bytes.
#[test]
fn kernel_a_long_datagram_without_backend_is_rejected_too() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        for ((client, frontend), whole) in CLIENTS.into_iter().zip([QUOTED_MOST - 28, QUOTED_MOST - 48]) {
            for size in [whole, whole + 1, 1200, 1201, 1252, 1472, 3000] {
                let quoted = is_told(node, &Sent::udp(client, frontend, &vec![0xa5; size]));
                assert_eq!(quoted, if size > whole { BEGINNING } else { size });
            }
        }
        let (client, frontend) = CLIENTS[0];
        for size in [8, 1100, 1200] {
            let sent = Sent { options: vec![1; 40], ..Sent::udp(client, frontend, &vec![0xa5; size]) };
            assert_eq!(is_told(node, &sent), if size > 1100 { BEGINNING } else { size });
        }
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERABLE), 0);
    });
}

/// A datagram with options behind it (RFC 9868), which belong to the packet but not to the datagram.
fn with_options(sent: &Sent, options: &[u8]) -> Vec<u8> {
    let (mut frame, at) = (sent.frame(), ETHERNET + if sent.to.is_ipv6() { 4 } else { 2 });
    frame.extend(options);
    let length = u16::from_be_bytes([frame[at], frame[at + 1]]) + u16::try_from(options.len()).unwrap();
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
    if sent.to.is_ipv4() {
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let sum = !folded(0, &frame[ETHERNET..ETHERNET + 20]);
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn kernel_a_datagram_with_options_is_rejected_with_a_right_checksum() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        for (client, frontend) in CLIENTS {
            for (size, options) in [(0, 1), (1, 4), (100, 8), (1000, 200), (1472, 16)] {
                let sent = Sent::udp(client, frontend, &vec![0xa5; size]);
                let frame = with_options(&sent, &vec![0x5a; options]);
                let (verdict, answer) = node.come(&frame);
                let seen = see(&answer, true);
                assert_eq!((verdict, seen.is_valid), (REDIRECTED, true), "{size} and {options}: {seen:?}");
                let quoted = seen.error.unwrap().2;
                assert_eq!((quoted.from, quoted.to), (sent.from, sent.to));
                assert_eq!(quoted.payload, sent.payload[..quoted.payload.len()], "no options");
            }
        }
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERABLE), 0);
    });
}

/// The checksum would cover less or more than the datagram's length, so it cannot be right.
#[test]
fn kernel_a_datagram_of_a_wrong_length_gets_no_reply() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        for (client, frontend) in CLIENTS {
            for length in [0_u16, 7, 109, 0xffff] {
                let mut frame = Sent::udp(client, frontend, &[0xa5; 100]).frame();
                let at = ETHERNET + if client.starts_with('[') { 44 } else { 24 };
                frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
                assert_eq!(node.come(&frame).0, SHOT, "{length}");
            }
        }
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERABLE), 8);
    });
}

/// IPv6 allows no datagram without a checksum, and hosts drop them.
#[test]
fn kernel_a_datagram_without_a_checksum_is_rejected_too() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        let [(client, frontend), (client6, frontend6)] = CLIENTS;
        for size in [0, 1, 11, 12, 13, 100, 1472] {
            let sent = Sent { no_sum: true, ..Sent::udp(client, frontend, &vec![0xa5; size]) };
            assert_eq!(is_told(node, &sent), size.min(BEGINNING));
        }
        let sent = Sent { no_sum: true, ..Sent::udp(client6, frontend6, b"x") };
        assert_eq!(node.come(&sent.frame()).0, SHOT);
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERABLE), 1);
    });
}

#[test]
fn kernel_clients_rejected_without_a_reply_are_counted() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        let [(client, frontend), (client6, frontend6)] = CLIENTS;
        let options = vec![(0, vec![0, 0, 1, 4, 0, 0, 0, 0])];
        let untold = [
            Sent {
                extensions: options,
                ..Sent::udp(client6, frontend6, b"its checksum would have to be read")
            },
            Sent { fragment: Some((7, 0, true)), ..Sent::udp(client, frontend, b"12345678") },
            Sent::chunks(client, frontend, vec![1, 0, 0, 4]),
        ];
        for (before, sent) in (0..).zip(untold) {
            assert_eq!(node.counted(packet_count::COUNT_UNANSWERABLE), before);
            assert_eq!(node.come(&sent.frame()).0, SHOT, "{sent:?}");
        }
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERABLE), 3);
    });
}

#[test]
fn kernel_dropped_clients_get_no_reply() {
    Node::test(|node| {
        refuse(node, WordFlags::DROP);
        for (client, frontend) in CLIENTS {
            assert_eq!(node.come(&Sent::tcp(client, frontend, SYN).frame()).0, SHOT);
            assert_eq!(node.come(&Sent::udp(client, frontend, b"x").frame()).0, SHOT);
        }
    });
}

/// From no host's address or many hosts', and to broadcast addresses.
#[test]
fn kernel_a_reject_goes_to_one_host_or_to_none() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        let [(client, frontend), (_, frontend6)] = CLIENTS;
        for source in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "239.255.255.250", "255.255.255.255"] {
            let source = format!("{source}:40000");
            assert_eq!(node.come(&Sent::tcp(&source, frontend, SYN).frame()).0, SHOT, "{source}");
            assert_eq!(node.come(&Sent::udp(&source, frontend, b"x").frame()).0, SHOT, "{source}");
        }
        for source in ["::1", "::", "ff02::1"] {
            let source = format!("[{source}]:40000");
            assert_eq!(node.come(&Sent::tcp(&source, frontend6, SYN).frame()).0, SHOT, "{source}");
            assert_eq!(node.come(&Sent::udp(&source, frontend6, b"x").frame()).0, SHOT, "{source}");
        }
        for link in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            let mut frame = Sent::udp(client, frontend, b"x").frame();
            frame[..6].copy_from_slice(&link);
            assert_eq!(node.come(&frame).0, SHOT, "{link:02x?}");
        }
        for source in ["223.255.255.255", "240.0.0.1", "1.0.0.1"] {
            let source = format!("{source}:40000");
            assert_eq!(node.come(&Sent::udp(&source, frontend, b"x").frame()).0, REDIRECTED, "{source}");
        }
    });
}

#[test]
fn kernel_rejects_are_rate_limited() {
    Node::test(|node| {
        refuse(node, WordFlags::default());
        let (client, frontend) = CLIENTS[0];
        let frame = Sent::tcp(client, frontend, SYN).frame();
        let mut answered = 0;
        let (took, ()) = measure(|| {
            (0..20_000).for_each(|_| answered += u32::from(node.come(&frame).0 == REDIRECTED));
        });
        let seconds = u32::try_from(took.as_secs()).unwrap() + 2;
        let cpus = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
        assert!(answered <= 1000 * seconds * cpus && answered >= 1000, "{answered} in {seconds} s");
    });
}

/// All refusals that wait in the ring.
pub(super) fn told(node: &Node) -> Vec<Refusal> {
    let (until, open) = std::io::pipe().unwrap();
    let (mut open, mut told) = (Some(open), Vec::new());
    let refusals = node.maps.refusals().unwrap();
    refusals
        .read_refusals(&until, |refusal| {
            told.push(refusal);
            drop(open.take());
        })
        .unwrap();
    told
}

#[test]
fn kernel_a_flood_at_one_quota_hides_no_refusals_of_another() {
    Node::test(|node| {
        let (flooded, other) = ("203.0.113.10:80", "203.0.113.11:80");
        node.serve(&Port { index: 1, frontends: &[flooded], ..Port::TCP });
        node.serve(&Port { index: 2, frontends: &[other], share: QuotaId(2), ..Port::TCP });
        for at in 0..5_000_u32 {
            let source = format!("198.18.{}.{}:40000", at >> 8, at & 255);
            node.come(&Sent::tcp(&source, flooded, SYN).frame());
        }
        node.come(&Sent::tcp("198.51.100.7:40000", other, SYN).frame());
        let (told, lost) = (told(node), node.maps.status().refusals_lost);
        let at_other = told.iter().filter(|it| it.frontend.address == address(other).ip()).count();
        assert_eq!(at_other, 1, "among {}", told.len());
        assert_eq!(told.len() as u64 + lost, 5_001, "lost refusals are counted");
    });
}
