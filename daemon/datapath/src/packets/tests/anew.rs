//! Clients that reconnect from the port of a connection whose backend is gone, and how long an idle connection is kept.

use std::net::SocketAddr;

use super::craft::{ACK, FIN, RST, SYN, Sent, address, error};
use super::lives::{BOTH, age, found};
use super::node::{NEXT, Node, SHOT};
use crate::abi::packets::types::packet_count;
use crate::kernel::bed::Port;

/// Another backend for each of [`BOTH`].
const OTHERS: [&str; 2] = ["10.1.0.6:8080", "[fd01::6]:8080"];

type Way = (&'static str, &'static str, &'static str, &'static str);

/// Runs a test in each family: client, frontend, a backend, another backend.
fn in_both(test: fn(&mut Node, Way)) {
    for ((client, frontend, backend), other) in BOTH.into_iter().zip(OTHERS) {
        Node::test(move |node| test(node, (client, frontend, backend, other)));
    }
}

fn lead(node: &mut Node, frontend: &str, backends: &[&str]) {
    let backends: Vec<_> = backends.iter().map(|it| address(it)).collect();
    node.serve_local(&Port { frontends: &[frontend], backends: &backends, ..Port::TCP });
}

#[track_caller]
fn goes(node: &Node, (client, frontend, ..): Way, flags: u8) -> std::net::SocketAddr {
    node.comes(&Sent::tcp(client, frontend, flags)).to
}

/// The client's data.
fn asked((client, frontend, ..): Way) -> Sent {
    Sent { payload: b"ask".to_vec(), ..Sent::tcp(client, frontend, ACK) }
}

/// The backend refuses the client's SYN.
fn refused((client, _, backend, _): Way) -> Sent {
    Sent { sequence: 0, ..Sent::tcp(backend, client, RST | ACK) }
}

#[track_caller]
fn agree(node: &Node, way @ (client, frontend, backend, _): Way) {
    assert_eq!(goes(node, way, SYN), address(backend));
    assert_eq!(node.leaves(&Sent::tcp(backend, client, SYN | ACK)).from, address(frontend));
    assert_eq!(goes(node, way, ACK), address(backend));
}

/// Waits until the next packet is in another second.
fn next_second(node: &Node, (client, ..): Way) {
    age(node, client, 1);
}

#[test]
fn kernel_a_reconnect_from_a_dead_backends_connection_gets_a_live_backend() {
    in_both(|node, way @ (_, frontend, backend, other)| {
        for end in [&[ACK][..], &[RST], &[FIN | ACK]] {
            lead(node, frontend, &[backend]);
            agree(node, way);
            lead(node, frontend, &[other]);
            end.iter().for_each(|flags| assert_eq!(goes(node, way, *flags), address(backend)));
            next_second(node, way);
            goes(node, way, SYN);
            next_second(node, way);
            assert_eq!(goes(node, way, SYN), address(other), "{end:?}");
            age(node, way.0, 100_000);
            node.come(&Sent::tcp(way.0, frontend, ACK).frame());
        }
    });
}

#[test]
fn kernel_an_unanswered_client_gets_another_backend_by_its_first_syn() {
    in_both(|node, way @ (_, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        lead(node, frontend, &[other]);
        next_second(node, way);
        assert_eq!(node.comes(&asked(way)).to, address(backend), "a connection keeps its backend");
        next_second(node, way);
        assert_eq!(goes(node, way, RST), address(backend));
        assert_eq!(goes(node, way, SYN), address(other));
    });
}

#[test]
fn kernel_an_unanswered_syn_is_reassigned_when_its_backend_is_gone() {
    in_both(|node, way @ (_, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        assert_eq!(goes(node, way, SYN), address(backend));
        next_second(node, way);
        assert_eq!(goes(node, way, SYN), address(backend), "while the frontend has it");
        lead(node, frontend, &[other]);
        next_second(node, way);
        assert_eq!(goes(node, way, SYN), address(other));
        lead(node, frontend, &[]);
        next_second(node, way);
        assert_ne!(node.come(&Sent::tcp(way.0, frontend, SYN).frame()).0, NEXT, "no backend serves");
    });
}

/// The backend is alive: it replies to the SYN, and the client's connection continues.
#[test]
fn kernel_a_forged_syn_moves_no_connection_from_a_leaving_backend() {
    in_both(|node, way @ (client, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        lead(node, frontend, &[other]);
        for flags in [RST, SYN, ACK, SYN, SYN, RST, SYN] {
            next_second(node, way);
            assert_eq!(goes(node, way, flags), address(backend), "{flags}");
            assert_eq!(node.leaves(&Sent::tcp(backend, client, ACK)).from, address(frontend), "{flags}");
        }
    });
}

/// The pod of a deleted service lives on for a while and accepts any connection.
#[test]
fn kernel_a_deleted_services_pod_gets_no_connection_of_its_successor() {
    in_both(|node, way @ (client, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        let others = [address(other)];
        node.serve_local(&Port { index: 2, base: 8, frontends: &[frontend], backends: &others, ..Port::TCP });
        next_second(node, way);
        for flags in [RST, SYN] {
            assert_eq!(goes(node, way, flags), address(backend), "{flags}");
        }
        assert_eq!(node.leave(&Sent::tcp(backend, client, SYN | ACK).frame()).0, SHOT);
        assert_eq!(goes(node, way, SYN), address(other), "the repeated SYN goes there too");
    });
}

/// A removed backend that has no connection refuses the client's SYN. The client never hears of it: it repeats its SYN.
#[test]
fn kernel_a_removed_backend_refuses_no_client_that_reconnects() {
    in_both(|node, way @ (client, frontend, backend, other)| {
        for end in [&[][..], &[RST], &[RST | ACK], &[FIN | ACK], &[FIN | ACK, RST]] {
            lead(node, frontend, &[backend]);
            agree(node, way);
            lead(node, frontend, &[other]);
            end.iter().for_each(|flags| assert_eq!(goes(node, way, *flags), address(backend)));
            assert_eq!(goes(node, way, SYN), address(backend), "it may know the connection: {end:?}");
            assert_eq!(node.leave(&refused(way).frame()).0, SHOT, "{end:?}");
            assert_eq!(goes(node, way, SYN), address(other), "{end:?}");
            age(node, client, 100_000);
            node.come(&Sent::tcp(client, frontend, ACK).frame());
        }
    });
}

#[test]
fn kernel_a_client_hears_that_a_listed_backend_refuses() {
    in_both(|node, way @ (_, frontend, backend, _)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        for flags in [RST, SYN] {
            assert_eq!(goes(node, way, flags), address(backend), "{flags}");
        }
        assert_eq!(node.leaves(&refused(way)).from, address(frontend));
    });
}

/// A stranger sent the SYN. The number of the backend's RST is the connection's, even where the backend did not reply
/// to the SYN, as where it limits such replies.
#[test]
fn kernel_a_removed_backend_may_reset_its_connection() {
    in_both(|node, way @ (client, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        lead(node, frontend, &[other]);
        for flags in [RST, SYN] {
            assert_eq!(goes(node, way, flags), address(backend), "{flags}");
        }
        for flags in [RST, RST | ACK] {
            assert_eq!(node.leaves(&Sent::tcp(backend, client, flags)).from, address(frontend), "{flags}");
        }
        assert_eq!(goes(node, way, SYN), address(other));
    });
}

/// The client gave up before it acknowledged anything, so no connection could be cut.
#[test]
fn kernel_a_client_that_resets_an_opening_connection_gets_a_listed_backend() {
    in_both(|node, way @ (client, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        let begin = |node: &Node| {
            assert_eq!(goes(node, way, SYN), address(backend));
            assert_eq!(node.leaves(&Sent::tcp(backend, client, SYN | ACK)).from, address(frontend));
        };
        begin(node);
        assert_eq!(goes(node, way, RST), address(backend));
        begin(node);
        lead(node, frontend, &[other]);
        assert_eq!(goes(node, way, SYN), address(backend), "the backend has accepted it");
        assert_eq!(goes(node, way, RST), address(backend));
        assert_eq!(goes(node, way, SYN), address(other));
    });
}

/// A removed backend's node or a router says that it is out of reach.
#[test]
fn kernel_no_client_that_reconnects_hears_that_a_removed_backend_is_out_of_reach() {
    in_both(|node, way @ (client, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        let v4 = address(backend).is_ipv4();
        let [from, to] = [backend, client].map(|it| address(it).ip().to_string());
        let [no_route, too_big] = if v4 { [(3, 1), (3, 4)] } else { [(1, 0), (2, 0)] };
        let quoted = Sent::tcp(client, backend, SYN).packet();
        let is_heard = |node: &Node, kind| node.leave(&error(&from, &to, kind, &quoted, 48)).0 == NEXT;
        assert_eq!(goes(node, way, SYN), address(backend));
        assert!(is_heard(node, no_route), "the frontend leads to it");
        lead(node, frontend, &[other]);
        assert!(is_heard(node, too_big));
        assert!(!is_heard(node, no_route));
        next_second(node, way);
        assert_eq!(goes(node, way, SYN), address(other));
    });
}

/// A SYN-ACK repeated after a loss opens no other connection.
#[test]
fn kernel_a_leaving_backend_that_repeats_its_syn_ack_keeps_its_client() {
    in_both(|node, way @ (client, frontend, backend, other)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        lead(node, frontend, &[other]);
        assert_eq!(node.leaves(&Sent::tcp(backend, client, SYN | ACK)).from, address(frontend));
        assert_eq!(goes(node, way, ACK), address(backend));
    });
}

/// A backend among many is found at any position of its list.
#[test]
fn kernel_a_syn_keeps_its_backend_while_its_frontend_has_it() {
    in_both(|node, way @ (_, frontend, backend, _)| {
        lead(node, frontend, &[backend]);
        agree(node, way);
        let (host, v4) = (address(backend).ip(), address(backend).is_ipv4());
        let near = |at: usize| match v4 {
            true => format!("10.1.0.{at}:8080"),
            false => format!("[fd01::{at:x}]:8080"),
        };
        for (before, after) in [(0, 0), (0, 1), (1, 0), (2, 5), (4, 4), (4, 11)] {
            let all: Vec<_> = (5 - before..=5 + after).map(near).collect();
            lead(node, frontend, &all.iter().map(String::as_str).collect::<Vec<_>>());
            for _ in 0..2 {
                next_second(node, way);
                assert_eq!(goes(node, way, SYN).ip(), host, "{before} before it, {after} after");
            }
        }
    });
}

/// The slots of a table for few backends.
const PLACES: u32 = 16_381;

/// Runs a test with a frontend, sixteen backends and a hundred clients of each family.
fn with_many(test: fn(&mut Node, &'static str, &[SocketAddr], &[String])) {
    type Named = fn(u16) -> String;
    let v4: (_, Named, Named) =
        ("203.0.113.10:80", |at| format!("10.1.0.{at}:8080"), |at| format!("198.51.100.{at}:40000"));
    let v6: (_, Named, Named) = (
        "[2001:db8:f::10]:80",
        |at| format!("[fd01::{at:x}]:8080"),
        |at| format!("[2001:db8:1::{at:x}]:40000"),
    );
    for (frontend, backend, client) in [v4, v6] {
        Node::test_with(512, move |node| {
            let backends: Vec<_> = (2..18).map(|at| address(&backend(at))).collect();
            let clients: Vec<_> = (1..101).map(client).collect();
            test(node, frontend, &backends, &clients);
        });
    }
}

/// Backends are found in an unordered table too; one that has left is not.
#[test]
fn kernel_a_syn_keeps_its_backend_while_the_maglev_table_has_it() {
    with_many(|node, frontend, backends, clients| {
        let port = Port { frontends: &[frontend], backends, places: PLACES, ..Port::TCP };
        node.serve(&port);
        let asks = |node: &Node, client: &String| {
            let goes = node.comes(&Sent::tcp(client, frontend, SYN)).to;
            age(node, client, 1);
            goes
        };
        let first: Vec<_> = clients.iter().map(|client| asks(node, client)).collect();
        let again: Vec<_> = clients.iter().map(|client| asks(node, client)).collect();
        assert_eq!(first, again);
        let stay = &backends[8..];
        node.serve(&Port { backends: stay, ..port });
        for (client, first) in clients.iter().zip(first) {
            let now = asks(node, client);
            assert!(stay.contains(&now), "{client} goes to {now}, which has left");
            assert!(now == first || !stay.contains(&first), "{client} left {first}");
        }
    });
}

/// Conntrack also gives up after 300 seconds.
#[test]
fn kernel_unacknowledged_data_keeps_no_flow_for_a_day() {
    in_both(|node, way @ (client, frontend, backend, _)| {
        lead(node, frontend, &[backend]);
        let midway = |node: &Node| node.counted(packet_count::COUNT_MIDSTREAM);
        agree(node, way);
        next_second(node, way);
        assert_eq!(node.comes(&asked(way)).to, address(backend));
        assert_eq!(node.leaves(&Sent::tcp(backend, client, ACK)).from, address(frontend));
        age(node, client, 80_000);
        assert_eq!(goes(node, way, ACK), address(backend), "a flow with a reply is kept for a day");
        age(node, client, 80_000);
        assert_eq!(node.comes(&asked(way)).to, address(backend));
        age(node, client, 290);
        assert_eq!(goes(node, way, ACK), address(backend));
        age(node, client, 302);
        node.come(&asked(way).frame());
        assert_eq!(midway(node), 1, "the flow has ended");
        assert!(found(node, client).is_none());
    });
}
