//! The lives of flows whose packets go to another node as they came: this node never sees the replies.
//!
//! Invariant: packets of the client alone never take a connection from its backend.

use std::net::SocketAddr;

use holdfast_core::list::Scope;

use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address};
use super::lives::{age, found};
use super::network;
use super::node::{NEXT, Node, next_second};
use super::wrapped::{WAYS, Way, by, comes_out, goes_wrapped, is_dropped, serve, taken_apart, test};
use crate::abi::packets::types::packet_count;
use crate::devices::DeviceSide;
use crate::kernel::bed::Port;
use crate::packets::DsrTransports;

/// Routes the other node's backends to the local pods' device.
fn come_here() {
    network::lead_to_pods("10.2.0.0/24", "10.1.0.2");
    network::lead_to_pods("fd02::/64", "fd01::2");
}

/// Gives the outer device an address that is no node's.
fn bear_another(node: &Node) {
    let others = ["198.18.0.1", "2001:db8:5::1"].map(|it| it.parse().ok());
    node.tell_of_device(DeviceSide::Outer, others);
}

/// Whether the client's packets take the stack, as soon as the programs look up the route again.
fn goes_by_the_stack(node: &Node, sent: &Sent) -> bool {
    next_second();
    node.come(&sent.frame()).0 == NEXT
}

/// The backend keeps its address and moves to this node, or its node is reached by another device now.
#[test]
fn kernel_a_flow_whose_route_leaves_other_nodes_ends_and_reopens() {
    let changes: [fn(&Node); 2] = [|_| come_here(), bear_another];
    for change in changes {
        test(DsrTransports::TcpAndUdp, move |node| {
            serve(node, false);
            for way in &WAYS {
                goes_wrapped(node, way, &by(UDP, way, 0).frame());
                [SYN, ACK].iter().for_each(|flags| goes_wrapped(node, way, &by(TCP, way, *flags).frame()));
            }
            change(node);
            for way in &WAYS {
                for (transport, flags) in [(UDP, 0), (TCP, SYN)] {
                    let sent = by(transport, way, flags);
                    is_dropped(node, &sent.frame(), packet_count::COUNT_NO_ROUTE);
                    assert!(goes_by_the_stack(node, &sent), "{} by {transport}", way.client);
                }
            }
        });
    }
}

/// An address may vanish briefly; a backend that is on this node now has no connections by another one.
#[test]
fn kernel_a_lost_route_ends_a_connection_only_if_its_backend_is_local() {
    let [come, bear]: [fn(&Node); 2] = [|_| come_here(), bear_another];
    for (change, is_over) in [(come, true), (bear, false)] {
        test(DsrTransports::TcpAndUdp, move |node| {
            serve(node, false);
            for way in &WAYS {
                [SYN, ACK].iter().for_each(|flags| goes_wrapped(node, way, &by(TCP, way, *flags).frame()));
            }
            change(node);
            for way in &WAYS {
                is_dropped(node, &by(TCP, way, ACK).frame(), packet_count::COUNT_NO_ROUTE);
                assert_eq!(found(node, way.client).is_none(), is_over, "{}", way.client);
            }
        });
    }
}

/// Other nodes send their clients here until they see that the backend is gone, and no other proxy could serve them.
#[test]
fn kernel_a_draining_node_serves_clients_of_other_nodes() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        node.tell_drains(1);
        for way in &WAYS {
            let own = by(TCP, way, SYN).frame();
            assert_eq!(node.come(&own), (NEXT, own.clone()), "direct clients get the next proxy");
            for transport in [TCP, UDP] {
                comes_out(node, way, &by(transport, way, SYN));
            }
        }
    });
}

/// Any host may send in the client's name: packets of the client alone never take a flow from its backend.
#[test]
fn kernel_a_one_sided_flow_keeps_its_backend() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        let way = &WAYS[0];
        let state = |node: &Node| found(node, way.client).map(|(_, it)| (it.state, it.unacked)).unwrap();
        let said = [
            (SYN, (1, 0)),
            (SYN, (1, 0)),
            (ACK, (2, 0)),
            (SYN, (2, 2)),
            (FIN | ACK, (2, 0)),
            (SYN, (2, 2)),
            (RST, (2, 2)),
            (SYN, (2, 2)),
        ];
        for (flags, expected) in said {
            goes_wrapped(node, way, &by(TCP, way, flags).frame());
            assert_eq!(state(node), expected, "after {flags}");
        }
        let before = found(node, way.client).unwrap().1.serial;
        node.serve(&Port {
            base: 100,
            frontends: &[way.frontend],
            backends: &[address("10.2.0.9:8080")],
            ..Port::TCP
        });
        goes_wrapped(node, way, &by(TCP, way, SYN).frame());
        assert_eq!(found(node, way.client).unwrap().1.serial, before);
    });
}

/// The backend of a client's packets, in its family.
#[track_caller]
fn backend_of(node: &Node, way: &Way, flags: u8) -> SocketAddr {
    taken_apart(node.come(&by(TCP, way, flags).frame())).1
}

/// Leads all frontends to other remote backends; the former ones may still serve.
fn lead_elsewhere(node: &mut Node, serves: bool) -> [SocketAddr; 2] {
    let others = ["10.2.0.9:8080", "[fd02::9]:8080"].map(address);
    for (at, (way, other)) in (1..).zip(WAYS.iter().zip(others)) {
        let (frontends, backends) = ([way.frontend], [other]);
        let base = 100 + 8 * at;
        let port = Port {
            index: at,
            base,
            frontends: &frontends,
            backends: &backends,
            keeps_members: serves,
            ..Port::TCP
        };
        let before = [address(way.there)];
        port.publish_beside(&mut node.maps, Scope::Cluster, if serves { &before } else { &[] });
    }
    others
}

/// A client alone cannot be told from a forger, but one with a connection continues to send.
#[test]
fn kernel_a_reconnect_over_dsr_to_a_gone_backend_gets_another() {
    for end in [&[][..], &[FIN | ACK], &[RST]] {
        test(DsrTransports::TcpAndUdp, move |node| {
            serve(node, false);
            for way in &WAYS {
                [SYN, ACK].iter().chain(end).for_each(|flags| _ = backend_of(node, way, *flags));
                age(node, way.client, 1);
            }
            let others = lead_elsewhere(node, false);
            for (way, other) in WAYS.iter().zip(others) {
                assert_eq!(
                    backend_of(node, way, SYN),
                    address(way.there),
                    "the backend may have a connection"
                );
                assert_eq!(backend_of(node, way, SYN), address(way.there), "in the same second");
                age(node, way.client, 1);
                assert_eq!(backend_of(node, way, SYN), other, "{end:?}");
            }
        });
    }
}

#[test]
fn kernel_a_forged_syn_moves_no_one_sided_connection() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for way in &WAYS {
            [SYN, ACK].iter().for_each(|flags| _ = backend_of(node, way, *flags));
        }
        lead_elsewhere(node, false);
        for way in &WAYS {
            for flags in [SYN, ACK, SYN, ACK, SYN] {
                age(node, way.client, 1);
                assert_eq!(backend_of(node, way, flags), address(way.there), "{flags}");
            }
            age(node, way.client, 3_600);
            assert_eq!(backend_of(node, way, ACK), address(way.there), "its lifetime stays the same");
        }
    });
}

/// A draining backend keeps its connections while it serves.
#[test]
fn kernel_a_one_sided_flow_stays_with_a_draining_backend() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for way in &WAYS {
            [SYN, ACK].iter().for_each(|flags| _ = backend_of(node, way, *flags));
        }
        lead_elsewhere(node, true);
        for way in &WAYS {
            for _ in 0..3 {
                age(node, way.client, 1);
                assert_eq!(backend_of(node, way, SYN), address(way.there));
            }
        }
    });
}

/// A client's port is reused while its closed connection is still kept.
#[test]
fn kernel_a_reopened_one_sided_connection_has_the_full_lifetime() {
    for end in [FIN | ACK, RST] {
        test(DsrTransports::TcpAndUdp, move |node| {
            serve(node, false);
            for way in &WAYS {
                [SYN, ACK, end].iter().for_each(|flags| _ = backend_of(node, way, *flags));
                age(node, way.client, 300);
                [SYN, ACK].iter().for_each(|flags| _ = backend_of(node, way, *flags));
                let before = found(node, way.client).unwrap().1.serial;
                age(node, way.client, 3_600);
                assert_eq!(backend_of(node, way, ACK), address(way.there));
                assert_eq!(found(node, way.client).unwrap().1.serial, before);
            }
        });
    }
}

/// A draining backend gets nothing new from a client that has closed its connection.
#[test]
fn kernel_a_closed_idle_client_leaves_its_draining_backend() {
    for (end, silent, is_led) in [(FIN | ACK, 11, true), (FIN | ACK, 9, false), (ACK, 3_600, false)] {
        test(DsrTransports::TcpAndUdp, move |node| {
            serve(node, false);
            for way in &WAYS {
                [SYN, ACK, end].iter().for_each(|flags| _ = backend_of(node, way, *flags));
                age(node, way.client, silent);
            }
            let others = lead_elsewhere(node, true);
            for (way, other) in WAYS.iter().zip(others) {
                let expected = if is_led { other } else { address(way.there) };
                assert_eq!(backend_of(node, way, SYN), expected, "{end} and {silent} s");
            }
        });
    }
}
