//! Packets between clients outside and pods of this node pass by the stack both ways, as far as a pod answers by the
//! device that leads to it.

use super::craft::{ACK, FIN, SYN, Sent, TCP, UDP, address, see};
use super::lives::age;
use super::network::{self, OUTER, PODS};
use super::node::{NEXT, Node, REDIRECTED};
use super::past::{HOPS, Way, hops, passed, serve};
use crate::devices::DeviceSide;

/// A client outside, what it dials, and a pod of this node.
const WAYS: [Way; 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.1.0.5:8080"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
];

/// Runs a test on a node where packets pass by the stack, and that knows its routers and pods.
fn test(test: impl FnOnce(&mut Node) + Send + 'static) {
    Node::test(|node| {
        serve(node, &WAYS);
        network::know_routers();
        network::know_pods();
        node.tell_of_shortcut(true);
        node.tell_of_pods(DeviceSide::LocalPods, true, false);
        test(node);
    });
}

/// Begins a flow, and returns how its backend sees the client.
#[track_caller]
fn begin(node: &Node, (client, frontend, backend): Way, transport: u8) -> String {
    let sent = passed(&node.come(&Sent::by(transport, client, frontend, SYN, b"?").frame()));
    assert_eq!((sent.to, sent.from.ip()), (address(backend), address(client).ip()));
    let through = sent.from.to_string();
    let answer = Sent::by(transport, backend, &through, SYN | ACK, b"!").frame();
    let (verdict, frame) = node.come_back(&answer, PODS);
    assert_eq!((verdict, hops(&frame)), (REDIRECTED, HOPS - 1));
    // By TCP the second program decides whether the backend agrees, and translates.
    let (verdict, frame) = node.leave(&frame);
    let seen = see(&frame, true);
    assert_eq!((verdict, seen.from, seen.to), (NEXT, address(frontend), address(client)));
    assert!(seen.is_valid, "{seen:?}");
    through
}

#[test]
fn kernel_a_flow_with_a_pod_takes_the_shortcut_both_ways_from_its_first_packet_on() {
    test(|node| {
        for way @ (client, frontend, backend) in WAYS {
            for transport in [TCP, UDP] {
                let through = begin(node, way, transport);
                let more = passed(&node.come(&Sent::by(transport, client, frontend, ACK, b"more").frame()));
                assert_eq!((more.from.to_string(), more.to), (through.clone(), address(backend)));
                let back = Sent::by(transport, backend, &through, ACK, b"back").frame();
                let back = passed(&node.come_back(&back, PODS));
                assert_eq!((back.from, back.to), (address(frontend), address(client)));
            }
        }
    });
}

/// A virtual machine takes only what is for its own hardware. What leaves is given to no other end of a link.
#[test]
fn kernel_what_is_given_to_a_pod_right_away_bears_the_hardware_address_of_the_pod() {
    test(|node| {
        node.tell_of_pods(DeviceSide::LocalPods, true, true);
        for way @ (client, frontend, backend) in WAYS {
            let through = begin(node, way, TCP);
            let sent = Sent::tcp(backend, &through, ACK).frame();
            let (verdict, frame) = node.come_back(&sent, PODS);
            assert_eq!((verdict, &frame[..12]), (REDIRECTED, &sent[..12]));
            let (verdict, frame) = node.come(&Sent::tcp(client, frontend, ACK).frame());
            assert_eq!(verdict, REDIRECTED);
            assert_eq!((frame[5], frame[11]), (network::POD_LINK, 1), "{frame:02x?}");
        }
    });
}

/// Where a packet is given to the pod at once, it bears the hardware address of the pod.
#[track_caller]
fn is_given(node: &Node, sent: &Sent) -> bool {
    let (verdict, frame) = node.come(&sent.frame());
    assert_eq!(verdict, REDIRECTED);
    frame[5] == network::POD_LINK
}

/// A guest that comes back with other hardware says nothing, and only the kernel's table asks for it anew.
#[test]
fn kernel_one_packet_in_a_second_goes_to_a_silent_pod_by_the_table_of_neighbours() {
    test(|node| {
        node.tell_of_pods(DeviceSide::LocalPods, true, true);
        for way @ (client, frontend, backend) in WAYS {
            let through = begin(node, way, TCP);
            let asks = Sent::by(TCP, client, frontend, ACK, b"?");
            age(node, client, 1);
            assert!(is_given(node, &asks), "it has answered all so far");
            for _ in 0..2 {
                age(node, client, 1);
                assert!(!is_given(node, &asks), "it has not answered for a second");
                assert!((0..3).any(|_| is_given(node, &asks)), "one packet of a second is enough");
            }
            assert_eq!(node.come_back(&Sent::tcp(backend, &through, ACK).frame(), PODS).0, REDIRECTED);
            age(node, client, 1);
            assert!(is_given(node, &asks), "it has answered");
            let another = client.replace(":40000", ":40001");
            let dials = Sent::tcp(&another, frontend, SYN);
            assert!(is_given(node, &dials));
            age(node, &another, 1);
            assert!(!is_given(node, &dials), "nobody has agreed for a second");
        }
    });
}

/// Another pod may send in the name of this one; `rp_filter` drops that, and has to see it.
#[test]
fn kernel_an_answer_by_another_device_than_the_pods_is_left_to_the_stack() {
    test(|node| {
        for way @ (_, _, backend) in WAYS {
            let through = begin(node, way, TCP);
            for flags in [ACK, FIN | ACK] {
                let frame = Sent::tcp(backend, &through, flags).frame();
                assert_eq!(node.come_back(&frame, OUTER), (NEXT, frame));
            }
        }
    });
}

/// Answers come by a device without a program of ours, or by one that leads to other nodes too.
#[test]
fn kernel_a_pod_behind_a_device_where_answers_do_not_pass_is_reached_through_the_stack() {
    test(|node| {
        let sides = [(DeviceSide::LocalPods, false), (DeviceSide::Outer, true), (DeviceSide::Pod, false)];
        for (at, (side, shortcut)) in sides.into_iter().enumerate() {
            node.tell_of_pods(side, shortcut, false);
            for (client, frontend, backend) in WAYS {
                let client = client.replace(":40000", &format!(":4100{at}"));
                let (verdict, frame) = node.come(&Sent::udp(&client, frontend, b"?").frame());
                let seen = see(&frame, true);
                assert_eq!((verdict, seen.to), (NEXT, address(backend)), "{side:?}");
                let frame = Sent::udp(backend, &seen.from.to_string(), b"!").frame();
                assert_eq!(node.come_back(&frame, PODS), (NEXT, frame), "{side:?}");
            }
        }
    });
}

#[test]
fn kernel_flows_with_pods_go_through_the_stack_when_their_device_has_no_shortcut_any_more() {
    test(|node| {
        for way @ (client, frontend, backend) in WAYS {
            let through = begin(node, way, TCP);
            node.tell_of_shortcut(false);
            let (verdict, frame) = node.come(&Sent::tcp(client, frontend, ACK).frame());
            assert_eq!((verdict, see(&frame, true).to), (NEXT, address(backend)));
            let frame = Sent::tcp(backend, &through, ACK).frame();
            assert_eq!(node.come_back(&frame, PODS), (NEXT, frame));
            node.tell_of_shortcut(true);
            passed(&node.come(&Sent::tcp(client, frontend, ACK).frame()));
        }
    });
}

/// What the stack does more than send on, it does for pods, too.
#[test]
fn kernel_what_a_pod_sends_beside_its_flows_goes_on_as_it_is() {
    test(|node| {
        for way @ (client, frontend, backend) in WAYS {
            let through = begin(node, way, UDP);
            let other = backend.replace(":8080", ":8081");
            let fragment = Sent { fragment: Some((7, 0, true)), ..Sent::udp(backend, &through, b"!") };
            let sent = [
                Sent::udp(backend, client, b"past the frontend"),
                Sent::udp(&other, &through, b"by another port"),
                Sent::udp(backend, frontend, b"to the frontend"),
                Sent::tcp(backend, &through, SYN),
                fragment,
            ];
            for frame in sent.iter().map(Sent::frame) {
                assert_eq!(node.come_back(&frame, PODS), (NEXT, frame));
            }
            let long = Sent::udp(backend, &through, &[0; 1_480]).frame();
            let (verdict, frame) = node.come_back(&long, PODS);
            assert_eq!((verdict, hops(&frame)), (NEXT, HOPS), "too long for its way");
        }
    });
}

/// The two may have a connection of their own, and a stranger may have begun the flow in the client's name.
#[test]
fn kernel_a_pod_that_has_not_agreed_to_a_flow_sends_nothing_of_it() {
    test(|node| {
        for (client, frontend, backend) in WAYS {
            let sent = passed(&node.come(&Sent::tcp(client, frontend, SYN).frame()));
            let frame = Sent::by(TCP, backend, &sent.from.to_string(), ACK, b"of another connection").frame();
            assert_eq!(node.come_back(&frame, PODS), (NEXT, frame));
        }
    });
}

/// A CPU keeps the ways of as many flows as there are places, and flows further on have the same ones again.
#[test]
fn kernel_a_flow_never_goes_the_way_of_another_flow_with_its_place() {
    const PLACES: u16 = 2_048;
    let others = [
        ("198.51.100.7:40000", "203.0.113.20:80", "10.1.0.5:8080"),
        ("198.51.100.7:40000", "203.0.113.21:80", "10.1.0.6:8080"),
    ];
    Node::test_with(u32::from(2 * PLACES), move |node| {
        serve(node, &others);
        network::know_routers();
        network::know_pods();
        node.tell_of_shortcut(true);
        node.tell_of_pods(DeviceSide::LocalPods, true, true);
        let [(client, frontend, _), (_, other, _)] = others;
        let hardware = |frontend: &str, port: u16| {
            let client = client.replace("40000", &port.to_string());
            let given = |_| {
                let (verdict, frame) = node.come(&Sent::udp(&client, frontend, b"?").frame());
                assert_eq!(verdict, REDIRECTED, "{frontend} {port}");
                // One packet in a second to who does not answer is not given to the pod at once.
                Some(frame[5]).filter(|it| *it >= network::POD_LINK)
            };
            (0..3).find_map(given).unwrap()
        };
        assert_eq!(hardware(frontend, 1), network::POD_LINK);
        (2..=PLACES).for_each(|port| _ = hardware(frontend, port));
        let theirs = hardware(other, PLACES + 1);
        assert_eq!(theirs, network::POD_LINK + 1);
        // In the same second, by turns.
        for _ in 0..16 {
            assert_eq!([hardware(frontend, 1), hardware(other, PLACES + 1)], [network::POD_LINK, theirs]);
        }
    });
}
