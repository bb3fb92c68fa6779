//! SNAT ports towards remote backends: each is found while it is free, and soon after it was freed.

use holdfast_core::op::QuotaId;

use super::craft::{ACK, SYN, Sent, TCP, UDP, address};
use super::lives::{all, change, found};
use super::node::{NEXT, Node, SHOT, next_second};
use super::ports::{close, give, open};
use crate::abi::as_bytes;
use crate::abi::packets::types::{packet_count, packet_settings, port_range};
use crate::kernel::bed::Port;
use crate::map::Map;

type Way<'a> = (&'a str, &'a str, &'a str);

/// A frontend, a remote backend, and its clients.
const WAYS: [Way<'_>; 2] = [
    ("203.0.113.10:80", "10.2.0.5:8080", "198.51.100.7"),
    ("[2001:db8:f::10]:80", "[fd02::5]:8080", "[2001:db8:1::7]"),
];

/// More than a random search tries one at a time.
const PORTS: u16 = 1_000;

/// With `LONG` in the environment, nearly as many as may wait for a reply at once.
fn ports() -> u16 {
    if std::env::var_os("LONG").is_some() { 16_000 } else { PORTS }
}

fn begin(node: &Node, (frontend, _, client): Way<'_>, port: u16) -> i32 {
    node.come(&Sent::tcp(&format!("{client}:{port}"), frontend, SYN).frame()).0
}

/// A client and the backend open a connection.
#[track_caller]
fn connect(node: &Node, (frontend, backend, client): Way<'_>, port: u16) {
    let client = format!("{client}:{port}");
    let through = node.comes(&Sent::tcp(&client, frontend, SYN)).from.to_string();
    let answered = node.leaves(&Sent::tcp(backend, &through, SYN | ACK));
    assert_eq!((answered.from, answered.to), (address(frontend), address(&client)));
    assert_eq!(node.comes(&Sent::tcp(&client, frontend, ACK)).to, address(backend));
}

#[test]
fn kernel_a_client_gets_an_snat_port_while_one_is_free() {
    for way @ (frontend, backend, client) in WAYS {
        Node::test_with(2 * u32::from(ports()), move |node| {
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            give(node, 1_024, ports());
            (1_024..1_024 + ports()).for_each(|port| connect(node, way, port));
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 0);
            assert_eq!(begin(node, way, 65_535), SHOT, "all ports are taken");
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 1);
            let one = format!("{client}:{}", 1_024 + ports() / 2);
            close(node, &one, 2);
            assert_eq!(begin(node, way, 65_535), NEXT, "one was closed a second ago");
            assert!(found(node, &one).is_none());
        });
    }
}

/// Clients without free ports cost only a few searches per second.
#[test]
fn kernel_a_flood_causes_no_repeated_search_of_all_ports() {
    let way @ (frontend, backend, client) = WAYS[0];
    Node::test_with(2 * u32::from(PORTS), move |node| {
        node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
        give(node, 1_024, PORTS);
        (1_024..1_024 + PORTS).for_each(|port| connect(node, way, port));
        (40_000..40_100).for_each(|port| assert_eq!(begin(node, way, port), SHOT, "{port}"));
        close(node, &format!("{client}:1500"), 2);
        next_second();
        assert_eq!(begin(node, way, 50_000), NEXT, "another second searches again");
    });
}

/// A quota whose backends have no ports left searches in vain, and takes no searches from another quota.
#[test]
fn kernel_searches_of_one_quota_find_ports_for_another() {
    let backends = ["10.2.0.5:8080", "10.2.0.6:8080", "10.2.0.7:8080"];
    let frontends = ["203.0.113.10:80", "203.0.113.11:80", "203.0.113.12:80"];
    let last = ("203.0.113.20:80", "10.2.0.20:8080", WAYS[0].2);
    Node::test_with(8 * u32::from(PORTS), move |node| {
        give(node, 1_024, PORTS);
        for ((index, frontend), backend) in (1..).zip(frontends).zip(backends) {
            let backends = &[address(backend)];
            node.serve(&Port { index, base: 8 * index, frontends: &[frontend], backends, ..Port::TCP });
            let way = (frontend, backend, last.2);
            (1_024..1_024 + PORTS).for_each(|port| connect(node, way, port));
        }
        let backends = &[address(last.1)];
        node.serve(&Port {
            index: 9,
            base: 80,
            frontends: &[last.0],
            backends,
            share: QuotaId(2),
            ..Port::TCP
        });
        (1_024..1_024 + PORTS - 1).for_each(|port| connect(node, last, port));
        for frontend in frontends {
            let way = (frontend, "", last.2);
            (50_000..50_004).for_each(|port| assert_eq!(begin(node, way, port), SHOT, "{frontend}"));
        }
        assert_eq!(begin(node, last, 50_000), NEXT, "the last free port is found");
    });
}

/// If a balancer's address is the node's own and its port an SNAT port, a tenant could name that frontend's client as a
/// backend. The client's next packet would then look like the backend's reply.
#[test]
fn kernel_no_snat_port_is_a_frontend_of_the_node() {
    let ways = [
        ("192.0.2.1:5060", "198.51.100.9:5060", "10.2.0.5:5060"),
        ("[2001:db8::1]:5060", "[2001:db8:1::9]:5060", "[fd02::5]:5060"),
    ];
    for ((own, _, guest), (of_node, client, backend)) in WAYS.into_iter().zip(ways) {
        Node::test(move |node| {
            give(node, 5_060, 2);
            (5_060..5_062).for_each(|port| node.watch(port));
            node.serve(&Port { frontends: &[own], backends: &[address(client)], ..Port::UDP });
            let other = Port { index: 2, base: 8, share: QuotaId(2), ..Port::UDP };
            node.serve(&Port { frontends: &[of_node], backends: &[address(backend)], ..other });
            let begins = |port: u16| node.come(&Sent::udp(&format!("{guest}:{port}"), own, b"").frame()).0;
            assert_eq!([begins(40_000), begins(40_001)], [NEXT, SHOT], "one of the two ports is a frontend");
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 1);
            assert_eq!(node.comes(&Sent::udp(client, of_node, b"question")).to, address(backend));
        });
    }
}

/// With the kernel's own port range made small, as docs/packets.md says, a node uses nearly all ports for SNAT.
#[test]
fn kernel_fifty_thousand_connections_to_one_backend_get_ports() {
    let ranges = [port_range { first: 1_024, count: 22_976 }, port_range { first: 32_768, count: 28_232 }];
    for (frontend, backend, client) in WAYS {
        Node::test_with(100_000, move |node| {
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            let snat_ports = ranges.iter().map(|it| u32::from(it.count)).sum();
            let mut settings = packet_settings { snat_ports, ..Default::default() };
            settings.snat[..2].copy_from_slice(&ranges);
            node.put(Map::PacketSettings, &0_u32.to_ne_bytes(), as_bytes(&settings));
            (10_000..60_000).for_each(|port| connect(node, (frontend, backend, client), port));
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 0);
        });
    }
}

/// Flannel makes the kernel masquerade everything that leaves for another node's pod: the client then has a port of the
/// kernel's, which may be the SNAT port of a flow that never sent from it.
#[test]
fn kernel_a_reply_to_an_unused_snat_port_passes_unchanged() {
    for (frontend, backend, client) in WAYS {
        for (transport, port) in [(TCP, Port::TCP), (UDP, Port::UDP)] {
            Node::test(move |node| {
                node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..port });
                let client = format!("{client}:40000");
                let came = node.comes(&Sent::by(transport, &client, frontend, SYN, b"question"));
                let sees = found(node, &client).unwrap().1;
                let own = if address(&client).is_ipv4() { "192.0.2.1" } else { "[2001:db8::1]" };
                let nat = format!("{own}:{}", u16::from_be(sees.nat_port));
                let answer = Sent::by(transport, backend, &nat, SYN | ACK, b"answer");
                let frame = answer.frame();
                assert_eq!(node.come(&frame), (NEXT, frame.clone()), "a connection of the kernel's");
                let leaving = Sent::by(transport, &came.from.to_string(), backend, SYN, b"question");
                assert_eq!(node.leaves(&leaving).from, address(&nat));
                assert_eq!(node.comes(&answer).to, came.from, "from then on it belongs to the flow");
            });
        }
    }
}

/// A second frontend for each backend, of another quota.
const OTHERS: [&str; 2] = ["203.0.113.11:80", "[2001:db8:f::11]:80"];

/// Flows of one quota that take all ports towards a backend.
struct Flood<'a> {
    node: &'a Node,
    transport: u8,
    /// The frontends of that backend: of the flood, and of another quota.
    frontends: [&'a str; 2],
    client: &'a str,
}

impl Flood<'_> {
    /// So few that a search tries all of them at once.
    const PORTS: std::ops::Range<u16> = 40_000..40_064;

    /// Runs a test over TCP and UDP, in both families. The flows have just been opened, without replies.
    fn test(test: fn(&Flood<'_>)) {
        for ((frontend, backend, client), other) in WAYS.into_iter().zip(OTHERS) {
            for (transport, port) in [(TCP, Port::TCP), (UDP, Port::UDP)] {
                Node::test_with(1_024, move |node| {
                    let backends = &[address(backend)];
                    node.serve(&Port { frontends: &[frontend], backends, ..port });
                    let second = Port { index: 2, base: 8, share: QuotaId(2), ..port };
                    node.serve(&Port { frontends: &[other], backends, ..second });
                    give(node, 61_000, u16::try_from(Self::PORTS.len()).unwrap());
                    let flood = Flood { node, transport, frontends: [frontend, other], client };
                    Self::PORTS.for_each(|port| assert!(flood.begins(frontend, port), "{port}"));
                    test(&flood);
                });
            }
        }
    }

    fn begins(&self, frontend: &str, port: u16) -> bool {
        let first = Sent::by(self.transport, &self.client(port), frontend, SYN, b"");
        self.node.come(&first.frame()).0 == NEXT
    }

    fn client(&self, port: u16) -> String {
        format!("{}:{port}", self.client)
    }

    /// Ages a flow so that no reply to it can be in flight.
    fn goes_on(&self, port: u16) {
        change(self.node, &self.client(port), |flow| flow.began = flow.began.wrapping_sub(20));
    }

    fn is_there(&self, port: u16) -> bool {
        found(self.node, &self.client(port)).is_some()
    }
}

/// Any quota may name others' backends, and 900 packets per second would have taken all ports towards them.
#[test]
fn kernel_a_flood_without_replies_keeps_no_port_from_others() {
    Flood::test(|flood| {
        let [own, other] = flood.frontends;
        assert!(!flood.begins(other, 50_000), "replies may be in flight");
        for (at, frontend) in (0..).zip([other, own]) {
            let (oldest, newcomer) = (Flood::PORTS.start + at, 50_000 + at);
            flood.goes_on(oldest);
            assert!(flood.begins(frontend, newcomer), "{frontend}");
            assert!(!flood.is_there(oldest) && flood.is_there(newcomer), "{frontend}");
        }
        assert_eq!(all(flood.node).count(), Flood::PORTS.len(), "no other flow is evicted");
        assert_eq!(flood.node.counted(packet_count::COUNT_NO_PORT), 1);
    });
}

#[test]
fn kernel_flows_with_replies_keep_their_ports_under_shortage() {
    Flood::test(|flood| {
        for port in Flood::PORTS {
            flood.goes_on(port);
            open(flood.node, &flood.client(port));
        }
        let newcomers = flood.frontends.into_iter().zip(50_000..);
        newcomers.for_each(|(frontend, port)| assert!(!flood.begins(frontend, port), "{frontend}"));
        assert_eq!(flood.node.counted(packet_count::COUNT_NO_PORT), 2);
        assert_eq!(all(flood.node).count(), Flood::PORTS.len());
    });
}
