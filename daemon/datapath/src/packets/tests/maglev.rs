//! Programs compute a client's backend so that every node selects the same one.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, PortFacts, PortIndex, WordFlags};

use super::craft::{SYN, Sent, address};
use super::node::{NODE, Node};
use crate::kernel::bed::Port;

/// A frontend, local backends, clients.
type Place = (&'static str, fn(u16) -> String, fn(u16) -> String);

const PLACES: [Place; 2] = [
    (
        "203.0.113.10:80",
        |at| format!("10.1.0.{at}:8080"),
        |at| format!("198.51.100.{at}:{}", 40_000 + at * 7),
    ),
    (
        "[2001:db8:f::10]:80",
        |at| format!("[fd01::{at:x}]:8080"),
        |at| format!("[2001:db8:1::{at:x}]:{}", 40_000 + at * 7),
    ),
];

fn mix(mixed: u64, low: u32, high: u32) -> u64 {
    let mixed = (mixed ^ (u64::from(high) << 32 | u64::from(low))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// An address and a port as in a packet, IPv4 as mapped.
fn mix_place(mixed: u64, address: IpAddr, port: u16) -> u64 {
    let octets = match address {
        IpAddr::V4(it) => it.to_ipv6_mapped().octets(),
        IpAddr::V6(it) => it.octets(),
    };
    let (words, _) = octets.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let mixed = mix(mixed, words[3], words[2] ^ u32::from(port.to_be()));
    mix(mixed, words[1], words[0])
}

/// The slot of a TCP client in a table of so many slots, in every version. `None`: the frontend is a node port, whose
/// address does not count.
fn place(client: SocketAddr, frontend: Option<IpAddr>, port: u16, places: u64) -> usize {
    let dialled = match frontend {
        Some(address) => mix_place(6, address, port),
        None => mix(mix(6, 0, u32::from(port.to_be())), 0, 0),
    };
    let mixed = mix_place(dialled, client.ip(), client.port());
    usize::try_from(((mixed >> 32) * places) >> 32).unwrap()
}

fn maglev() -> WordFlags {
    WordFlags::default().with(WordFlags::MAGLEV, true)
}

fn goes_to(node: &Node, client: &str, frontend: &str) -> SocketAddr {
    node.comes(&Sent::tcp(client, frontend, SYN)).to
}

#[test]
fn kernel_a_client_gets_the_backend_that_every_node_computes() {
    for (frontend, backend, client) in PLACES {
        Node::test_with(256, move |node| {
            let backends: Vec<_> = (2..10).map(|at| address(&backend(at))).collect();
            let port = Port { frontends: &[frontend], backends: &backends, flags: maglev(), ..Port::TCP };
            node.serve(&Port { index: 3, base: 16, ..port });
            let dialled = address(frontend);
            let mut chosen = BTreeSet::new();
            for at in 1..100 {
                let expected = backends[place(address(&client(at)), Some(dialled.ip()), dialled.port(), 8)];
                assert_eq!(goes_to(node, &client(at), frontend), expected, "{}", client(at));
                chosen.insert(expected);
            }
            assert_eq!(chosen.len(), 8, "each backend has clients");
        });
    }
}

/// Each node has another address, and a balancer sends a client to any node.
#[test]
fn kernel_at_a_node_port_the_nodes_address_does_not_count() {
    Node::test_with(256, |node| {
        let (_, backend, client) = PLACES[0];
        let backends: Vec<_> = (2..10).map(|at| address(&backend(at))).collect();
        let kind = FrontendType::NodePort;
        node.answers_node_ports_at("192.0.2.7".parse().unwrap());
        let port =
            Port { frontends: &["0.0.0.0:30080"], backends: &backends, flags: maglev(), kind, ..Port::TCP };
        node.serve(&port);
        for at in 1..60 {
            let expected = backends[place(address(&client(at)), None, 30_080, 8)];
            for address in [NODE.to_string(), "192.0.2.7".to_owned()] {
                assert_eq!(goes_to(node, &client(at), &format!("{address}:30080")), expected, "{address}");
            }
        }
    });
}

/// With affinity only the address counts, before any entry exists: a client that arrives at another node gets the same
/// backend.
#[test]
fn kernel_with_affinity_every_node_selects_a_clients_same_backend() {
    for (frontend, backend, client) in PLACES {
        Node::test_with(256, move |node| {
            let backends: Vec<_> = (2..10).map(|at| address(&backend(at))).collect();
            let flags = maglev().with(WordFlags::AFFINITY, true);
            // Every entry counts as expired.
            node.maps.execute(&Action::WriteFacts(PortIndex(1), PortFacts::default())).unwrap();
            node.serve(&Port { frontends: &[frontend], backends: &backends, flags, ..Port::TCP });
            let dialled = address(frontend);
            for at in 1..40 {
                let source = SocketAddr::new(address(&client(at)).ip(), 0);
                let expected = backends[place(source, Some(dialled.ip()), dialled.port(), 8)];
                for port in [40_000, 40_001] {
                    let client = SocketAddr::new(source.ip(), port).to_string();
                    assert_eq!(goes_to(node, &client, frontend), expected, "{client}");
                }
            }
        });
    }
}
