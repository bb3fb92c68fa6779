//! Packets between outside clients and local pods take the fast path in both directions, if the pod replies by the
//! device that leads to it.

use super::craft::{ACK, FIN, SYN, Sent, TCP, UDP, address, see};
use super::lives::age;
use super::network::{self, OUTER, PODS};
use super::node::{NEXT, Node, REDIRECTED};
use super::past::{HOPS, Way, hops, passed, serve};
use crate::devices::DeviceSide;

/// An outside client, its frontend, and a local pod.
const WAYS: [Way; 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.1.0.5:8080"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
];

/// Runs a test on a node with the fast path and resolved routers and pods.
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

/// Opens a flow, and returns how its backend sees the client.
#[track_caller]
fn begin(node: &Node, (client, frontend, backend): Way, transport: u8) -> String {
    let sent = passed(&node.come(&Sent::by(transport, client, frontend, SYN, b"?").frame()));
    assert_eq!((sent.to, sent.from.ip()), (address(backend), address(client).ip()));
    let through = sent.from.to_string();
    let answer = Sent::by(transport, backend, &through, SYN | ACK, b"!").frame();
    let (verdict, frame) = node.come_back(&answer, PODS);
    assert_eq!((verdict, hops(&frame)), (REDIRECTED, HOPS - 1));
    // With TCP the second program checks that the backend opens the connection, and translates.
    let (verdict, frame) = node.leave(&frame);
    let seen = see(&frame, true);
    assert_eq!((verdict, seen.from, seen.to), (NEXT, address(frontend), address(client)));
    assert!(seen.is_valid, "{seen:?}");
    through
}

#[test]
fn kernel_a_pods_flow_takes_the_fast_path_from_its_first_packet() {
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

/// A virtual machine accepts only frames for its own hardware address. Egress packets bypass no peer device.
#[test]
fn kernel_packets_redirected_to_a_pod_have_its_hardware_address() {
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

/// Whether a packet redirected to the pod has the pod's hardware address.
#[track_caller]
fn is_given(node: &Node, sent: &Sent) -> bool {
    let (verdict, frame) = node.come(&sent.frame());
    assert_eq!(verdict, REDIRECTED);
    frame[5] == network::POD_LINK
}

/// A guest that returns with other hardware sends nothing; only the kernel's neighbour table resolves it again.
#[test]
fn kernel_one_packet_per_second_to_a_silent_pod_takes_the_stack() {
    test(|node| {
        node.tell_of_pods(DeviceSide::LocalPods, true, true);
        for way @ (client, frontend, backend) in WAYS {
            let through = begin(node, way, TCP);
            let asks = Sent::by(TCP, client, frontend, ACK, b"?");
            age(node, client, 1);
            assert!(is_given(node, &asks), "it has replied to all so far");
            for _ in 0..2 {
                age(node, client, 1);
                assert!(!is_given(node, &asks), "no reply for a second");
                assert!((0..3).any(|_| is_given(node, &asks)), "one packet of a second is enough");
            }
            assert_eq!(node.come_back(&Sent::tcp(backend, &through, ACK).frame(), PODS).0, REDIRECTED);
            age(node, client, 1);
            assert!(is_given(node, &asks), "it has replied");
            let another = client.replace(":40000", ":40001");
            let dials = Sent::tcp(&another, frontend, SYN);
            assert!(is_given(node, &dials));
            age(node, &another, 1);
            assert!(!is_given(node, &dials), "no SYN-ACK for a second");
        }
    });
}

/// Another pod may send from this one's address; `rp_filter` must see that to drop it.
#[test]
fn kernel_a_reply_by_another_device_than_the_pods_takes_the_stack() {
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

/// Replies arrive by a device without our program, or by one that also leads to other nodes.
#[test]
fn kernel_a_pod_whose_replies_take_the_stack_is_reached_through_it() {
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
fn kernel_flows_with_pods_take_the_stack_once_the_fast_path_ends() {
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

/// Packets that the stack must do more with than forward go there, for pods too.
#[test]
fn kernel_a_pods_packets_of_no_flow_pass_unchanged() {
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

/// Both may have their own connection, and any host may have opened the flow in the client's name.
#[test]
fn kernel_a_pods_packets_before_it_opened_the_flow_pass_unchanged() {
    test(|node| {
        for (client, frontend, backend) in WAYS {
            let sent = passed(&node.come(&Sent::tcp(client, frontend, SYN).frame()));
            let frame = Sent::by(TCP, backend, &sent.from.to_string(), ACK, b"of another connection").frame();
            assert_eq!(node.come_back(&frame, PODS), (NEXT, frame));
        }
    });
}

/// A CPU caches the paths of a fixed number of flows; later flows share their cache slots.
#[test]
fn kernel_flows_that_share_a_cache_slot_keep_their_own_paths() {
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
                // One packet per second to a silent pod goes through the stack.
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
