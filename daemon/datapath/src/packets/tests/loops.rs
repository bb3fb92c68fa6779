//! Datagrams with a frontend as their source: a reply would be a request to that frontend, whose reply would be a
//! request again.

use holdfast_core::op::{FrontendType, QuotaId};

use super::craft::{Sent, address, see};
use super::frames;
use super::lives::found;
use super::node::{NEXT, Node, SHOT};
use super::wrapped::{WAYS, test, wrapped};
use crate::abi::packets::types::packet_count;
use crate::kernel::bed::Port;
use crate::packets::DsrTransports;

/// A dialled frontend, and a frontend as the source, in each family.
const PAIRS: [[&str; 2]; 2] =
    [["203.0.113.10:80", "203.0.113.53:53"], ["[2001:db8:f::10]:80", "[2001:db8:f::53]:53"]];

/// The quota of the first frontend of each pair.
const OWN: QuotaId = QuotaId(1);
const OTHER: QuotaId = QuotaId(2);

/// Serves the first frontend of each pair, and the second one with that kind and quota.
fn serve(node: &mut Node, kind: FrontendType, share: QuotaId) {
    for (at, (pair, way)) in (1..).zip(PAIRS.iter().zip(&WAYS)) {
        let backends = [address(way.here)];
        let rows = [(at, pair[0], FrontendType::LoadBalancer, OWN), (at + 2, pair[1], kind, share)];
        for (index, frontend, kind, share) in rows {
            let base = 8 * index;
            let frontends = [frontend];
            node.serve(&Port {
                index,
                base,
                kind,
                share,
                frontends: &frontends,
                backends: &backends,
                ..Port::UDP
            });
        }
    }
}

/// Checks that a datagram between the two is dropped or served.
#[track_caller]
fn check(node: &Node, from: &str, to: &str, is_dropped: bool) {
    let before = node.counted(packet_count::COUNT_LOOP);
    let (verdict, _) = node.come(&Sent::udp(from, to, b"?").frame());
    assert_eq!(verdict, if is_dropped { SHOT } else { NEXT }, "{from} to {to}");
    assert_eq!(found(node, from).is_some(), !is_dropped, "{from} to {to}");
    assert_eq!(node.counted(packet_count::COUNT_LOOP), before + u64::from(is_dropped));
}

#[test]
fn kernel_a_datagram_with_a_frontend_as_source_is_dropped() {
    for kind in [FrontendType::LoadBalancer, FrontendType::ClusterIp, FrontendType::Static] {
        Node::test(move |node| {
            serve(node, kind, OTHER);
            for [dialled, other] in PAIRS {
                check(node, other, dialled, true);
                check(node, dialled, dialled, true);
                check(node, &other.replace(":53", ":54"), dialled, false);
            }
        });
    }
}

/// Otherwise an author of a Service could block other services' clients by their addresses and ports.
#[test]
fn kernel_a_chosen_external_address_blocks_no_clients_of_others() {
    for kind in [FrontendType::ExternalIp, FrontendType::ClusterSetIp] {
        for (share, is_dropped) in [(OWN, true), (OTHER, false)] {
            Node::test(move |node| {
                serve(node, kind, share);
                PAIRS.iter().for_each(|[dialled, other]| check(node, other, dialled, is_dropped));
            });
        }
    }
}

/// The reply to a SYN opens nothing, so no loop arises.
#[test]
fn kernel_a_segment_with_a_frontend_as_source_is_served() {
    Node::test(|node| {
        serve(node, FrontendType::LoadBalancer, OTHER);
        for (at, ([dialled, other], way)) in (10..).zip(PAIRS.into_iter().zip(&WAYS)) {
            for (of, frontend) in [(0, dialled), (2, other)] {
                let (index, backends) = (at + of, [address(way.here)]);
                node.serve(&Port {
                    index,
                    base: index,
                    frontends: &[frontend],
                    backends: &backends,
                    ..Port::TCP
                });
            }
            assert_eq!(node.comes(&Sent::tcp(other, dialled, super::craft::SYN)).to, address(way.here));
        }
    });
}

#[test]
fn kernel_a_decapsulated_datagram_with_a_frontend_as_source_is_dropped() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, FrontendType::LoadBalancer, OTHER);
        for ([dialled, other], way) in PAIRS.into_iter().zip(&WAYS) {
            for (from, expected) in [(other, SHOT), (way.client, NEXT)] {
                let frame = wrapped(&Sent::udp(from, dialled, b"?").frame(), way.node, way.here);
                let (verdict, left) = node.come(&frame);
                assert_eq!(verdict, expected, "{from}");
                assert!(verdict == SHOT || see(&left, true).to == address(way.here));
            }
        }
        assert_eq!(node.counted(packet_count::COUNT_LOOP), 2);
    });
}

/// The driver drops what the TC program has just dropped.
#[test]
fn kernel_datagrams_with_a_frontend_as_source_are_dropped_at_the_driver() {
    const DROPPED: i32 = 1;
    frames::test(|node| {
        serve(node, FrontendType::LoadBalancer, OTHER);
        for [dialled, other] in PAIRS {
            let frame = Sent::udp(other, dialled, b"?").frame();
            let ends = |_| {
                assert_eq!(node.come(&frame).0, SHOT);
                node.arrive(&frame).0 == DROPPED
            };
            // Occasionally a second ends between the two.
            assert!((0..3).any(ends), "{other} to {dialled}");
        }
    });
}
