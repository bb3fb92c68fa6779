//! Pods that are clients by their packets: what they ask and are answered passes by the stack, as with clients outside,
//! and what their device leads to is a pod of this node all the same.

use std::net::SocketAddr;

use super::craft::{ACK, RST, SYN, Sent, TCP, UDP, address, see};
use super::lives::found;
use super::network::{self, OUTER, PODS};
use super::node::{NEXT, Node, REDIRECTED};
use super::past::{HOPS, Way, hops, passed, serve};
use crate::abi::flow::types;
use crate::devices::DeviceSide;

/// This node's own address in each family, by which backends of other nodes know clients.
const OWN: [&str; 2] = ["192.0.2.1:0", "[2001:db8::1]:0"];

/// A pod, what it dials, and another pod behind the same device.
const HERE: [Way; 2] = [
    ("10.1.0.6:40000", "203.0.113.10:80", "10.1.0.5:8080"),
    ("[fd01::6]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
];

/// A pod, what it dials, and a backend of another node.
const AWAY: [Way; 2] = [
    ("10.1.0.6:40000", "203.0.113.11:80", "10.2.0.5:8080"),
    ("[fd01::6]:40000", "[2001:db8:f::11]:80", "[fd02::5]:8080"),
];

/// A client outside, what it dials, and a pod that is a client too.
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

/// Lets a pod's packet reach a backend past the stack, and returns how it looks between the two programs.
#[track_caller]
fn ask(node: &Node, transport: u8, (client, frontend, backend): Way, flags: u8) -> String {
    let seen = passed(&node.come_by(&Sent::by(transport, client, frontend, flags, b"?").frame(), PODS));
    assert_eq!((seen.to, seen.from.ip()), (address(backend), address(client).ip()));
    seen.from.to_string()
}

/// The second program has the last word on what a pod is answered, so the answer is given to no other end of a link.
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
fn kernel_a_pod_reaches_another_pod_past_the_stack_and_is_answered_so() {
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

/// A backend of another node sees the pod and answers it by this node's stack, which so sees both directions.
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
fn kernel_clients_outside_reach_a_pod_that_is_a_client_past_the_stack() {
    test(|node| {
        for (client, frontend, backend) in FROM_OUTSIDE {
            let sent = Sent::udp(client, frontend, b"?").frame();
            let (verdict, frame) = node.come(&sent);
            assert_eq!((verdict, frame[5]), (REDIRECTED, network::POD_LINK), "it is given to the pod");
            let through = passed(&(verdict, frame)).from.to_string();
            let answer = Sent::udp(backend, &through, b"!").frame();
            let seen = passed(&node.come_back(&answer, PODS));
            assert_eq!(seen.to.ip(), address(client).ip());
        }
    });
}

/// The pod is answered by this node, which gives the answer the address that the pod dialled.
#[test]
fn kernel_a_pod_that_reaches_itself_does_so_through_the_stack() {
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

/// A pod that sends in the name of a client outside gets no way for both.
#[test]
fn kernel_a_pod_with_an_address_that_is_elsewhere_goes_through_the_stack() {
    test(|node| {
        for (client, frontend, backend) in FROM_OUTSIDE {
            let (verdict, frame) = node.come_by(&Sent::tcp(client, frontend, SYN).frame(), PODS);
            assert_eq!((verdict, see(&frame, true).to), (NEXT, address(backend)));
        }
    });
}

/// A strict path drops it there, and nothing that the pod says counts.
#[test]
fn kernel_what_a_pod_sends_in_the_name_of_others_whose_flow_is_known_goes_through_the_stack() {
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
            assert_ne!(heard & types::flow_flag::FLOW_RST_SEEN.0, 0, "of the backend itself it counts");
        }
    });
}

#[test]
fn kernel_flows_of_pods_go_through_the_stack_when_their_device_has_no_shortcut_any_more() {
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
