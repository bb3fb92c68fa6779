//! Ports for clients of other nodes' backends: each is found while it is free, and soon after it was.

use super::craft::{ACK, SYN, Sent, address};
use super::lives::found;
use super::node::{NEXT, Node, SHOT};
use super::ports::{close, give};
use crate::abi::bytes;
use crate::abi::packets::types::{packet_count, packet_settings, port_range};
use crate::kernel::bed::Port;
use crate::map::Map;

/// A frontend, a backend of another node, and the clients of it.
const WAYS: [(&str, &str, &str); 2] = [
    ("203.0.113.10:80", "10.2.0.5:8080", "198.51.100.7"),
    ("[2001:db8:f::10]:80", "[fd02::5]:8080", "[2001:db8:1::7]"),
];

/// More than are looked at by chance, and one at a time.
const PORTS: u16 = 1_000;

/// With `LONG` in the environment nearly as many as may wait for an answer at once.
fn ports() -> u16 {
    if std::env::var_os("LONG").is_some() { 16_000 } else { PORTS }
}

fn begin(node: &Node, (frontend, _, client): (&str, &str, &str), port: u16) -> i32 {
    node.come(&Sent::tcp(&format!("{client}:{port}"), frontend, SYN).frame()).0
}

#[test]
fn kernel_a_client_gets_a_port_for_another_node_while_there_is_one() {
    for way @ (frontend, backend, client) in WAYS {
        Node::test_with(2 * u32::from(ports()), move |node| {
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            give(node, 1_024, ports());
            for port in 1_024..1_024 + ports() {
                assert_eq!(begin(node, way, port), NEXT, "{port}");
            }
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 0);
            assert_eq!(begin(node, way, 65_535), SHOT, "all are taken");
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 1);
            let one = format!("{client}:{}", 1_024 + ports() / 2);
            close(node, &one, 2);
            assert_eq!(begin(node, way, 65_535), NEXT, "one has been closed for a second");
            assert!(found(node, &one).is_none());
        });
    }
}

/// Clients that ask when there is none cost no more than a few searches a second.
#[test]
fn kernel_no_flood_has_all_ports_searched_again_and_again() {
    let way @ (frontend, backend, client) = WAYS[0];
    Node::test_with(2 * u32::from(PORTS), move |node| {
        node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
        give(node, 1_024, PORTS);
        (1_024..1_024 + PORTS).for_each(|port| assert_eq!(begin(node, way, port), NEXT, "{port}"));
        (40_000..40_100).for_each(|port| assert_eq!(begin(node, way, port), SHOT, "{port}"));
        close(node, &format!("{client}:1500"), 2);
        let later = std::time::Duration::from_millis(1_100);
        std::thread::sleep(later);
        assert_eq!(begin(node, way, 50_000), NEXT, "they are searched again in another second");
    });
}

/// With the kernel's own range of ports made small, as docs/packets.md says, a node gives nearly all that there are.
#[test]
fn kernel_fifty_thousand_connections_to_one_backend_are_all_carried() {
    let ranges = [port_range { first: 1_024, count: 22_976 }, port_range { first: 32_768, count: 28_232 }];
    for (frontend, backend, client) in WAYS {
        Node::test_with(100_000, move |node| {
            node.serve(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            let snat_ports = ranges.iter().map(|it| u32::from(it.count)).sum();
            let mut settings = packet_settings { snat_ports, ..Default::default() };
            settings.snat[..2].copy_from_slice(&ranges);
            node.put(Map::PacketSettings, &0_u32.to_ne_bytes(), bytes(&settings));
            for port in 10_000..60_000 {
                let client = format!("{client}:{port}");
                let through = node.comes(&Sent::tcp(&client, frontend, SYN)).from.to_string();
                let answered = node.leaves(&Sent::tcp(backend, &through, SYN | ACK));
                assert_eq!((answered.from, answered.to), (address(frontend), address(&client)));
            }
            assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 0);
        });
    }
}
