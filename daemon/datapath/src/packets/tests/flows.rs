//! Packets of open flows.

use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::{FrontendKey, Transport};
use holdfast_core::list::Scope;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, WordFlags};

use super::craft::{ACK, FIN, RST, SYN, Seen, Sent, TCP, UDP, address, see};
use super::node::{NEXT, Node, POD_GATE, POD_GATE6, REDIRECTED, SHOT, SNAT_COUNT, SNAT_FIRST, THROUGH};
use super::sctp::SCTP;
use crate::abi::packets::types::packet_count;
use crate::kernel::bed::Port;
use crate::map::Map;

const CLIENT: &str = "198.51.100.7:40000";
const CLIENT6: &str = "[2001:db8:1::7]:40000";

/// Frontend, kind, backend; the first two backends are local pods, the others are on another node.
const WAYS: [(&str, FrontendType, &str, &str); 4] = [
    ("203.0.113.10:80", FrontendType::LoadBalancer, "10.1.0.5:8080", CLIENT),
    ("203.0.113.11:80", FrontendType::ExternalIp, "10.2.0.5:8080", CLIENT),
    ("[2001:db8:f::10]:80", FrontendType::LoadBalancer, "[fd01::5]:8080", CLIENT6),
    ("[2001:db8:f::11]:80", FrontendType::ExternalIp, "[fd02::5]:8080", CLIENT6),
];

fn is_remote(backend: &str) -> bool {
    backend.starts_with("10.2") || backend.starts_with("[fd02")
}

/// A whole conversation at each of the four places. Returns the client as seen inside, and at its backend.
#[track_caller]
fn check_conversation(
    node: &Node,
    client: &str,
    frontend: &str,
    backend: &str,
    transport: u8,
) -> [SocketAddr; 2] {
    let packet = |from: &str, to: &str, flags, payload: &[u8]| Sent::by(transport, from, to, flags, payload);
    let answer = |flags| packet(backend, backend, flags | ACK, b"answer").payload;
    let (mut inside, mut remote) = (None, None);
    for (flags, payload) in [(SYN, b"".as_slice()), (ACK, b"ask"), (ACK, b"more")] {
        let sent = packet(client, frontend, flags, payload);
        let seen = node.comes(&sent);
        assert_eq!((seen.from.ip(), seen.to), (address(client).ip(), address(backend)), "inside: {frontend}");
        assert!(seen.is_valid && seen.payload == sent.payload, "{seen:?}");
        assert_eq!(*inside.get_or_insert(seen.from), seen.from, "the same for the whole flow");
        let through = seen.from.to_string();
        if is_remote(backend) {
            let seen = node.leaves(&packet(&through, backend, flags, payload));
            assert_eq!(seen.to, address(backend));
            assert!(seen.is_valid && seen.payload == sent.payload, "{seen:?}");
            assert_ne!(seen.from, address(client), "the backend's node would bypass this one");
            assert_eq!(*remote.get_or_insert(seen.from), seen.from, "the same for the whole flow");
            let seen = node.comes(&packet(backend, &seen.from.to_string(), flags | ACK, b"answer"));
            assert_eq!((seen.from, seen.to), (address(backend), address(&through)), "back inside");
            assert!(seen.is_valid);
        }
        let seen = node.leaves(&packet(backend, &through, flags | ACK, b"answer"));
        assert_eq!((seen.from, seen.to), (address(frontend), address(client)), "the reply");
        assert!(seen.is_valid && seen.payload == answer(flags), "{seen:?}");
    }
    let inside = inside.unwrap();
    [inside, remote.unwrap_or(inside)]
}

/// Whether the client has an SNAT port.
fn is_given(seen: SocketAddr, is_remote: bool) -> bool {
    let ports = if is_remote { SNAT_FIRST..SNAT_FIRST + SNAT_COUNT } else { THROUGH };
    ports.contains(&seen.port())
}

fn serve(node: &mut Node, base: &Port<'_>) {
    for (at, (frontend, kind, backend, _)) in WAYS.into_iter().enumerate() {
        let index = u32::try_from(at).unwrap() + 1;
        let backends = [address(backend)];
        node.serve(&Port { index, kind, frontends: &[frontend], backends: &backends, base: index, ..*base });
    }
}

#[test]
fn kernel_invariant_14_translation_is_reversed_for_replies() {
    for (transport, base) in [(TCP, Port::TCP), (UDP, Port::UDP), (SCTP, Port::SCTP)] {
        Node::test(move |node| {
            serve(node, &base);
            for (frontend, _, backend, client) in WAYS {
                let [inside, outside] = check_conversation(node, client, frontend, backend, transport);
                assert!(is_given(outside, is_remote(backend)), "{outside}");
                assert_eq!(inside == address(client), is_remote(backend), "translation happens once");
            }
            assert_eq!(node.counted(packet_count::COUNT_FLOWS), 4);
        });
    }
}

#[test]
fn kernel_a_node_port_is_served_at_each_address_of_the_node() {
    Node::test(|node| {
        let kind = FrontendType::NodePort;
        let backends = [address("10.1.0.5:8080")];
        node.serve(&Port { kind, frontends: &["0.0.0.0:30080"], backends: &backends, ..Port::TCP });
        check_conversation(node, CLIENT, "192.0.2.1:30080", "10.1.0.5:8080", TCP);
        node.check_passed(&Sent::tcp(CLIENT, "198.51.100.9:30080", SYN));
        node.check_passed(&Sent::tcp(CLIENT, "0.0.0.0:30080", SYN));
    });
}

/// The kernel drops such a packet, but would not with another destination.
#[test]
fn kernel_packets_from_other_hosts_get_no_loopback_service() {
    Node::test(|node| {
        let (v4, v6) = ([address("10.1.0.5:8080")], [address("[fd00:1::5]:8080")]);
        let any = Port { kind: FrontendType::NodePort, ..Port::TCP };
        node.serve(&Port { frontends: &["0.0.0.0:30080"], backends: &v4, ..any });
        node.serve(&Port { index: 2, base: 2, frontends: &["[::]:30080"], backends: &v6, ..any });
        let own = Port { kind: FrontendType::Static, ..Port::TCP };
        node.serve(&Port { index: 3, base: 3, frontends: &["127.0.0.1:80"], backends: &v4, ..own });
        node.serve(&Port { index: 4, base: 4, frontends: &["[::1]:80"], backends: &v6, ..own });
        for loopback in ["127.0.0.1", "::1"] {
            node.answers_node_ports_at(loopback.parse().unwrap());
        }
        for (client, to) in [
            (CLIENT, "127.0.0.1:30080"),
            (CLIENT, "127.9.9.9:30080"),
            (CLIENT, "127.0.0.1:80"),
            (CLIENT6, "[::1]:30080"),
            (CLIENT6, "[::1]:80"),
        ] {
            node.check_passed(&Sent::tcp(client, to, SYN));
        }
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 0);
    });
}

#[test]
fn kernel_invariant_13_packets_to_no_frontend_pass_unchanged() {
    Node::test(|node| {
        serve(node, &Port::TCP);
        for sent in [
            Sent::tcp(CLIENT, "203.0.113.10:81", SYN),
            Sent::tcp(CLIENT, "203.0.113.12:80", SYN),
            Sent::udp(CLIENT, "203.0.113.10:80", b"x"),
            Sent::tcp(CLIENT6, "[2001:db8:f::10]:81", SYN),
            Sent::tcp("10.1.0.5:8080", CLIENT, ACK),
            // Connections opened by another proxy: the stack translates them.
            Sent::tcp(CLIENT, "203.0.113.10:80", ACK),
            Sent::tcp(CLIENT, "203.0.113.10:80", SYN | ACK),
            Sent::tcp(CLIENT, "203.0.113.10:80", RST),
        ] {
            node.check_passed(&sent);
        }
        assert_eq!(node.counted(packet_count::COUNT_MIDSTREAM), 3);
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 0);
    });
}

/// cilium#42632, calico#4661: a client connects from one port to two frontends with one backend.
#[test]
fn kernel_one_client_port_reaches_two_frontends_with_one_backend() {
    Node::test(|node| {
        let backends = [address("10.1.0.5:8080")];
        let frontends = ["203.0.113.10:80", "203.0.113.11:80"];
        node.serve_local(&Port { frontends: &frontends, backends: &backends, ..Port::TCP });
        let both = || frontends.map(|it| check_conversation(node, CLIENT, it, "10.1.0.5:8080", TCP));
        let seen = both();
        assert_ne!(seen[0], seen[1], "the first flow has that port");
        assert_eq!(both(), seen, "each keeps its port");
    });
}

/// cilium#10984, #32472, calico#4661: a client that reuses its port at once.
#[test]
fn kernel_a_syn_reopens_a_closed_connection() {
    Node::test(|node| {
        let (frontend, old, new) = ("203.0.113.10:80", "10.1.0.5:8080", "10.1.0.6:8080");
        let port = Port { frontends: &[frontend], ..Port::TCP };
        node.serve_local(&Port { backends: &[address(old)], ..port });
        check_conversation(node, CLIENT, frontend, old, TCP);
        node.serve_local(&Port { frontends: &[frontend], backends: &[address(new)], ..Port::TCP });
        let to = |node: &Node, flags| node.comes(&Sent::tcp(CLIENT, frontend, flags)).to;
        assert_eq!(to(node, ACK), address(old), "a connection keeps its backend");
        assert_eq!(to(node, SYN), address(old), "a forged SYN ends nothing");
        assert_eq!(to(node, FIN | ACK), address(old));
        assert_eq!(to(node, SYN), address(old), "one FIN is not enough");
        node.leaves(&Sent::tcp(old, CLIENT, FIN | ACK));
        assert_eq!(to(node, ACK), address(old), "the last segment");
        assert_eq!(to(node, SYN), address(new), "both FINs are enough");
        node.leaves(&Sent::tcp(new, CLIENT, RST | ACK));
        node.serve_local(&Port { frontends: &[frontend], backends: &[address(old)], ..Port::TCP });
        assert_eq!(to(node, SYN), address(old), "a RST is enough");
    });
}

#[test]
fn kernel_a_udp_flow_leaves_a_backend_that_stopped_serving() {
    Node::test(|node| {
        let (frontend, old, new) = ("203.0.113.10:53", "10.1.0.5:53", "10.1.0.6:53");
        let port = |backends| Port { frontends: &["203.0.113.10:53"], backends, ..Port::UDP };
        let (olds, news) = ([address(old)], [address(new)]);
        node.serve(&port(&olds));
        let to = |node: &Node| node.comes(&Sent::udp(CLIENT, frontend, b"x")).to;
        assert_eq!(to(node), address(old));
        port(&news).publish_beside(&mut node.maps, Scope::Cluster, &olds);
        super::lives::age(node, CLIENT, 2);
        assert_eq!(to(node), address(old), "a draining backend keeps its clients");
        port(&news).publish(&mut node.maps, Scope::Cluster);
        super::lives::age(node, CLIENT, 2);
        assert_eq!(to(node), address(new));
    });
}

/// What one port gets of a table of 64 while no other port needs space.
const PART: usize = 57;

#[test]
fn kernel_a_full_table_keeps_live_flows_and_counts_drops() {
    Node::test(|node| {
        let frontend = "203.0.113.10:80";
        node.serve(&Port { frontends: &[frontend], backends: &[address("10.1.0.5:8080")], ..Port::TCP });
        let client = |at: usize| format!("198.51.100.7:{}", 40_000 + at);
        for at in 0..PART {
            check_conversation(node, &client(at), frontend, "10.1.0.5:8080", TCP);
        }
        for at in PART..PART + 16 {
            assert_eq!(node.come(&Sent::tcp(&client(at), frontend, SYN).frame()).0, SHOT);
        }
        assert_eq!(node.counted(packet_count::COUNT_FULL), 16);
        for at in 0..PART {
            check_conversation(node, &client(at), frontend, "10.1.0.5:8080", TCP);
        }
        // A flow closed by both sides goes after ten seconds, a reset one after thirty: not within this test.
        assert_eq!(node.counted(packet_count::COUNT_RECLAIMED), 0);
    });
}

/// Policy Local is for outside clients; a local pod gets any backend, which sees its address.
#[test]
fn kernel_policy_local_applies_to_outside_clients_only() {
    Node::test(|node| {
        let (frontend, here, away) = ("203.0.113.10:80", "10.1.0.5:8080", "10.2.0.5:8080");
        let kind = FrontendType::LoadBalancer;
        let (frontends, flags) = ([frontend], WordFlags::EXTERNAL_LOCAL);
        let port = |index, base| Port { index, kind, frontends: &frontends, flags, base, ..Port::TCP };
        let (heres, aways) = ([address(here)], [address(away)]);
        node.serve(&Port { backends: &aways, ..port(1, 8) });
        let outside = Sent::tcp(CLIENT, frontend, SYN);
        let local = |backends| Port { backends, flags: WordFlags::DROP, ..port(1, 16) };
        local(&[]).publish(&mut node.maps, Scope::Local);
        assert_eq!(node.come(&outside.frame()).0, SHOT, "no local backend");
        let (verdict, frame) = node.come_from_pod(&Sent::tcp("10.1.0.9:40000", frontend, SYN).frame());
        assert_eq!((verdict, see(&frame, true).to), (NEXT, address(away)));
        let seen = node.leaves(&Sent::tcp("10.1.0.9:40000", away, SYN));
        assert_eq!(seen.from, address("10.1.0.9:40000"), "every node routes to it");
        local(&heres).publish(&mut node.maps, Scope::Local);
        let seen = node.comes(&outside);
        assert_eq!((seen.from, seen.to), (address(CLIENT), address(here)));
    });
}

/// A pod's packet, as it continues.
#[track_caller]
fn of_pod(node: &Node, from: SocketAddr, to: SocketAddr) -> Seen {
    let sent = Sent::udp(&from.to_string(), &to.to_string(), b"x");
    let (verdict, frame) = node.come_from_pod(&sent.frame());
    assert_eq!(verdict, NEXT, "{sent:?}");
    see(&frame, true)
}

/// A pod drops packets from its own address. From its own service port, request and reply would have equal tuples.
#[track_caller]
fn check_hairpin(node: &Node, frontend: &str, backend: &str, port: u16, gate: IpAddr) {
    let (frontend, backend) = (address(frontend), address(backend));
    let client = SocketAddr::new(backend.ip(), port);
    let leaves =
        |from: SocketAddr, to: SocketAddr| node.leaves(&Sent::udp(&from.to_string(), &to.to_string(), b"x"));
    for _ in 0..2 {
        let inside = of_pod(node, client, frontend);
        assert_eq!((inside.from.ip(), inside.to, inside.is_valid), (client.ip(), backend, true));
        assert_ne!(inside.from, backend);
        let seen = leaves(inside.from, backend);
        assert_eq!((seen.from.ip(), seen.to, seen.is_valid), (gate, backend, true));
        let back = of_pod(node, backend, seen.from);
        assert_eq!((back.from, back.to, back.is_valid), (backend, inside.from, true));
        let answer = leaves(backend, inside.from);
        assert_eq!((answer.from, answer.to, answer.is_valid), (frontend, client, true));
    }
}

#[test]
fn kernel_a_pod_that_reaches_itself_sees_a_node_address() {
    Node::test(|node| {
        serve(node, &Port::UDP);
        for port in [40_000, 8080] {
            check_hairpin(node, "203.0.113.10:80", "10.1.0.5:8080", port, POD_GATE.into());
            check_hairpin(node, "[2001:db8:f::10]:80", "[fd01::5]:8080", port, POD_GATE6.into());
        }
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 4);
    });
}

#[test]
fn kernel_exhausted_snat_ports_are_reported_by_reason() {
    Node::test(|node| {
        let (frontend, backend) = ("203.0.113.11:80", "10.2.0.5:8080");
        node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
        let settings = crate::abi::packets::types::packet_settings::default();
        node.put(crate::map::Map::PacketSettings, &0_u32.to_ne_bytes(), crate::abi::as_bytes(&settings));
        assert_eq!(node.come(&Sent::tcp(CLIENT, frontend, SYN).frame()).0, SHOT);
        assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 1);
    });
}

/// As after a restart: no address leads to the removed frontend, and its port is an SNAT port.
#[test]
fn kernel_a_node_flow_is_found_by_its_port_without_its_frontend() {
    let ways = [
        ("198.51.100.7:40000", "192.0.2.1:61005", "10.1.0.5:8080"),
        ("[2001:db8:1::7]:40000", "[2001:db8::1]:61005", "[fd01::5]:8080"),
    ];
    for (client, frontend, backend) in ways {
        Node::test(move |node| {
            let (frontends, backends) = (&[frontend], &[address(backend)]);
            node.serve_local(&Port { kind: FrontendType::LoadBalancer, frontends, backends, ..Port::TCP });
            node.comes(&Sent::tcp(client, frontend, SYN));
            node.leaves(&Sent::tcp(backend, client, SYN | ACK));
            let at = address(frontend);
            let port = at.port().try_into().unwrap();
            let key = FrontendKey { address: at.ip(), port, transport: Transport::Tcp };
            node.maps.execute(&Action::RemoveFrontend(key)).unwrap();
            let block = crate::abi::address_block(at.ip()) / 64;
            node.put(Map::FrontendBlocks, &block.to_ne_bytes(), &0_u64.to_ne_bytes());
            let segment = Sent::tcp(client, frontend, ACK);
            node.check_passed(&segment);
            let word = u32::from(at.port() / 64);
            node.put(Map::NodePorts, &word.to_ne_bytes(), &(1_u64 << (at.port() % 64)).to_ne_bytes());
            assert_eq!(node.comes(&segment).to, address(backend));
        });
    }
}

/// Rewritten packets from a bridge are redirected to ingress again. A reply of a remote backend shows nothing of its
/// device that was unknown when the flow began.
#[test]
fn kernel_reloaded_programs_still_handle_a_flow_by_a_bridge() {
    Node::test(|node| {
        let (client, frontend, backend) = ("198.51.100.7:40000", "203.0.113.10:80", "10.2.0.5:8080");
        node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
        node.tell_of_bridge();
        let (verdict, frame) = node.come(&Sent::tcp(client, frontend, SYN).frame());
        assert_eq!(verdict, REDIRECTED, "it is redirected to ingress");
        let through = see(&frame, true).from.to_string();
        let nat = node.leaves(&Sent::tcp(&through, backend, SYN)).from.to_string();
        let answer = Sent::tcp(backend, &nat, SYN | ACK).frame();
        let (verdict, frame) = node.come(&answer);
        assert_eq!((verdict, see(&frame, true).to), (REDIRECTED, address(&through)));
        node.load_again();
        let (verdict, frame) = node.come(&answer);
        assert_eq!((verdict, see(&frame, true).to), (REDIRECTED, address(&through)));
    });
}
