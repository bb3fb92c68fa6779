//! Cases that depend on the network around a node: the device of a packet, and which side sent first.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use holdfast_core::op::FrontendType;
use libbpf_rs::{MapCore, MapFlags};

use super::craft::{ACK, RST, SYN, Sent, TCP, UDP, address, see};
use super::node::{NEXT, NODE, Node, REDIRECTED, SHOT};
use super::{lives, network};
use crate::abi;
use crate::abi::packets::types::{lifetime, packet_count};
use crate::devices::DeviceSide;
use crate::kernel::bed::Port;
use crate::map::{self, Map};

/// An outside client, its frontend, and a local backend.
const WAYS: [(&str, &str, &str); 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.1.0.5:8080"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
];

fn serve(node: &mut Node) {
    for (index, (_, frontend, backend)) in (1..).zip(WAYS) {
        let backends = [address(backend)];
        let kind = FrontendType::LoadBalancer;
        node.serve(&Port {
            index,
            kind,
            frontends: &[frontend],
            backends: &backends,
            base: index,
            ..Port::TCP
        });
    }
}

/// The kernel has sent the reply to the pods' device, where rules route the backend's packets.
#[test]
fn kernel_a_reply_leaves_by_the_device_of_the_frontends_route() {
    for (by_address, expected) in [(true, REDIRECTED), (false, NEXT)] {
        Node::test(move |node| {
            serve(node);
            node.tell_of(DeviceSide::Outer, [None, None], by_address);
            for (client, frontend, backend) in WAYS {
                let seen = node.comes(&Sent::tcp(client, frontend, SYN));
                let answer = Sent::tcp(backend, &seen.from.to_string(), SYN | ACK).frame();
                let (verdict, frame) = node.leave_to_pod(&answer);
                let left = see(&frame, true);
                assert_eq!((left.from, left.to), (address(frontend), address(client)));
                assert_eq!(verdict, expected, "{frontend}");
                assert_eq!(node.leave(&answer).0, NEXT, "a reply on the right device stays");
                let through = seen.from.to_string();
                let long = Sent { payload: vec![7; 3_000], ..Sent::tcp(backend, &through, ACK) };
                assert_eq!(node.leave_to_pod(&long.frame()).0, NEXT, "no host fragments it on that path");
            }
        });
    }
}

/// A client, its frontend, and a backend behind the outer device: sharing as many bits of the device's address as local
/// pods, or one less.
const BEHIND_ONE: [(&str, &str, &str, bool); 4] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.2.0.127:8080", true),
    ("198.51.100.7:40000", "203.0.113.11:80", "10.2.0.128:8080", false),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd02::fff:5]:8080", true),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::11]:80", "[fd02::1000:5]:8080", false),
];

/// One device leads to both, as with Cilium's overlay. A local pod replies by its own device.
#[test]
fn kernel_local_pods_behind_a_shared_device_see_the_client() {
    Node::test(|node| {
        node.tell_of_near(["10.2.0.1", "fd02::1"].map(|it| it.parse().unwrap()), [25, 100]);
        for (index, (client, frontend, backend, is_near)) in (1..).zip(BEHIND_ONE) {
            let (frontends, backends) = ([frontend], [address(backend)]);
            node.serve(&Port { index, frontends: &frontends, backends: &backends, base: index, ..Port::TCP });
            let through = node.comes(&Sent::tcp(client, frontend, SYN)).from.to_string();
            let seen = node.leaves(&Sent::tcp(&through, backend, SYN)).from.ip();
            assert_eq!(seen == address(client).ip(), is_near, "{backend} sees {seen}");
            let answered = node.leaves(&Sent::tcp(backend, &through, SYN | ACK));
            assert_eq!((answered.from, answered.to), (address(frontend), address(client)));
        }
    });
}

/// The kernel reports nothing of such a route to a program, not even the device.
#[test]
fn kernel_a_backend_behind_an_encapsulating_route_replies_to_this_node() {
    Node::test(|node| {
        if !network::lay_encapsulated() {
            let mut told = std::io::stderr();
            writeln!(told, "not tried: this kernel has no routes with encapsulation").unwrap();
            return;
        }
        let backends = [["10.3.0.5:8080"], ["[fd03::5]:8080"]].map(|it| it.map(address));
        for (index, ((_, frontend, _), backends)) in (1..).zip(WAYS.into_iter().zip(&backends)) {
            node.serve(&Port { index, frontends: &[frontend], backends, base: index, ..Port::TCP });
        }
        for ((client, frontend, _), [backend]) in WAYS.into_iter().zip(&backends) {
            let seen = node.comes(&Sent::tcp(client, frontend, SYN));
            assert_eq!(seen.to, *backend);
            let sent = node.leaves(&Sent::tcp(&seen.from.to_string(), &backend.to_string(), SYN));
            let own: IpAddr = if backend.is_ipv4() { NODE.into() } else { "2001:db8::1".parse().unwrap() };
            assert_eq!(sent.from.ip(), own, "{backend} would bypass this node");
        }
        node.tell_of_device(DeviceSide::Outer, [None, None]);
        for (client, frontend, _) in WAYS {
            let another = client.replace(":40000", ":40001");
            assert_eq!(node.come(&Sent::tcp(&another, frontend, SYN).frame()).0, SHOT, "no SNAT port");
        }
        assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 2);
    });
}

/// An outside client, its frontend, and a backend of another node, in the network of a route.
const AWAY: [(&str, &str, &str, &str); 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.2.0.5:8080", "10.2.0.0/24"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd02::5]:8080", "fd02::/64"),
];

/// The client's address as the remote backend sees it.
#[track_caller]
fn seen_by_backend(
    node: &Node,
    transport: u8,
    (client, frontend, backend, _): (&str, &str, &str, &str),
) -> IpAddr {
    let through = node.comes(&Sent::by(transport, client, frontend, SYN, b"?"));
    assert_eq!(through.to, address(backend));
    node.leaves(&Sent::by(transport, &through.from.to_string(), backend, SYN, b"?")).from.ip()
}

fn serve_away(node: &mut Node) {
    for (index, (_, frontend, backend, _)) in (1..).zip(AWAY) {
        for port in [Port { index, ..Port::TCP }, Port { index: index + 2, ..Port::UDP }] {
            let (frontends, backends) = ([frontend], [address(backend)]);
            node.serve(&Port { base: 8 * port.index, frontends: &frontends, backends: &backends, ..port });
        }
    }
}

/// Open vSwitch has one host port for the pods of all nodes, like Antrea's gateway. Only policy Local tells whether
/// such a pod is local, and it replies by that port in any case.
#[test]
fn kernel_policy_local_keeps_client_addresses_behind_a_switch() {
    for (is_switch, is_local) in [(true, true), (true, false), (false, true)] {
        Node::test(move |node| {
            if is_switch {
                node.tell_of_switch();
            }
            for (index, (client, frontend, backend, _)) in (1..).zip(AWAY) {
                let (frontends, backends) = ([frontend], [address(backend)]);
                let (frontends, backends) = (&frontends[..], &backends[..]);
                let port = Port { index, frontends, backends, base: index, ..Port::TCP };
                if is_local {
                    node.serve_local(&port);
                } else {
                    node.serve(&port);
                }
                let seen = || node.comes(&Sent::tcp(client, frontend, SYN)).from;
                for _ in 0..2 {
                    let from = node.leaves(&Sent::tcp(&seen().to_string(), backend, SYN)).from;
                    assert_eq!(from == address(client), is_switch && is_local, "{backend} sees {from}");
                    lives::age(node, client, 1);
                }
                let answered = node.leaves(&Sent::tcp(backend, &seen().to_string(), SYN | ACK));
                assert_eq!((answered.from, answered.to), (address(frontend), address(client)));
            }
        });
    }
}

/// A node that accepts router advertisements has forwarding off at that device, and on for all.
#[test]
fn kernel_behind_a_device_with_router_advertisements_backends_reply_to_this_node() {
    for transport in [TCP, UDP] {
        Node::test(move |node| {
            serve_away(node);
            network::hear_routers();
            let own = [IpAddr::from(NODE), "2001:db8::1".parse().unwrap()];
            for (way, own) in AWAY.into_iter().zip(own) {
                assert_eq!(seen_by_backend(node, transport, way), own);
            }
        });
    }
}

/// As when a routing daemon restarts.
#[test]
fn kernel_a_client_without_a_route_gets_an_address_once_one_exists() {
    for transport in [TCP, UDP] {
        Node::test(move |node| {
            serve_away(node);
            let own = [IpAddr::from(NODE), "2001:db8::1".parse().unwrap()];
            for (way @ (client, .., network), own) in AWAY.into_iter().zip(own) {
                network::lose(network);
                assert_eq!(seen_by_backend(node, transport, way), address(client).ip());
                network::lead_to_others(network);
                lives::age(node, client, 1);
                assert_eq!(seen_by_backend(node, transport, way), own);
            }
        });
    }
}

/// A conversation with replies continues unchanged, because the backend replies to the address that it has.
#[test]
fn kernel_an_unanswered_flow_with_a_lost_node_address_gets_the_current_one() {
    Node::test(|node| {
        serve_away(node);
        for way @ (client, _, backend, _) in AWAY {
            let before = seen_by_backend(node, UDP, way);
            let nat = lives::found(node, client).unwrap().1.nat_port;
            let nat = std::net::SocketAddr::new(before, u16::from_be(nat)).to_string();
            assert_eq!(node.comes(&Sent::udp(backend, &nat, b"!")).to, address(client));
            node.leaves(&Sent::udp(backend, client, b"!"));
            let others = ["192.0.2.77", "2001:db8::77"].map(|it| it.parse::<IpAddr>().unwrap());
            node.tell_of_device(DeviceSide::Outer, others.map(Some));
            for expected in [before, if before.is_ipv4() { others[0] } else { others[1] }] {
                lives::age(node, client, 1);
                assert_eq!(seen_by_backend(node, UDP, way), expected);
            }
            node.tell_of_device(DeviceSide::Outer, [NODE.into(), "2001:db8::1".parse().unwrap()].map(Some));
        }
    });
}

/// A sender at a device that only leads to backends is no client.
#[test]
fn kernel_a_device_that_leads_only_to_backends_opens_no_flow() {
    Node::test(|node| {
        serve(node);
        node.tell_of_device(DeviceSide::Backends, [None, None]);
        for (client, frontend, _) in WAYS {
            node.check_passed(&Sent::tcp(client, frontend, SYN));
        }
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 0);
    });
}

/// In a network with a route, and in one without.
const CLUSTER_IPS: [(&str, &str, &str, bool); 4] = [
    ("198.51.100.7:40000", "10.2.0.9:80", "10.2.0.9:81", true),
    ("[2001:db8:1::7]:40000", "[fd02::9]:80", "[fd02::9]:81", true),
    ("198.51.100.7:40000", "203.0.113.20:80", "203.0.113.20:81", false),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::20]:80", "[2001:db8:f::20]:81", false),
];

#[test]
fn kernel_an_unlisted_cluster_ip_port_is_refused_if_the_packet_is_routed() {
    Node::test(|node| {
        for (index, (_, frontend, ..)) in (1..).zip(CLUSTER_IPS) {
            node.serve(&Port { index, frontends: &[frontend], ..Port::TCP });
        }
        let untold = Sent::tcp(CLUSTER_IPS[0].0, CLUSTER_IPS[0].2, SYN);
        node.check_passed(&untold);
        for (client, frontend, missed, is_refused) in CLUSTER_IPS {
            let map = if address(frontend).is_ipv4() { Map::ClusterIps4 } else { Map::ClusterIps6 };
            node.put(map, &abi::encode_node_address(address(frontend).ip()), &1_u32.to_ne_bytes());
            if !is_refused {
                node.check_passed(&Sent::tcp(client, missed, SYN));
                continue;
            }
            let (verdict, frame) = node.come(&Sent::tcp(client, missed, SYN).frame());
            let seen = see(&frame, true);
            assert_eq!((verdict, seen.flags, seen.is_valid), (REDIRECTED, RST | ACK, true), "{missed}");
            assert_eq!((seen.from, seen.to), (address(missed), address(client)));
            let (verdict, frame) = node.come(&Sent::udp(client, missed, b"question").frame());
            assert_eq!((verdict, see(&frame, true).is_valid), (REDIRECTED, true), "{missed}");
            node.check_passed(&Sent::tcp(client, missed, ACK));
        }
    });
}

/// The node need not have a default route. At a local address a process may listen, which refuses for itself.
#[test]
fn kernel_a_pod_is_refused_at_an_unlisted_cluster_ip_port_without_a_route() {
    Node::test(|node| {
        for (at, (_, frontend, missed, _)) in (1..).zip(&CLUSTER_IPS[2..]) {
            let pod = if at == 1 { "10.1.0.5:40000" } else { "[fd01::5]:40000" };
            node.serve(&Port { index: at, frontends: &[frontend], ..Port::TCP });
            let map = if at == 1 { Map::ClusterIps4 } else { Map::ClusterIps6 };
            node.put(map, &abi::encode_node_address(address(frontend).ip()), &1_u32.to_ne_bytes());
            let sent = [Sent::tcp(pod, missed, SYN), Sent::udp(pod, missed, b"question")];
            for sent in &sent {
                let (verdict, frame) = node.come_from_pod(&sent.frame());
                let seen = see(&frame, true);
                assert_eq!((verdict, seen.to.ip(), seen.is_valid), (REDIRECTED, address(pod).ip(), true));
            }
            let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address(missed).port());
            let _listeners = (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
            for sent in &sent {
                assert_eq!(node.come_from_pod(&sent.frame()), (NEXT, sent.frame()));
            }
        }
    });
}

/// Ages the entries of this node's own conversations.
fn age(node: &Node, seconds: u32) {
    let talks = map::find_handle(&node.handles, Map::OwnTalks).unwrap();
    for key in talks.keys() {
        let said = talks.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let said = u32::from_ne_bytes(said.try_into().unwrap()).wrapping_sub(seconds);
        node.put(Map::OwnTalks, &key, &said.to_ne_bytes());
    }
}

#[test]
fn kernel_replies_to_the_nodes_own_request_from_a_node_port_reach_it() {
    check_own_talk(FrontendType::NodePort, ["0.0.0.0:30053", "[::]:30053"]);
}

/// As with a balancer that only has nodes' addresses (ServiceLB of k3s).
#[test]
fn kernel_replies_to_the_nodes_own_request_from_a_balancer_port_reach_it() {
    check_own_talk(FrontendType::LoadBalancer, ["192.0.2.1:30053", "[2001:db8::1]:30053"]);
}

#[track_caller]
fn check_own_talk(kind: FrontendType, served: [&'static str; 2]) {
    Node::test(move |node| {
        let own6: IpAddr = "2001:db8::1".parse().unwrap();
        let own = [IpAddr::from(NODE), own6].map(|ip| std::net::SocketAddr::new(ip, 30_053).to_string());
        let backends = ["10.1.0.5:8080", "[fd01::5]:8080"].map(address);
        for (index, (frontend, backend)) in (1..).zip(served.iter().zip(&backends)) {
            let frontends = [*frontend];
            let backends = [*backend];
            node.serve(&Port {
                index,
                kind,
                frontends: &frontends,
                backends: &backends,
                base: index,
                ..Port::UDP
            });
        }
        for (far, own) in ["198.51.100.7:53", "[2001:db8:1::7]:53"].iter().zip(&own) {
            let answer = Sent::udp(far, own, b"answer");
            let asked = Sent::udp(own, far, b"question").frame();
            assert_eq!(node.leave(&asked), (NEXT, asked.clone()));
            assert_eq!(node.come(&answer.frame()), (NEXT, answer.frame()), "its own");
            let other = Sent::udp(&far.replace(":53", ":54"), own, b"question");
            assert_ne!(node.comes(&other).to, address(own), "a client");
            age(node, lifetime::LIFE_UDP.0 + 1);
            assert_ne!(node.comes(&answer).to, address(own), "after the entry expired it is a client");
            // The node's own datagrams are the replies of this flow.
            assert_eq!(node.leave(&asked).0, NEXT);
            assert_ne!(node.comes(&answer).to, address(own));
        }
        assert_eq!(node.counted(packet_count::COUNT_NODE_REPLIES), 2);
    });
}
