//! Traffic that other node proxies are known to have broken, if no other test here covers it.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, Switches};
use holdfast_tests::bed::uplinks::ASYMMETRIC;
use holdfast_tests::bed::{Bed, Location, succeed};
use holdfast_tests::packets::{Family, frontend, outside};
use serde_json::Value;

use crate::node::{SERVED, ip, on_a_node, on_this};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Many segments of the largest size at once.
const MUCH: usize = 8 << 20;

/// Rules that masquerade pods' outgoing packets, as a CNI does. They allocate ports that the kernel might choose at
/// random: a node port's number, and one of holdfast's SNAT ports.
const MASQUERADE: &str = "table inet outgoing {
 chain post {
  type nat hook postrouting priority srcnat;
  ip saddr 10.244.1.10 ip daddr 10.20.0.0/24 meta l4proto { tcp, udp } th dport 9001 masquerade to :30001
  ip saddr 10.244.1.10 ip daddr 10.20.0.0/24 meta l4proto { tcp, udp } th dport 9002 masquerade to :61234
  ip6 saddr fd00:244:1::10 ip6 daddr fd00:20::/64 meta l4proto { tcp, udp } th dport 9001 masquerade to :30001
  ip6 saddr fd00:244:1::10 ip6 daddr fd00:20::/64 meta l4proto { tcp, udp } th dport 9002 masquerade to :61234
 }
}
";

/// cilium#30858, #45492, kubernetes#139276.
#[test]
fn replies_to_kernel_masqueraded_packets_are_left_to_the_kernel() {
    on_a_node(Switches::default(), "", |bed, _, clients| {
        fabric::rules(bed, MASQUERADE).unwrap();
        let both = [(9001, 30_001), (9002, 61_234)];
        let ports =
            both.map(|(port, seen)| [Transport::Tcp, Transport::Udp].map(|of| (port, seen, of))).concat();
        let far = [9001, 9002].map(|port| FAMILIES.map(|family| outside(family, port))).concat();
        let _server = bed.serve_seen_source(Location::far("client"), "far", &far).unwrap();
        for ((port, seen_port, transport), family) in ports.iter().flat_map(|it| FAMILIES.map(|of| (*it, of)))
        {
            let outcome =
                clients.client("bare-a").unwrap().ask(Question::new(transport, outside(family, port)));
            let outcome = outcome.unwrap();
            let Outcome::Answered { by, seen } = &outcome else {
                panic!("{transport:?} {family:?}: {outcome:?}")
            };
            assert_eq!((by.as_str(), seen.port()), ("far", seen_port), "{transport:?} {family:?}");
        }
    });
}

/// A resolver asks from a random port with an unconnected socket, and that port may be a node port's number. Packets
/// from others to that port still reach the service.
#[test]
fn replies_reach_an_unconnected_socket() {
    on_a_node(Switches::default(), "", |bed, _, clients| {
        for family in FAMILIES {
            let own = SocketAddr::new(family.of(NODE_ADDRESSES).parse().unwrap(), 30_001);
            let socket = |place, at| bed.within(place, || UdpSocket::bind(at)).unwrap().unwrap();
            let far = socket(Location::far("client"), outside(family, 9_053));
            let near = socket(Location::OUTSIDE, own);
            for socket in [&near, &far] {
                socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            }
            let mut datagram = [0; 64];
            for round in 0..3 {
                near.send_to(b"question", far.local_addr().unwrap()).unwrap();
                let (_, asker) = far.recv_from(&mut datagram).unwrap();
                assert_eq!(asker, own, "{family:?}");
                far.send_to(b"answer", asker).unwrap();
                let heard =
                    near.recv_from(&mut datagram).map(|(count, from)| (datagram[..count].to_vec(), from));
                let expected = (b"answer".to_vec(), far.local_addr().unwrap());
                assert_eq!(heard.ok(), Some(expected), "{family:?}, round {round}");
            }
            let other = Question::new(Transport::Udp, own).from(outside(family, 9_054));
            let outcome = clients.client("outside").unwrap().ask(other).unwrap();
            assert!(matches!(&outcome, Outcome::Answered { by, .. } if by == "a"), "{family:?}: {outcome:?}");
        }
    });
}

/// How many packets the router got through the node's second uplink.
fn by_second_uplink(bed: &Bed) -> u64 {
    let mut command = bed.command(Location::far("router"), "ip").unwrap();
    command.args(["-j", "-s", "link", "show", "dev", "node-b"]);
    let shown: Value = serde_json::from_str(&succeed(command, SERVED).unwrap()).unwrap();
    shown[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

/// cilium#39806: replies followed the main table, whatever the routing rules said. Here a pod's replies take the path
/// of its rule, and other pods' replies do not.
#[test]
fn replies_follow_routing_rules() {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    fabric::lay_by(&bed, Switches::default(), &ASYMMETRIC).unwrap();
    for (range, pod, gateway) in
        [("10.20.0.0/24", "10.244.1.10", "10.1.0.1"), ("fd00:20::/64", "fd00:244:1::10", "fd00:c::1")]
    {
        ip(&bed, "node", &format!("route delete {range} via {gateway}"));
        let family = if range.contains(':') { "-6" } else { "-4" };
        ip(&bed, "node", &format!("{family} rule add from {pod} to {range} lookup 100"));
        ip(&bed, "node", &format!("route add {range} via {gateway} table 100"));
    }
    on_this(&bed, "", |bed, _, clients| {
        let mut ask = |service: &str| {
            let before = by_second_uplink(bed);
            for family in FAMILIES {
                let to = frontend(service, "balancer", family).unwrap();
                let question = Question::new(Transport::Tcp, to).from(outside(family, 0)).sized(0, 100_000);
                let outcome = clients.client("outside").unwrap().ask(question).unwrap();
                assert!(matches!(outcome, Outcome::Answered { .. }), "{service}: {outcome:?}");
            }
            by_second_uplink(bed) - before
        };
        let (here, bridged) = (ask("here"), ask("bridged"));
        // The second uplink also carries neighbour discovery, so the other pod's count need not be zero.
        assert!(here >= 8 && bridged <= 4, "{here} packets of one pod, {bridged} of another");
    });
}

/// calico#11367: GSO packets of many segments were taken for too large.
#[test]
fn gso_packets_pass_in_both_directions() {
    on_a_node(Switches::default(), "", |_, _, clients| {
        let ways = [("here", "node"), ("bridged", "balancer"), ("away", "node")];
        for ((service, address), family) in ways.iter().flat_map(|it| FAMILIES.map(|of| (*it, of))) {
            let to = frontend(service, address, family).unwrap();
            // A packet that is taken for too large never arrives. A slow one on a busy machine does.
            let patience = TEST_TIMEOUT;
            let question =
                Question { patience, ..Question::new(Transport::Tcp, to).from(outside(family, 0)) };
            let questions = [question.clone().sized(MUCH, 0), question.sized(0, MUCH)];
            let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
            let is_answered = |it: &Outcome| matches!(it, Outcome::Answered { .. });
            assert!(outcomes.iter().all(is_answered), "{service} at {to}: {outcomes:?}");
        }
    });
}
