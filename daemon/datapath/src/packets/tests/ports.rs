//! The translated ports of clients, and the flows that had them before.

use super::craft::{ACK, FIN, RST, SYN, Sent, address, see};
use super::lives::{BOTH, age, change, found, left_as_it_was};
use super::node::{NEXT, Node, SHOT, THROUGH};
use crate::abi::as_bytes;
use crate::abi::flow::types::{entry_kind, entry4_key, flow_flag, flow_state};
use crate::abi::packets::types::{packet_count, packet_settings, port_range};
use crate::devices::DeviceSide;
use crate::kernel::bed::Port;
use crate::map::Map;

const HERE: &str = "10.1.0.5:8080";
const AWAY: &str = "10.2.0.5:8080";
const FRONTENDS: [&str; 3] = ["203.0.113.10:80", "203.0.113.11:80", "203.0.113.12:80"];

fn client(port: u16) -> String {
    format!("198.51.100.7:{port}")
}

/// The translated source of a client that opens a connection.
#[track_caller]
fn seen(node: &Node, client: &str, frontend: &str) -> std::net::SocketAddr {
    let seen = node.comes(&Sent::tcp(client, frontend, SYN));
    assert_ne!(seen.to, address(frontend), "it is translated");
    seen.from
}

/// Both sides open the connection.
#[track_caller]
pub(super) fn open(node: &Node, client: &str) {
    change(node, client, |flow| flow.state = u8::try_from(flow_state::FLOW_OPEN.0).unwrap());
}

/// Both sides have closed it, so many seconds ago.
#[track_caller]
pub(super) fn close(node: &Node, client: &str, seconds: u32) {
    open(node, client);
    change(node, client, |flow| {
        let all = u8::try_from(flow_flag::FLOW_SYN_SEEN.0 | flow_flag::FLOW_FIN_SEEN.0).unwrap();
        (flow.client_flags, flow.backend_flags) = (all, all);
    });
    age(node, client, seconds);
}

/// Sent unchanged, its reply would bypass this node, and the client would wait without any report.
#[test]
fn kernel_a_client_without_an_snat_address_is_dropped_and_counted() {
    let [here, here6] = BOTH;
    let away = (here.0, here.1, AWAY);
    for (client, frontend, backend) in [here, here6, away, (here6.0, here6.1, "[fd02::5]:8080")] {
        let is_away = ![here.2, here6.2].contains(&backend);
        Node::test(move |node| {
            node.tell_of_device(DeviceSide::Outer, [None, None]);
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            let expected = if is_away { SHOT } else { NEXT };
            for _ in 0..3 {
                assert_eq!(node.come(&Sent::tcp(client, frontend, SYN).frame()).0, expected, "{backend}");
            }
            let counted = [packet_count::COUNT_NO_PORT, packet_count::COUNT_FLOWS].map(|it| node.counted(it));
            assert_eq!(counted, if is_away { [3, 0] } else { [0, 1] }, "{backend}");
        });
    }
}

/// A node dials another node's NodePorts, and pods there: its ports are reused, and to a backend both connections would
/// have equal tuples.
#[test]
fn kernel_a_client_dialling_a_backend_directly_meets_no_own_flow() {
    for (client, frontend, backend) in BOTH {
        Node::test(move |node| {
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            let through = seen(node, client, frontend);
            assert_eq!(through.ip(), address(client).ip());
            assert!(THROUGH.contains(&through.port()), "{through}");
            let answer = |flags| node.leaves(&Sent::tcp(backend, &through.to_string(), flags)).from;
            for (client_flags, backend_flags) in
                [(SYN, SYN | ACK), (ACK, ACK), (FIN | ACK, FIN | ACK), (RST, RST)]
            {
                for flags in [SYN, SYN | ACK, ACK, FIN | ACK, RST] {
                    node.check_passed(&Sent::tcp(client, backend, flags));
                    left_as_it_was(node, &Sent::tcp(backend, client, flags));
                }
                assert_eq!(
                    node.comes(&Sent::tcp(client, frontend, client_flags)).from,
                    through,
                    "{client_flags}"
                );
                assert_eq!(answer(backend_flags), address(frontend), "{backend_flags}");
            }
            assert_eq!(node.counted(packet_count::COUNT_FLOWS), 1);
        });
    }
}

#[test]
fn kernel_policy_local_keeps_the_clients_own_port() {
    for (client, frontend, backend) in BOTH {
        Node::test(move |node| {
            node.serve_local(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            assert_eq!(seen(node, client, frontend), address(client), "policy Local");
        });
        Node::test(move |node| {
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            let (verdict, frame) = node.come_from_pod(&Sent::tcp(client, frontend, SYN).frame());
            assert_eq!((verdict, see(&frame, true).from), (NEXT, address(client)), "a pod");
        });
    }
}

/// Sets the SNAT ports, from `first` on.
pub(super) fn give(node: &Node, first: u16, count: u16) {
    let mut settings = packet_settings { snat_ports: count.into(), ..Default::default() };
    settings.snat[0] = port_range { first, count };
    node.put(Map::PacketSettings, &0_u32.to_ne_bytes(), as_bytes(&settings));
}

/// A client that is a node uses those ports for its own clients towards the same backend.
#[test]
fn kernel_a_node_clients_translated_port_is_none_of_its_snat_ports() {
    Node::test(|node| {
        node.serve(&Port { frontends: &[FRONTENDS[0]], backends: &[address(HERE)], ..Port::TCP });
        let (half, rest) = (THROUGH.start..15_000, 15_000..THROUGH.end);
        give(node, half.start, half.end - half.start);
        for port in 40_000..40_064 {
            let through = seen(node, &client(port), FRONTENDS[0]).port();
            assert!(rest.contains(&through) || through == port, "{through}");
        }
    });
}

/// As by the daemon's default: most ports are SNAT ports, in several ranges. One begins below the translated ports, and
/// another ends above them.
#[test]
fn kernel_each_client_gets_one_of_its_remaining_ports() {
    Node::test(|node| {
        node.serve(&Port { frontends: &[FRONTENDS[0]], backends: &[address(HERE)], ..Port::TCP });
        let given = [(1_000, 9_000), (10_002, 13_998), (24_001, 5_000), (29_002, 2_000)];
        let mut settings = packet_settings { snat_ports: 29_998, ..Default::default() };
        settings.snat = given.map(|(first, count)| port_range { first, count });
        node.put(Map::PacketSettings, &0_u32.to_ne_bytes(), as_bytes(&settings));
        let left = [10_000, 10_001, 24_000, 29_001];
        let mut seen_at = std::collections::BTreeSet::new();
        for host in 0..400 {
            let client = format!("198.51.{}.{}:40000", 100 + host / 200, 1 + host % 200);
            let through = seen(node, &client, FRONTENDS[0]).port();
            assert!(left.contains(&through), "{client} comes by {through}");
            seen_at.insert(through);
        }
        assert_eq!(Vec::from_iter(seen_at), left, "each of them is used");
    });
}

/// Sixteen random attempts miss the other half once in 65,536 times.
#[test]
fn kernel_a_client_with_half_its_ports_used_gets_a_free_one() {
    Node::test_with(256, |node| {
        node.serve(&Port { frontends: &[FRONTENDS[0]], backends: &[address(HERE)], ..Port::TCP });
        let left = THROUGH.start..THROUGH.start + 2;
        give(node, left.end, THROUGH.end - left.end);
        for host in 1..=64 {
            let by_each = [40_000, 40_001]
                .map(|port| seen(node, &format!("198.51.100.{host}:{port}"), FRONTENDS[0]).port());
            assert!(by_each.iter().all(|port| left.contains(port)), "{host} comes by {by_each:?}");
        }
    });
}

#[test]
fn kernel_a_client_without_remaining_ports_keeps_its_own() {
    Node::test(|node| {
        node.serve(&Port { frontends: &FRONTENDS, backends: &[address(HERE)], ..Port::TCP });
        give(node, THROUGH.start, THROUGH.end - THROUGH.start);
        assert_eq!(seen(node, &client(40_000), FRONTENDS[0]), address(&client(40_000)));
        let second = seen(node, &client(40_000), FRONTENDS[1]);
        assert!(THROUGH.contains(&second.port()), "another flow has its own port: {second}");
        assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 0);
    });
}

/// A client's RST holds its port for ten seconds, because any host may have sent it. The client itself continues at
/// once: with thousands of connections per second it reuses its ports at each frontend.
#[test]
fn kernel_a_client_reuses_a_port_reset_at_another_frontend_at_once() {
    for (own, frontend, backend) in BOTH {
        let other = frontend.replace(":80", ":81");
        Node::test(move |node| {
            let frontends = [frontend, other.as_str()];
            node.serve_local(&Port { frontends: &frontends, backends: &[address(backend)], ..Port::TCP });
            give(node, THROUGH.start, THROUGH.end - THROUGH.start);
            assert_eq!(seen(node, own, frontend), address(own));
            open(node, own);
            node.comes(&Sent::tcp(own, frontend, RST));
            let through = seen(node, own, &other);
            assert!(THROUGH.contains(&through.port()), "{through}");
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 0);
        });
    }
}

/// Reserves all ports of a client at a backend except this one, as for other proxies' connections.
fn take_all_but(node: &Node, at: &str, to: &str, left: u16) {
    let raw = |place: &str| match address(place) {
        std::net::SocketAddr::V4(it) => (u32::from_ne_bytes(it.ip().octets()), it.port().to_be()),
        other @ std::net::SocketAddr::V6(_) => panic!("{other} is of IPv6"),
    };
    for port in THROUGH.filter(|port| *port != left) {
        let (client, backend) = ((raw(at).0, port.to_be()), raw(to));
        let (less, more) = if client < backend { (client, backend) } else { (backend, client) };
        let key = entry4_key {
            source: less.0,
            destination: more.0,
            source_port: less.1,
            destination_port: more.1,
            transport: 6,
            kind: u8::try_from(entry_kind::ENTRY_TRANSLATED.0).unwrap(),
            pad: 0,
        };
        node.put(Map::Entries4, as_bytes(&key), &(CROWD - 1).to_ne_bytes());
    }
}

/// Flows with space for an entry at each port.
const CROWD: u32 = 10_000;

/// One port is left to a client at a backend, and no other is free.
#[test]
fn kernel_a_client_whose_port_is_taken_gets_a_closed_flows_port() {
    Node::test_with(CROWD, |node| {
        let [one, two, _] = FRONTENDS;
        node.serve(&Port { frontends: &[one, two], backends: &[address(HERE)], ..Port::TCP });
        let (only, holder) = (THROUGH.start, 50_000);
        give(node, only + 1, THROUGH.end - only - 1);
        take_all_but(node, &client(0), HERE, only);
        assert_eq!(seen(node, &client(holder), one).port(), only);
        // Last seen in a minute: only now closed, however slow this machine is.
        const AHEAD: u32 = 60;
        close(node, &client(holder), AHEAD.wrapping_neg());
        assert_eq!(seen(node, &client(60_000), one), address(&client(60_000)));
        open(node, &client(60_000));
        let second = Sent::tcp(&client(60_000), two, SYN);
        assert_eq!(
            node.come(&second.frame()).0,
            SHOT,
            "its own is taken, and the other one not over for long"
        );
        assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 1);
        age(node, &client(holder), AHEAD + 11);
        assert_eq!(node.comes(&second).from.port(), only);
        assert!(found(node, &client(holder)).is_none());
    });
}

/// The backend still remembers connections from those ports.
#[test]
fn kernel_a_closed_flows_port_is_taken_last() {
    Node::test(|node| {
        node.serve(&Port { frontends: &[FRONTENDS[0]], backends: &[address(AWAY)], ..Port::TCP });
        for port in 40_000..40_012 {
            seen(node, &client(port), FRONTENDS[0]);
            close(node, &client(port), 11);
        }
        (50_000..50_008).for_each(|port| _ = seen(node, &client(port), FRONTENDS[0]));
        (40_000..40_012).for_each(|port| assert!(found(node, &client(port)).is_some(), "{port}"));
    });
}

/// Only a superuser sends from there, and some servers (NFS) require it: like kube-proxy, which also picks such a port.
#[test]
fn kernel_a_client_from_a_privileged_port_keeps_a_privileged_port() {
    for (client, frontend, backend) in BOTH {
        Node::test(move |node| {
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            give(node, THROUGH.start, 1);
            for (port, is_kept) in [(1_u16, true), (1_023, true), (1_024, false)] {
                let client = client.replace("40000", &port.to_string());
                assert_eq!(seen(node, &client, frontend) == address(&client), is_kept, "{client}");
            }
        });
    }
}

/// A process of the node at exactly the dialled port: nothing is translated.
#[test]
fn kernel_a_backend_that_is_its_own_frontend_sees_the_client() {
    for (client, at) in [(BOTH[0].0, "192.0.2.1:53"), (BOTH[1].0, "[2001:db8::1]:53")] {
        Node::test(move |node| {
            node.serve(&Port { frontends: &[at], backends: &[address(at)], ..Port::UDP });
            let sent = Sent::udp(client, at, b"x");
            let frame = sent.frame();
            assert_eq!(node.come(&frame), (NEXT, frame));
            left_as_it_was(node, &Sent::udp(at, client, b"x"));
            assert_eq!(node.counted(packet_count::COUNT_FLOWS), 1);
        });
    }
}

/// A UDP reply is not marked as such: a pod's datagram to a frontend goes to one of its backends.
#[test]
fn kernel_a_translated_port_is_no_frontend_at_the_clients_address() {
    for (client, frontend, backend) in BOTH {
        Node::test(move |node| {
            let only = THROUGH.start;
            give(node, only + 1, THROUGH.end - only - 1);
            let client = |port: u16| client.replace("40000", &port.to_string());
            let (theirs, others) = (client(only), [address(&backend.replace("8080", "5353"))]);
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::UDP });
            node.serve(&Port { index: 2, base: 8, frontends: &[&theirs], backends: &others, ..Port::UDP });
            for port in (30_000..60_000).cycle().take(60_000) {
                let from = node.comes(&Sent::udp(&client(port), frontend, b"x")).from;
                let answer = Sent::udp(backend, &from.to_string(), b"y").frame();
                assert_eq!(node.come_from_pod(&answer), (NEXT, answer), "{from}");
            }
        });
    }
}
