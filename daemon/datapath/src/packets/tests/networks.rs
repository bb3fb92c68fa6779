//! What depends on the network around a node: the device by which a packet comes or leaves, and which side spoke first.

use std::io::Write;
use std::net::IpAddr;

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

/// A client outside, what it dials, and a backend of this node.
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

/// The kernel has sent the answer to the device of pods: that is where rules have the backend's packets go.
#[test]
fn kernel_an_answer_goes_by_the_device_that_the_dialled_address_is_routed_by() {
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
                assert_eq!(node.leave(&answer).0, NEXT, "where it is right already it stays");
                let through = seen.from.to_string();
                let long = Sent { payload: vec![7; 3_000], ..Sent::tcp(backend, &through, ACK) };
                assert_eq!(node.leave_to_pod(&long.frame()).0, NEXT, "no host would divide it on that way");
            }
        });
    }
}

/// A client, what it dials, and a backend behind the outer device: with as many bits of the device's address as pods of
/// this node have, or with one less.
const BEHIND_ONE: [(&str, &str, &str, bool); 4] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.2.0.127:8080", true),
    ("198.51.100.7:40000", "203.0.113.11:80", "10.2.0.128:8080", false),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd02::fff:5]:8080", true),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::11]:80", "[fd02::1000:5]:8080", false),
];

/// A device leads to both where Cilium has an overlay. A pod of this node answers past it, by a device of its own.
#[test]
fn kernel_pods_of_this_node_see_the_client_behind_a_device_that_leads_to_others_too() {
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

/// The kernel tells a program nothing of such a way, not even the device.
#[test]
fn kernel_a_backend_behind_a_route_with_encapsulation_answers_to_this_node() {
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
            assert_eq!(sent.from.ip(), own, "{backend} would answer past this node");
        }
        node.tell_of_device(DeviceSide::Outer, [None, None]);
        for (client, frontend, _) in WAYS {
            let another = client.replace(":40000", ":40001");
            assert_eq!(node.come(&Sent::tcp(&another, frontend, SYN).frame()).0, SHOT, "none to give");
        }
        assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 2);
    });
}

/// A client outside, what it dials, and a backend of another node, in the network to which a route leads.
const AWAY: [(&str, &str, &str, &str); 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.2.0.5:8080", "10.2.0.0/24"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd02::5]:8080", "fd02::/64"),
];

/// As which address the backend of another node sees the client's packet.
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

/// Open vSwitch has one port on the host for the pods of all nodes, as Antrea's gateway is. Whether such a pod is one
/// of this node's is known under policy Local alone, and it answers by the port in any case.
#[test]
fn kernel_a_service_that_asks_for_its_clients_has_them_behind_a_switch() {
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

/// A node whose routers tell it of themselves has forwarding off at the device by which they do, and on for all.
#[test]
fn kernel_a_device_that_hears_routers_has_backends_of_other_nodes_answer_to_this_one() {
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

/// As where a routing daemon begins anew.
#[test]
fn kernel_a_client_that_came_while_there_was_no_way_gets_an_address_when_there_is_one() {
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

/// A conversation goes on as it is while it is answered, because the backend answers to the address that it knows.
#[test]
fn kernel_who_is_not_answered_at_an_address_that_the_node_has_no_more_is_given_the_one_that_it_has() {
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

/// A sender that comes by a device which leads to backends alone is no client.
#[test]
fn kernel_a_device_that_leads_to_backends_alone_opens_no_flow() {
    Node::test(|node| {
        serve(node);
        node.tell_of_device(DeviceSide::Backends, [None, None]);
        for (client, frontend, _) in WAYS {
            node.check_passed(&Sent::tcp(client, frontend, SYN));
        }
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 0);
    });
}

/// In a network to which this node knows a way, and in one to which it knows none.
const CLUSTER_IPS: [(&str, &str, &str, bool); 4] = [
    ("198.51.100.7:40000", "10.2.0.9:80", "10.2.0.9:81", true),
    ("[2001:db8:1::7]:40000", "[fd02::9]:80", "[fd02::9]:81", true),
    ("198.51.100.7:40000", "203.0.113.20:80", "203.0.113.20:81", false),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::20]:80", "[2001:db8:f::20]:81", false),
];

#[test]
fn kernel_a_port_that_a_cluster_ip_has_not_is_refused_where_the_packet_would_be_sent_on() {
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

/// What stands in the map of this node's conversations is made so old.
fn age(node: &Node, seconds: u32) {
    let talks = map::find_handle(&node.handles, Map::OwnTalks).unwrap();
    for key in talks.keys() {
        let said = talks.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let said = u32::from_ne_bytes(said.try_into().unwrap()).wrapping_sub(seconds);
        node.put(Map::OwnTalks, &key, &said.to_ne_bytes());
    }
}

#[test]
fn kernel_what_this_node_asks_from_a_node_ports_number_is_answered_to_itself_for_a_while() {
    check_own_talk(FrontendType::NodePort, ["0.0.0.0:30053", "[::]:30053"]);
}

/// As where a balancer has no addresses but those of nodes (ServiceLB of k3s).
#[test]
fn kernel_what_this_node_asks_from_a_balancers_port_at_its_address_is_answered_to_itself_for_a_while() {
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
            assert_ne!(node.comes(&answer).to, address(own), "long after it is a client too");
            // Of its flow this node's own words are the answers.
            assert_eq!(node.leave(&asked).0, NEXT);
            assert_ne!(node.comes(&answer).to, address(own));
        }
        assert_eq!(node.counted(packet_count::COUNT_NODE_REPLIES), 2);
    });
}
