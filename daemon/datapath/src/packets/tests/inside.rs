//! Pods as clients by packets: their requests and replies take the fast path, as with outside clients, although their
//! device leads to a local pod.

use std::net::SocketAddr;

use super::craft::{ACK, RST, SYN, Sent, TCP, UDP, address, see};
use super::lives::found;
use super::network::{self, OUTER, PODS};
use super::node::{NEXT, Node, REDIRECTED};
use super::past::{HOPS, Way, hops, passed, serve};
use crate::abi::flow::types;
use crate::devices::DeviceSide;

/// This node's own addresses, by which remote backends see clients.
const OWN: [&str; 2] = ["192.0.2.1:0", "[2001:db8::1]:0"];

/// A pod, its frontend, and another pod behind the same device.
const HERE: [Way; 2] = [
    ("10.1.0.6:40000", "203.0.113.10:80", "10.1.0.5:8080"),
    ("[fd01::6]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
];

/// A pod, its frontend, and a backend of another node.
const AWAY: [Way; 2] = [
    ("10.1.0.6:40000", "203.0.113.11:80", "10.2.0.5:8080"),
    ("[fd01::6]:40000", "[2001:db8:f::11]:80", "[fd02::5]:8080"),
];

/// An outside client, its frontend, and a pod that is also a client.
const FROM_OUTSIDE: [Way; 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.1.0.5:8080"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
];

fn test(test: impl FnOnce(&mut Node) + Send + 'static) {
    Node::test(|node| {
        serve(node, &[HERE, AWAY].concat());
        network::know_routers();
        network::know_pods();
        node.tell_of_shortcut(true);
        node.tell_of_pods(DeviceSide::Pod, true, true);
        test(node);
    });
}

/// Sends a pod's packet to a backend on the fast path, and returns how it looks between the two programs.
#[track_caller]
fn ask(node: &Node, transport: u8, (client, frontend, backend): Way, flags: u8) -> String {
    let seen = passed(&node.come_by(&Sent::by(transport, client, frontend, flags, b"?").frame(), PODS));
    assert_eq!((seen.to, seen.from.ip()), (address(backend), address(client).ip()));
    seen.from.to_string()
}

/// The second program decides about replies to a pod, so the reply bypasses no peer device.
#[track_caller]
fn check_answered(node: &Node, (client, frontend, _): Way, sent: &[u8], (verdict, frame): (i32, Vec<u8>)) {
    assert_eq!((verdict, hops(&frame)), (REDIRECTED, HOPS - 1));
    assert_eq!(frame[..12], sent[..12]);
    let (verdict, frame) = node.leave_to_pod(&frame);
    let seen = see(&frame, true);
    assert_eq!((verdict, seen.from, seen.to), (NEXT, address(frontend), address(client)));
    assert!(seen.is_valid, "{seen:?}");
}

#[test]
fn kernel_pods_reach_each_other_on_the_fast_path_both_ways() {
    test(|node| {
        for way @ (_, _, backend) in HERE {
            for transport in [TCP, UDP] {
                let through = ask(node, transport, way, SYN);
                for flags in [SYN | ACK, ACK, ACK] {
                    let sent = Sent::by(transport, backend, &through, flags, b"!").frame();
                    check_answered(node, way, &sent, node.come_back(&sent, PODS));
                    assert_eq!(ask(node, transport, way, ACK), through);
                }
            }
        }
    });
}

/// A remote backend replies to the pod through this node's stack, which thus sees both directions.
#[test]
fn kernel_a_pod_reaches_a_backend_of_another_node_through_the_stack() {
    test(|node| {
        for (client, frontend, backend) in AWAY {
            let (verdict, frame) = node.come_by(&Sent::tcp(client, frontend, SYN).frame(), PODS);
            let seen = see(&frame, true);
            assert_eq!((verdict, seen.from, seen.to), (NEXT, address(client), address(backend)));
            let answer = Sent::tcp(backend, client, SYN | ACK).frame();
            assert_eq!(node.come_by(&answer, OUTER), (NEXT, answer.clone()));
            let (verdict, frame) = node.leave_to_pod(&answer);
            assert_eq!((verdict, see(&frame, true).from), (NEXT, address(frontend)));
        }
    });
}

#[test]
fn kernel_outside_clients_reach_a_client_pod_on_the_fast_path() {
    test(|node| {
        for (client, frontend, backend) in FROM_OUTSIDE {
            let sent = Sent::udp(client, frontend, b"?").frame();
            let (verdict, frame) = node.come(&sent);
            assert_eq!((verdict, frame[5]), (REDIRECTED, network::POD_LINK), "it is redirected to the pod");
            let through = passed(&(verdict, frame)).from.to_string();
            let answer = Sent::udp(backend, &through, b"!").frame();
            let seen = passed(&node.come_back(&answer, PODS));
            assert_eq!(seen.to.ip(), address(client).ip());
        }
    });
}

/// This node replies to the pod from the address that the pod dialled.
#[test]
fn kernel_a_pod_reaches_itself_through_the_stack() {
    test(|node| {
        for (_, frontend, backend) in HERE {
            let client = backend.replace(":8080", ":40000");
            let (verdict, frame) = node.come_by(&Sent::udp(&client, frontend, b"?").frame(), PODS);
            let seen = see(&frame, true);
            assert_eq!((verdict, seen.to), (NEXT, address(backend)));
            assert_eq!(hops(&frame), HOPS);
        }
    });
}

/// A pod that sends from an outside client's address gets no fast path.
#[test]
fn kernel_a_pod_with_an_outside_address_takes_the_stack() {
    test(|node| {
        for (client, frontend, backend) in FROM_OUTSIDE {
            let (verdict, frame) = node.come_by(&Sent::tcp(client, frontend, SYN).frame(), PODS);
            assert_eq!((verdict, see(&frame, true).to), (NEXT, address(backend)));
        }
    });
}

/// Strict reverse path filtering drops it there, and the pod's segments do not count.
#[test]
fn kernel_packets_that_a_pod_forges_for_others_flows_take_the_stack() {
    test(|node| {
        for (client, frontend, backend) in FROM_OUTSIDE {
            let sent = Sent::udp(client, frontend, b"?").frame();
            passed(&node.come(&sent));
            let (verdict, frame) = node.come_by(&sent, PODS);
            assert_eq!((verdict, hops(&frame), see(&frame, true).to), (NEXT, HOPS, address(backend)));
            passed(&node.come(&sent));
        }
        for (at, (_, frontend, backend)) in AWAY.into_iter().enumerate() {
            let client = &FROM_OUTSIDE[at].0.replace(":40000", ":40001");
            passed(&node.come(&Sent::tcp(client, frontend, SYN).frame()));
            let begun = found(node, client).unwrap().1;
            let given = SocketAddr::new(address(OWN[at]).ip(), u16::from_be(begun.nat_port)).to_string();
            let denied = Sent::tcp(backend, &given, RST | ACK).frame();
            let (verdict, frame) = node.come_by(&denied, PODS);
            assert_eq!((verdict, hops(&frame)), (NEXT, HOPS));
            assert_eq!(found(node, client).unwrap().1.backend_flags, begun.backend_flags);
            passed(&node.come(&denied));
            let heard = u32::from(found(node, client).unwrap().1.backend_flags);
            assert_ne!(heard & types::flow_flag::FLOW_RST_SEEN.0, 0, "the backend's own RST counts");
        }
    });
}

#[test]
fn kernel_flows_of_client_pods_take_the_stack_once_the_fast_path_ends() {
    test(|node| {
        for way @ (client, frontend, backend) in HERE {
            let through = ask(node, TCP, way, SYN);
            node.tell_of_pods(DeviceSide::Pod, false, true);
            let (verdict, frame) = node.come_by(&Sent::tcp(client, frontend, ACK).frame(), PODS);
            assert_eq!((verdict, see(&frame, true).to), (NEXT, address(backend)));
            let frame = Sent::tcp(backend, &through, SYN | ACK).frame();
            let (verdict, frame) = node.come_back(&frame, PODS);
            assert_eq!((verdict, hops(&frame)), (NEXT, HOPS));
            node.tell_of_pods(DeviceSide::Pod, true, true);
            assert_eq!(ask(node, TCP, way, ACK), through);
        }
    });
}
