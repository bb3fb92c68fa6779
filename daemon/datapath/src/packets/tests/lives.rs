//! How long flows live, what ends them, and which packets do not belong to them.

use libbpf_rs::{MapCore, MapFlags};

use super::craft::{ACK, FIN, RST, SYN, Sent, address};
use super::network;
use super::node::{NEXT, Node, SHOT};
use super::wrapped::switches;
use crate::abi::flow::types::{self, flow_flag, flow_state};
use crate::abi::flow::{client_entry, encode_endpoint, translated_entry};
use crate::abi::packets::types::{packet_count, packet_settings, port_range};
use crate::abi::{as_bytes, from_bytes};
use crate::flows::LIFETIMES;
use crate::kernel::bed::Port;
use crate::map::{self, Map};
use crate::packets::DsrTransports;

const CLIENT: &str = "198.51.100.7:40000";
const OTHER: &str = "198.51.100.8:40000";
const FRONTEND: &str = "203.0.113.10:80";
const HERE: &str = "10.1.0.5:8080";
const HERE_TOO: &str = "10.1.0.6:8080";
const AWAY: &str = "10.2.0.5:8080";

const TCP: Port<'_> = Port { frontends: &[FRONTEND], ..Port::TCP };
const UDP: Port<'_> = Port { frontends: &[FRONTEND], ..Port::UDP };
const SCTP: Port<'_> = Port { frontends: &[FRONTEND], ..Port::SCTP };

fn map(node: &Node, map: Map) -> &libbpf_rs::MapHandle {
    map::find_handle(&node.handles, map).unwrap()
}

pub(super) fn now() -> u32 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    u32::try_from(now.tv_sec()).unwrap()
}

/// The flow of a client, and its number.
pub(super) fn found(node: &Node, client: &str) -> Option<(u32, types::flow)> {
    let client = encode_endpoint(address(client));
    all(node).find(|(_, it)| (it.client, it.client_port) == client)
}

/// All flows, by their numbers.
pub(super) fn all(node: &Node) -> impl Iterator<Item = (u32, types::flow)> {
    let record = |number: u32| -> types::flow {
        from_bytes(&map(node, Map::Flows).lookup(&number.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap())
            .unwrap()
    };
    let all = (0..map(node, Map::Flows).max_entries()).map(move |number| (number, record(number)));
    all.filter(|(_, it)| it.serial != 0)
}

#[track_caller]
fn flow_of(node: &Node, client: &str) -> types::flow {
    found(node, client).unwrap().1
}

/// Changes the record of a flow.
#[track_caller]
pub(super) fn change(node: &Node, client: &str, change: impl FnOnce(&mut types::flow)) {
    let (number, mut flow) = found(node, client).unwrap();
    change(&mut flow);
    node.put(Map::Flows, &number.to_ne_bytes(), as_bytes(&flow));
}

/// Ages a flow by so many seconds.
#[track_caller]
pub(super) fn age(node: &Node, client: &str, seconds: u32) {
    change(node, client, |flow| {
        [flow.seen, flow.began] = [flow.seen, flow.began].map(|at| at.wrapping_sub(seconds));
    });
}

fn packet(tcp: bool, from: &str, to: &str, flags: u8) -> Sent {
    if tcp { Sent::tcp(from, to, flags) } else { Sent::udp(from, to, b"x") }
}

/// The destination of a client's packet that continues.
#[track_caller]
fn goes(node: &Node, tcp: bool, client: &str, flags: u8) -> std::net::SocketAddr {
    node.comes(&packet(tcp, client, FRONTEND, flags)).to
}

/// A client and a local backend open a connection.
#[track_caller]
fn agree(node: &Node, tcp: bool, client: &str, backend: &str) {
    assert_eq!(goes(node, tcp, client, SYN), address(backend));
    assert_eq!(node.leaves(&packet(tcp, backend, client, SYN | ACK)).from, address(FRONTEND));
    assert_eq!(goes(node, tcp, client, ACK), address(backend));
}

#[track_caller]
pub(super) fn left_as_it_was(node: &Node, sent: &Sent) {
    let frame = sent.frame();
    assert_eq!(node.leave(&frame), (NEXT, frame), "{sent:?}");
}

fn begun(node: &Node) -> u64 {
    node.counted(packet_count::COUNT_FLOWS)
}

/// An encapsulated flow lives as long as its route leads to another node.
fn come_for_another_node(node: &Node, sent: &Sent) {
    network::lead_to_others("10.1.0.5");
    node.come(&sent.frame());
    network::lose("10.1.0.5");
}

#[test]
fn kernel_programs_and_daemon_apply_the_same_lifetimes() {
    // Without networks of nodes, encapsulated flows end at once.
    Node::test_as(64, switches(DsrTransports::Off), |node| {
        node.serve_local(&Port { index: 1, backends: &[address(HERE)], ..TCP });
        node.serve_local(&Port { index: 2, base: 2, backends: &[address(HERE)], ..UDP });
        node.serve_local(&Port { index: 3, base: 3, backends: &[address(HERE)], ..SCTP });
        let packet = |transport, flags| Sent::by(transport, CLIENT, FRONTEND, flags, b"x");
        for (case, lived, seconds) in LIFETIMES {
            let [transport, state, client_flags, backend_flags, unacked] = case;
            let other = found(node, CLIENT).filter(|(_, flow)| flow.transport != transport);
            if let Some((_, flow)) = other {
                age(node, CLIENT, 100_000);
                node.come(&packet(flow.transport, ACK).frame());
                assert!(found(node, CLIENT).is_none(), "datagrams come last: they would reopen the flow");
            }
            if found(node, CLIENT).is_none() {
                assert_eq!(node.comes(&packet(transport, SYN)).to, address(HERE));
            }
            let set = |idle: u32| {
                change(node, CLIENT, |flow| {
                    let seen = now().wrapping_sub(idle);
                    *flow = types::flow {
                        state,
                        client_flags,
                        backend_flags,
                        unacked,
                        seen,
                        began: seen.wrapping_sub(lived),
                        ..*flow
                    };
                });
            };
            let before = (begun(node), node.counted(packet_count::COUNT_MIDSTREAM));
            set(seconds - 5);
            if u32::from(client_flags) & flow_flag::FLOW_ENCAP.0 == 0 {
                node.come(&packet(transport, ACK).frame());
            } else {
                come_for_another_node(node, &packet(transport, ACK));
            }
            let after = (begun(node), node.counted(packet_count::COUNT_MIDSTREAM));
            assert_eq!(after, before, "{case:?} and {lived} lives for {seconds} s");
            set(seconds + 1);
            node.come(&packet(transport, ACK).frame());
            let after = (begun(node), node.counted(packet_count::COUNT_MIDSTREAM));
            assert_ne!(after, before, "{case:?} and {lived} ends after {seconds} s");
        }
    });
}

/// As left by a daemon that is killed while it ends a flow.
#[test]
fn kernel_a_stale_entry_keeps_no_client_away() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        let ((client, client_port), (frontend, frontend_port)) =
            (encode_endpoint(address(CLIENT)), encode_endpoint(address(FRONTEND)));
        let flow = types::flow {
            client,
            client_port,
            frontend,
            frontend_port,
            transport: 6,
            v4: 1,
            ..types::flow::default()
        };
        let key = client_entry(&flow);
        for number in [63_u32, 1_000_000] {
            node.put(Map::Entries4, key.bytes(), &number.to_ne_bytes());
            agree(node, true, CLIENT, HERE);
            age(node, CLIENT, 100_000);
            node.check_passed(&Sent::tcp(CLIENT, FRONTEND, ACK));
        }
        agree(node, true, OTHER, HERE);
        let (number, _) = found(node, OTHER).unwrap();
        node.put(Map::Entries4, key.bytes(), &number.to_ne_bytes());
        agree(node, true, CLIENT, HERE);
        agree(node, true, OTHER, HERE);
    });
}

#[test]
fn kernel_a_full_table_of_flows_to_other_nodes_has_all_entries() {
    Node::test(|node| {
        let all: Vec<_> =
            (0..8).map(|at| (format!("203.0.113.{at}:80"), format!("10.2.0.{}:80", at + 5))).collect();
        for (index, (frontend, backend)) in (1..).zip(&all) {
            node.serve_local(&Port {
                index,
                base: index,
                frontends: &[frontend],
                backends: &[address(backend)],
                ..Port::TCP
            });
        }
        for client in 0..map(node, Map::Flows).max_entries() {
            let (frontend, backend) = &all[client as usize % all.len()];
            let seen = node.comes(&Sent::tcp(&format!("198.51.100.7:{}", 40_000 + client), frontend, SYN));
            assert_eq!(seen.to, address(backend), "the {client}th");
        }
        assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 0);
    });
}

/// Without space for entries, no SNAT port is missing, and closed flows make space.
#[test]
fn kernel_a_client_without_entry_space_replaces_a_closed_flow() {
    Node::test(|node| {
        node.serve(&Port { backends: &[address(AWAY)], ..TCP });
        assert_eq!(goes(node, true, CLIENT, SYN), address(AWAY));
        let entries = map(node, Map::Entries4);
        for at in 0..10 * entries.max_entries() {
            let key = types::entry4_key { source: at, ..types::entry4_key::default() };
            let _ = entries.update(as_bytes(&key), &0_u32.to_ne_bytes(), MapFlags::ANY);
        }
        let syn = Sent::tcp(OTHER, FRONTEND, SYN).frame();
        assert_eq!(node.come(&syn).0, SHOT);
        let counted = |what| node.counted(what);
        assert_eq!((counted(packet_count::COUNT_FULL), counted(packet_count::COUNT_NO_PORT)), (1, 0));
        age(node, CLIENT, 31);
        // Randomly: it checks a few flows each time, or gets exactly the port of the closed one.
        assert!((0..5000).any(|_| node.come(&syn).0 == NEXT));
        assert_eq!(counted(packet_count::COUNT_NO_PORT), 0);
    });
}

/// cilium#8740, #33074: ports ran out until the next sweep.
#[test]
fn kernel_an_snat_port_is_taken_from_a_closed_flow() {
    Node::test(|node| {
        node.serve(&Port { backends: &[address(AWAY)], ..TCP });
        let mut settings = packet_settings { snat_ports: 1, ..Default::default() };
        settings.snat[0] = port_range { first: 61_000, count: 1 };
        node.put(Map::PacketSettings, &0_u32.to_ne_bytes(), as_bytes(&settings));
        let nat = "192.0.2.1:61000";
        assert_eq!(goes(node, true, CLIENT, SYN), address(AWAY));
        for (from, flags) in [(nat, SYN), (nat, FIN | ACK)] {
            assert_eq!(node.leaves(&Sent::tcp(CLIENT, AWAY, flags)).from, address(from));
            assert_eq!(node.comes(&Sent::tcp(AWAY, nat, flags | ACK)).to, address(CLIENT));
            assert_eq!(node.leaves(&Sent::tcp(AWAY, CLIENT, flags | ACK)).from, address(FRONTEND));
            assert_eq!(goes(node, true, CLIENT, FIN | ACK), address(AWAY));
        }
        let other = Sent::tcp(OTHER, FRONTEND, SYN);
        assert_eq!(node.come(&other.frame()).0, SHOT, "its last segments may still arrive");
        assert_eq!(node.counted(packet_count::COUNT_NO_PORT), 1);
        age(node, CLIENT, 2);
        assert_eq!(node.comes(&other).to, address(AWAY));
        assert_eq!(node.leaves(&Sent::tcp(OTHER, AWAY, SYN)).from, address(nat));
        assert_eq!(node.comes(&Sent::tcp(AWAY, nat, SYN | ACK)).to, address(OTHER));
        assert!(found(node, CLIENT).is_none(), "nothing of the former flow is left");
    });
}

#[test]
fn kernel_a_draining_node_opens_no_flow_and_keeps_existing_ones() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        assert_eq!(goes(node, true, CLIENT, SYN), address(HERE));
        let settings = packet_settings { drains: 1, ..Default::default() };
        node.put(Map::PacketSettings, &0_u32.to_ne_bytes(), as_bytes(&settings));
        assert_eq!(node.leaves(&Sent::tcp(HERE, CLIENT, SYN | ACK)).from, address(FRONTEND));
        for flags in [ACK, FIN | ACK] {
            assert_eq!(goes(node, true, CLIENT, flags), address(HERE));
            assert_eq!(node.leaves(&Sent::tcp(HERE, CLIENT, flags)).from, address(FRONTEND));
        }
        assert_eq!(goes(node, true, OTHER, SYN), address(FRONTEND), "the next proxy translates it");
        assert_eq!(goes(node, true, CLIENT, SYN), address(FRONTEND), "a reopened connection goes there too");
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 1);
    });
}

#[test]
fn kernel_while_flows_pause_data_continues_and_none_begins_or_ends() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        assert_eq!(goes(node, true, CLIENT, SYN), address(HERE));
        assert_eq!(node.leaves(&Sent::tcp(HERE, CLIENT, SYN | ACK)).from, address(FRONTEND));
        assert_eq!(goes(node, true, CLIENT, ACK), address(HERE));
        let until = |drains| {
            let settings = packet_settings { drains, ..Default::default() };
            node.put(Map::PacketSettings, &0_u32.to_ne_bytes(), as_bytes(&settings));
        };
        let said = |it: types::flow| (it.serial, it.state, it.client_flags, it.backend_flags);
        let before = said(flow_of(node, CLIENT));
        until(now() + 100);
        for flags in [SYN, FIN | ACK, RST] {
            assert_eq!(node.come(&Sent::tcp(CLIENT, FRONTEND, flags).frame()).0, SHOT, "{flags}");
            assert_eq!(node.leave(&Sent::tcp(HERE, CLIENT, flags | ACK).frame()).0, SHOT, "{flags}");
        }
        assert_eq!(node.come(&Sent::tcp(OTHER, FRONTEND, SYN).frame()).0, SHOT);
        assert_eq!(goes(node, true, CLIENT, ACK), address(HERE));
        assert_eq!(node.leaves(&Sent::tcp(HERE, CLIENT, ACK)).from, address(FRONTEND));
        assert_eq!((said(flow_of(node, CLIENT)), all(node).count()), (before, 1));
        // Even if the daemon has died, flows resume at that second.
        until(now());
        assert_eq!(goes(node, true, OTHER, SYN), address(HERE));
        assert_eq!(goes(node, true, CLIENT, FIN | ACK), address(HERE));
        assert_eq!(node.counted(packet_count::COUNT_FLOWS), 2);
    });
}

#[test]
fn kernel_two_forged_packets_end_no_connection() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        agree(node, true, CLIENT, HERE);
        node.serve_local(&Port { backends: &[address(HERE_TOO)], ..TCP });
        for flags in [RST, SYN, ACK, RST] {
            assert_eq!(goes(node, true, CLIENT, flags), address(HERE), "{flags}");
            if flags == SYN {
                let doubt = node.leaves(&Sent::tcp(HERE, CLIENT, ACK));
                assert_eq!(doubt.from, address(FRONTEND), "a challenge ACK (RFC 5961)");
            }
        }
        age(node, CLIENT, 500);
        assert_eq!(node.leaves(&Sent::tcp(HERE, CLIENT, ACK)).from, address(FRONTEND), "after an idle time");
        assert_eq!(goes(node, true, CLIENT, ACK), address(HERE));
        node.leaves(&Sent::tcp(HERE, CLIENT, FIN | ACK));
        assert_eq!(goes(node, true, CLIENT, RST), address(HERE));
        assert_eq!(goes(node, true, CLIENT, SYN), address(HERE_TOO), "both have closed it");
    });
}

#[test]
fn kernel_a_blind_ack_opens_no_long_lived_flow() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        let state = |node: &Node| u32::from(flow_of(node, CLIENT).state);
        agree(node, true, CLIENT, HERE);
        assert_eq!(state(node), flow_state::FLOW_OPEN.0);
        for flags in [RST, SYN | ACK] {
            node.leaves(&Sent::tcp(HERE, CLIENT, flags));
        }
        assert_eq!(state(node), flow_state::FLOW_OPENING.0, "the backend has no connection yet");
        assert_eq!(goes(node, true, CLIENT, ACK), address(HERE));
        assert_eq!(state(node), flow_state::FLOW_OPEN.0, "a client that got the reply acknowledges it again");
    });
}

/// A client that gave up reconnects from the same port; its backend may still have the old connection.
#[test]
fn kernel_a_former_connections_end_does_not_end_the_next_one() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        agree(node, true, CLIENT, HERE);
        [FIN | ACK, RST].iter().for_each(|flags| assert_eq!(goes(node, true, CLIENT, *flags), address(HERE)));
        agree(node, true, CLIENT, HERE);
        let before = flow_of(node, CLIENT).serial;
        age(node, CLIENT, 80_000);
        assert_eq!(goes(node, true, CLIENT, ACK), address(HERE), "it is open");
        node.leaves(&Sent::tcp(HERE, CLIENT, FIN | ACK));
        age(node, CLIENT, 3_000);
        assert_eq!(goes(node, true, CLIENT, ACK), address(HERE), "half closed after one FIN");
        assert_eq!(flow_of(node, CLIENT).serial, before);
    });
}

fn heard_of_backend(node: &Node, client: &str) -> u32 {
    u32::from(found(node, client).unwrap().1.backend_flags)
        & !(flow_flag::FLOW_COUNTED.0 | flow_flag::FLOW_SNAT_UNUSED.0)
}

/// The client and the backend may have a direct connection, and any host may have sent the first packet.
#[test]
fn kernel_a_forged_syn_takes_no_packet_of_a_connection_without_frontend() {
    for (client, frontend, backend) in [
        (CLIENT, FRONTEND, HERE),
        (CLIENT, FRONTEND, AWAY),
        ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080"),
    ] {
        Node::test(move |node| {
            node.serve_local(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            assert_eq!(node.comes(&Sent::tcp(client, frontend, SYN)).to, address(backend));
            let is_here = backend != AWAY;
            for flags in [ACK, FIN | ACK] {
                left_as_it_was(node, &Sent::tcp(client, backend, flags));
                if is_here {
                    left_as_it_was(node, &Sent::tcp(backend, client, flags));
                }
            }
            assert_eq!(heard_of_backend(node, client), 0);
            for (flags, said) in [
                (RST | ACK, flow_flag::FLOW_RST_SEEN.0),
                (SYN | ACK, flow_flag::FLOW_SYN_SEEN.0),
                (ACK, flow_flag::FLOW_SYN_SEEN.0),
            ] {
                assert_eq!(
                    node.leaves(&Sent::tcp(backend, client, flags)).from,
                    address(frontend),
                    "{flags}"
                );
                assert_eq!(heard_of_backend(node, client), said);
            }
        });
    }
}

/// A client, a frontend and a local backend, in each family.
pub(super) const BOTH: [(&str, &str, &str); 2] =
    [(CLIENT, FRONTEND, HERE), ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd01::5]:8080")];

/// Sends segments of both sides, one after the other, until a connection is closed.
#[track_caller]
fn say(node: &Node, (client, frontend, backend): (&str, &str, &str), flags: [u8; 2]) {
    assert_eq!(node.comes(&Sent::tcp(client, frontend, flags[0])).to, address(backend), "{flags:?}");
    assert_eq!(node.leaves(&Sent::tcp(backend, client, flags[1])).from, address(frontend), "{flags:?}");
}

/// A node dials another node's NodePort and that node's backends directly: its ports are reused before a closed flow
/// has expired.
#[test]
fn kernel_a_backend_dialled_directly_after_a_flow_keeps_its_address() {
    for end in [[FIN | ACK, FIN | ACK], [RST, FIN | ACK], [ACK, FIN | RST | ACK]] {
        for between @ (client, frontend, backend) in BOTH {
            Node::test(move |node| {
                node.serve_local(&Port {
                    frontends: &[frontend],
                    backends: &[address(backend)],
                    ..Port::TCP
                });
                for _ in 0..2 {
                    for flags in [[SYN, SYN | ACK], [ACK, ACK], end] {
                        say(node, between, flags);
                    }
                    for flags in [SYN | ACK, ACK, FIN | ACK] {
                        left_as_it_was(node, &Sent::tcp(backend, client, flags));
                    }
                    assert!(found(node, client).is_none(), "the closed flow has ended");
                }
            });
        }
    }
}

/// A backend's repetitions belong to the flow, as do all its segments before its FIN: a FIN or RST in the client's name
/// proves nothing.
#[test]
fn kernel_a_backends_repeated_syn_before_its_fin_ends_no_flow() {
    for between @ (client, frontend, backend) in BOTH {
        Node::test(move |node| {
            node.serve_local(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            for flags in [[SYN, SYN | ACK], [ACK, FIN | ACK], [SYN, SYN | ACK]] {
                say(node, between, flags);
            }
            assert_eq!(begun(node), 1, "the backend lost its half, and the client dialled the frontend");
        });
        Node::test(move |node| {
            node.serve_local(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            for from_client in [SYN, ACK, FIN | ACK, RST] {
                say(node, between, [from_client, SYN | ACK]);
                say(node, between, [from_client, SYN | ACK]);
            }
            say(node, between, [ACK, RST | ACK]);
            say(node, between, [ACK, SYN | ACK]);
            assert!(found(node, client).is_some());
            assert_eq!(begun(node), 1);
        });
    }
}

/// The reply to a client that reconnects comes from the frontend, even when repeated.
#[test]
fn kernel_a_reconnecting_client_gets_replies_from_the_frontend() {
    for between @ (_, frontend, backend) in BOTH {
        Node::test(move |node| {
            node.serve_local(&Port { frontends: &[frontend], backends: &[address(backend)], ..Port::TCP });
            for lived in 1..4 {
                for flags in [[SYN, SYN | ACK], [SYN, SYN | ACK], [ACK, FIN | ACK], [FIN | ACK, ACK]] {
                    say(node, between, flags);
                }
                assert_eq!(begun(node), lived);
            }
        });
    }
}

/// A client that dials a remote backend directly through this node keeps its own address there, and gets direct
/// replies.
#[test]
fn kernel_a_client_dialling_a_remote_backend_after_a_flow_keeps_its_address() {
    Node::test(|node| {
        node.serve(&Port { backends: &[address(AWAY)], ..TCP });
        assert_eq!(goes(node, true, CLIENT, SYN), address(AWAY));
        let nat = node.leaves(&Sent::tcp(CLIENT, AWAY, SYN)).from.to_string();
        for flags in [SYN | ACK, FIN | ACK, SYN | ACK] {
            assert_eq!(node.comes(&Sent::tcp(AWAY, &nat, flags)).to, address(CLIENT));
            assert_eq!(
                node.leaves(&Sent::tcp(AWAY, CLIENT, flags)).from,
                address(FRONTEND),
                "translated by its port"
            );
            assert_eq!(goes(node, true, CLIENT, FIN | ACK), address(AWAY));
        }
        for (from, to, flags) in [(CLIENT, AWAY, SYN), (AWAY, CLIENT, SYN | ACK), (CLIENT, AWAY, ACK)] {
            left_as_it_was(node, &Sent::tcp(from, to, flags));
        }
        assert!(found(node, CLIENT).is_none(), "the closed flow has ended");
        assert_eq!(goes(node, true, CLIENT, SYN), address(AWAY));
    });
}

#[test]
fn kernel_a_packet_from_the_nodes_own_address_opens_no_flow() {
    Node::test(|node| {
        node.serve_local(&Port { index: 1, backends: &[address(HERE)], ..TCP });
        node.serve_local(&Port { index: 2, base: 2, backends: &[address(HERE)], ..UDP });
        for tcp in [true, false] {
            node.check_passed(&packet(tcp, "192.0.2.1:40000", FRONTEND, SYN));
        }
        assert_eq!(begun(node), 0);
    });
}

/// How many flows one port gets while no other port needs space.
fn part(node: &Node) -> u32 {
    map(node, Map::Flows).max_entries() * 8 / 9 + 1
}

#[test]
fn kernel_udp_flows_with_replies_are_evicted_and_streams_are_not() {
    // A stream that pauses for more than ten seconds goes last.
    for (lived, silent, expected) in [(1, 11, NEXT), (3, 5, SHOT), (3, 12, NEXT)] {
        Node::test(move |node| {
            node.serve_local(&Port { backends: &[address(HERE)], ..UDP });
            for client in 0..part(node) {
                let client = format!("198.51.100.7:{}", 40_000 + client);
                agree(node, false, &client, HERE);
                change(node, &client, |flow| flow.began = flow.began.wrapping_sub(lived));
                age(node, &client, silent);
            }
            let met = node.come(&Sent::udp(OTHER, FRONTEND, b"x").frame()).0;
            assert_eq!(met, expected, "after {lived} s, silent for {silent} s");
        });
    }
}

/// Clients without a reply make space for others of the same service, in a table of any size.
#[test]
fn kernel_a_full_table_evicts_clients_without_replies() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        let client = |at: u32| format!("198.51.100.7:{}", 40_000 + at);
        for at in 0..5 {
            agree(node, true, &client(at), HERE);
        }
        let all = part(node) + 20;
        (5..all).for_each(|at| assert_eq!(goes(node, true, &client(at), SYN), address(HERE), "{at}"));
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERED), 20);
        assert_eq!(node.counted(packet_count::COUNT_FULL), 0);
        assert!((0..5).chain([all - 1]).all(|at| found(node, &client(at)).is_some()));
    });
}

/// As for logs and metrics: no reply ever comes, and the sender is no flood.
#[test]
fn kernel_an_unanswered_stream_is_not_evicted_while_it_continues() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..UDP });
        let most = map(node, Map::Flows).max_entries();
        assert_eq!(goes(node, false, CLIENT, 0), address(HERE));
        change(node, CLIENT, |flow| flow.began = flow.began.wrapping_sub(10));
        let other = |at: u32| format!("198.51.100.8:{}", 40_000 + at);
        (0..3 * most).for_each(|at| assert_eq!(goes(node, false, &other(at), 0), address(HERE), "{at}"));
        assert!(found(node, CLIENT).is_some());
        age(node, CLIENT, 12);
        (0..most).for_each(|at| assert_eq!(goes(node, false, &other(at), 0), address(HERE), "{at}"));
        assert!(found(node, CLIENT).is_none(), "it is idle");
    });
}

/// A client sends once a second to a backend that replies a thousand times.
#[test]
fn kernel_a_udp_client_leaves_a_gone_backend_despite_its_replies() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..UDP });
        agree(node, false, CLIENT, HERE);
        node.serve_local(&Port { backends: &[address(HERE_TOO)], ..UDP });
        age(node, CLIENT, 2);
        let last = node.leaves(&Sent::udp(HERE, CLIENT, b"x"));
        assert_eq!((last.from, last.to), (address(FRONTEND), address(CLIENT)), "packets in flight arrive");
        assert_eq!(goes(node, false, CLIENT, 0), address(HERE_TOO));
    });
}

/// A port index goes to another port after its service is gone.
#[test]
fn kernel_a_udp_flow_follows_its_frontends_current_port() {
    Node::test(|node| {
        let (backends, others) = ([address(HERE)], [address(HERE_TOO)]);
        node.serve_local(&Port { backends: &backends, ..UDP });
        agree(node, false, CLIENT, HERE);
        node.serve_local(&Port { index: 2, base: 8, backends: &backends, ..UDP });
        node.serve_local(&Port { frontends: &["203.0.113.99:80"], backends: &others, ..Port::UDP });
        age(node, CLIENT, 2);
        assert_eq!(goes(node, false, CLIENT, 0), address(HERE));
        assert_eq!(begun(node), 1, "it is the same flow");
        node.serve_local(&Port { index: 2, base: 8, backends: &others, ..UDP });
        node.serve_local(&Port { frontends: &["203.0.113.99:80"], backends: &backends, ..Port::UDP });
        age(node, CLIENT, 2);
        assert_eq!(goes(node, false, CLIENT, 0), address(HERE_TOO), "it is not a backend of the other port");
    });
}

#[test]
fn kernel_a_late_reply_arrives_and_revives_no_flow() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..UDP });
        assert_eq!(goes(node, false, CLIENT, 0), address(HERE));
        age(node, CLIENT, 40);
        let before = flow_of(node, CLIENT);
        assert_eq!(node.leaves(&Sent::udp(HERE, CLIENT, b"x")).from, address(FRONTEND));
        assert_eq!(as_bytes(&flow_of(node, CLIENT)), as_bytes(&before), "the daemon may be ending it");
    });
}

/// An equal flow may have been opened in another record since.
#[test]
fn kernel_ending_a_flow_removes_no_other_flows_entry() {
    Node::test(|node| {
        node.serve_local(&Port { backends: &[address(HERE)], ..TCP });
        agree(node, true, CLIENT, HERE);
        let key = translated_entry(&flow_of(node, CLIENT));
        node.put(Map::Entries4, key.bytes(), &17_u32.to_ne_bytes());
        age(node, CLIENT, 100_000);
        node.check_passed(&Sent::tcp(CLIENT, FRONTEND, ACK));
        let leads = map(node, Map::Entries4).lookup(key.bytes(), MapFlags::ANY).unwrap();
        assert_eq!(leads, Some(17_u32.to_ne_bytes().to_vec()));
    });
}
