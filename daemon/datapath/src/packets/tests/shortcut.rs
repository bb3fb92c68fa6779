//! Which packets take the fast path; both directions of a flow do, or neither.

use super::craft::{ACK, RST, SYN, Seen, Sent, TCP, UDP, address, see};
use super::network;
use super::node::{NEXT, Node, REDIRECTED, SHOT, next_second};
use super::past::{HOPS, Way, hops, passed, serve};

/// An outside client, its frontend, and a backend of another node.
const WAYS: [Way; 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.2.0.5:8080"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd02::5]:8080"),
];

/// Runs a test on a node with the fast path and resolved routers.
fn test(test: impl FnOnce(&mut Node) + Send + 'static) {
    Node::test(|node| {
        serve(node, &WAYS);
        network::know_routers();
        node.tell_of_shortcut(true);
        test(node);
    });
}

/// A packet on the fast path, as the other device's program gets it.
#[track_caller]
fn passes(node: &Node, sent: &Sent) -> Vec<u8> {
    let sent_on = node.come(&sent.frame());
    passed(&sent_on);
    sent_on.1
}

#[track_caller]
fn leaves(node: &Node, frame: &[u8]) -> Seen {
    let (verdict, frame) = node.leave(frame);
    assert_eq!(verdict, NEXT);
    see(&frame, true)
}

/// Opens a flow with its first packet and a reply, and returns the client as the backend saw it.
#[track_caller]
fn begin(node: &Node, (client, frontend, backend): (&str, &str, &str), transport: u8) -> String {
    let first = Sent::by(transport, client, frontend, SYN, b"?");
    let sent = leaves(node, &passes(node, &first));
    assert_eq!(sent.to, address(backend));
    let answer = Sent::by(transport, backend, &sent.from.to_string(), SYN | ACK, b"!");
    let answered = leaves(node, &passes(node, &answer));
    assert_eq!((answered.from, answered.to), (address(frontend), address(client)));
    sent.from.to_string()
}

#[test]
fn kernel_a_flow_takes_the_fast_path_from_its_first_packet() {
    test(|node| {
        for way @ (client, frontend, _) in WAYS {
            for transport in [TCP, UDP] {
                begin(node, way, transport);
                leaves(node, &passes(node, &Sent::by(transport, client, frontend, ACK, b"more")));
            }
        }
    });
}

/// A removed backend of another node refuses a client that reconnects from the same port.
#[test]
fn kernel_a_refusal_by_a_removed_backend_is_dropped_on_the_fast_path_too() {
    test(|node| {
        let goes_to = |node: &Node, (client, frontend, _): Way, flags| {
            leaves(node, &passes(node, &Sent::tcp(client, frontend, flags))).to
        };
        for (way, other) in WAYS.into_iter().zip(["10.2.0.6:8080", "[fd02::6]:8080"]) {
            serve(node, &[way]);
            let seen = begin(node, way, TCP);
            assert_eq!(goes_to(node, way, ACK), address(way.2));
            serve(node, &[(way.0, way.1, other)]);
            for flags in [RST, SYN] {
                assert_eq!(goes_to(node, way, flags), address(way.2), "{flags}");
            }
            let refusal = Sent { sequence: 0, ..Sent::tcp(way.2, &seen, RST | ACK) };
            assert_eq!(node.leave(&passes(node, &refusal)).0, SHOT);
            assert_eq!(goes_to(node, way, SYN), address(other));
        }
    });
}

/// The stack does more than forward: it sends ICMP errors, follows options, or reassembles fragments.
#[test]
fn kernel_packets_that_need_more_than_forwarding_take_the_stack() {
    test(|node| {
        for way @ (client, frontend, backend) in WAYS {
            let seen = begin(node, way, UDP);
            for (from, to) in [(client, frontend), (backend, seen.as_str())] {
                let plain = || Sent::udp(from, to, b"?");
                let mut last_hop = plain().frame();
                let at = if last_hop[12] == 8 { 22 } else { 21 };
                last_hop[at] = 1;
                // IPv4 has a checksum that covers the number of hops.
                if last_hop[12] == 8 {
                    let sum = u16::from_be_bytes([last_hop[24], last_hop[25]]);
                    let sum = u32::from(sum) + (u32::from(HOPS - 1) << 8);
                    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
                    last_hop[24..26].copy_from_slice(&sum.to_be_bytes());
                }
                let fragment = Sent { fragment: Some((7, 0, true)), ..plain() };
                let long = Sent::udp(from, to, &[0; 1_480]);
                for frame in [last_hop, fragment.frame(), long.frame()] {
                    let before = hops(&frame);
                    let (verdict, frame) = node.come(&frame);
                    assert_eq!((verdict, hops(&frame)), (NEXT, before), "{from} to {to}");
                }
                passes(node, &plain());
            }
        }
        let options = Sent { options: vec![1; 4], ..Sent::udp(WAYS[0].0, WAYS[0].1, b"?") };
        assert_eq!(node.come(&options.frame()).0, NEXT);
    });
}

/// The route's MTU counts, not only the device's: a path may be narrower further on.
#[test]
fn kernel_a_packet_that_exceeds_the_mtu_takes_the_stack() {
    test(|node| {
        WAYS.iter().for_each(|way| drop(begin(node, *way, UDP)));
        network::narrow(1_400);
        next_second();
        for (client, frontend, _) in WAYS {
            assert_eq!(node.come(&Sent::udp(client, frontend, &[0; 1_400]).frame()).0, NEXT);
            passes(node, &Sent::udp(client, frontend, &[0; 1_300]));
        }
    });
}

#[test]
fn kernel_a_cached_route_serves_one_second_and_packets_within_its_mtu() {
    test(|node| {
        WAYS.iter().for_each(|way| drop(begin(node, *way, UDP)));
        network::forget_routers();
        next_second();
        for (client, frontend, _) in WAYS {
            assert_eq!(
                node.come(&Sent::udp(client, frontend, b"?").frame()).0,
                NEXT,
                "no router is resolved"
            );
        }
        network::know_routers();
        for (client, frontend, _) in WAYS {
            passes(node, &Sent::udp(client, frontend, b"?"));
            assert_eq!(node.come(&Sent::udp(client, frontend, &[0; 1_480]).frame()).0, NEXT);
            passes(node, &Sent::udp(client, frontend, b"?"));
        }
    });
}

/// A frame may be padded up to 60 bytes, and no further.
#[test]
fn kernel_a_frame_longer_than_its_packet_takes_the_stack() {
    test(|node| {
        for way @ (client, frontend, _) in WAYS {
            begin(node, way, UDP);
            let of_size = |size: usize, more: usize| {
                let mut frame = Sent::udp(client, frontend, &vec![0; size]).frame();
                frame.resize(frame.len() + more, 0);
                node.come(&frame).0
            };
            let filled_up = 60_usize.saturating_sub(Sent::udp(client, frontend, b"?").frame().len());
            assert_eq!(of_size(1, filled_up), REDIRECTED, "{frontend}");
            assert_eq!(of_size(1, 60), NEXT, "{frontend}");
            assert_eq!(of_size(900, 1), NEXT, "{frontend}");
        }
    });
}

/// A FIB look-up does not report that the stack drops packets from that source.
#[test]
fn kernel_a_client_with_an_invalid_address_takes_no_fast_path() {
    test(|node| {
        network::lead_to_others("default via 192.0.2.3");
        for client in ["239.1.1.1:40000", "255.255.255.255:40000", "0.0.0.1:40000", "8.8.8.8:40000"] {
            let expected = if client.starts_with('8') { REDIRECTED } else { NEXT };
            assert_eq!(node.come(&Sent::udp(client, WAYS[0].1, b"?").frame()).0, expected, "{client}");
        }
    });
}

/// Otherwise conntrack would see the first packet and nothing after it.
#[test]
fn kernel_a_flow_whose_first_packet_took_the_stack_stays_there() {
    Node::test(|node| {
        serve(node, &WAYS);
        node.tell_of_shortcut(true);
        for (client, frontend, _) in WAYS {
            assert_eq!(node.come(&Sent::tcp(client, frontend, SYN).frame()).0, NEXT, "no router is resolved");
        }
        network::know_routers();
        for (client, frontend, backend) in WAYS {
            let seen = node.leaves(&Sent::tcp(client, frontend, SYN));
            drop(seen);
            assert_eq!(node.come(&Sent::tcp(client, frontend, ACK).frame()).0, NEXT, "{backend}");
        }
    });
}

#[test]
fn kernel_a_client_with_replies_by_another_device_takes_no_fast_path() {
    test(|node| {
        network::lead_to_pods("198.51.100.0/24", "10.1.0.2");
        network::lead_to_pods("2001:db8:1::/48", "fd01::2");
        for (client, frontend, _) in WAYS {
            assert_eq!(node.come(&Sent::tcp(client, frontend, SYN).frame()).0, NEXT);
        }
    });
}

/// A firewall may be loaded while flows continue.
#[test]
fn kernel_flows_take_the_stack_once_the_fast_path_ends() {
    test(|node| {
        let seen: Vec<String> = WAYS.iter().map(|way| begin(node, *way, super::craft::TCP)).collect();
        node.tell_of_shortcut(false);
        for ((client, frontend, backend), seen) in WAYS.into_iter().zip(&seen) {
            assert_eq!(node.come(&Sent::tcp(client, frontend, ACK).frame()).0, NEXT);
            assert_eq!(node.come(&Sent::tcp(backend, seen, ACK).frame()).0, NEXT);
        }
        node.tell_of_shortcut(true);
        for (client, frontend, _) in WAYS {
            passes(node, &Sent::tcp(client, frontend, ACK));
        }
    });
}
