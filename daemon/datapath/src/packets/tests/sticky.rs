//! Clients that return to the backend that they had.

use std::net::{IpAddr, SocketAddr};

use holdfast_core::list::{Scope, SlotState};
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, MemberKey, Membership, PortFacts, PortIndex, QuotaId, WordFlags};

use libbpf_rs::{MapCore, MapFlags};

use super::craft::{ACK, RST, SYN, Sent, TCP, address, see};
use super::node::{NEXT, Node};
use crate::kernel::bed::Port;
use crate::map::{self, Map};

/// A frontend, its local backends, its first client; the same of another service.
type Place = ([&'static str; 2], fn(u16) -> String, fn(u32) -> String);

const PLACES: [Place; 2] = [
    (
        ["203.0.113.10:80", "203.0.113.11:80"],
        |at| format!("10.1.0.{at}:8080"),
        |at| format!("198.{}.{}.{}", 18 + (at >> 16), at >> 8 & 255, at & 255),
    ),
    (
        ["[2001:db8:f::10]:80", "[2001:db8:f::11]:80"],
        |at| format!("[fd01::{at:x}]:8080"),
        |at| format!("[2001:db8:1::{:x}:{:x}]", at >> 16, at & 0xffff),
    ),
];

fn lead(node: &mut Node, index: u32, frontend: &str, backends: &[SocketAddr]) {
    lead_of(node, index, QuotaId(1), frontend, backends);
}

/// Leads a frontend of that quota to these backends.
fn lead_of(node: &mut Node, index: u32, share: QuotaId, frontend: &str, backends: &[SocketAddr]) {
    lead_as(node, index, (share, WordFlags::default()), frontend, backends);
}

fn lead_as(
    node: &mut Node,
    index: u32,
    (share, flags): (QuotaId, WordFlags),
    frontend: &str,
    backends: &[SocketAddr],
) {
    let flags = flags.with(WordFlags::AFFINITY, true);
    let port = PortIndex(index);
    for scope in [Scope::Cluster, Scope::Local] {
        for backend in backends {
            let member = MemberKey { port, membership: Membership::List(scope), backend: *backend };
            node.maps.execute(&Action::InsertMember(member, SlotState::Active)).unwrap();
        }
    }
    leave_out(node, index, 0);
    let base = 8 * index;
    node.serve_local(&Port { index, base, frontends: &[frontend], backends, flags, share, ..Port::TCP });
}

/// Ignores so many last bits of clients' addresses.
fn leave_out(node: &mut Node, index: u32, left_out: u8) {
    let facts = PortFacts { affinity_timeout: 10_800, ignored_bits: left_out };
    node.maps.execute(&Action::WriteFacts(PortIndex(index), facts)).unwrap();
}

/// The backend of a SYN.
fn begins(node: &Node, client: &str, port: u16, frontend: &str) -> SocketAddr {
    node.comes(&Sent::tcp(&format!("{client}:{port}"), frontend, SYN)).to
}

fn agrees(node: &Node, client: &str, port: u16, backend: SocketAddr) {
    node.leaves(&Sent::tcp(&backend.to_string(), &format!("{client}:{port}"), SYN | ACK));
}

/// A backend opens the connection, and then sends data that only a real client acknowledges.
fn answers(node: &Node, client: &str, port: u16, backend: SocketAddr) {
    agrees(node, client, port, backend);
    node.leaves(&Sent::by(TCP, &backend.to_string(), &format!("{client}:{port}"), ACK, b"answer"));
}

/// The backend of a SYN, after it has replied to the client.
fn begins_and_is_answered(node: &Node, client: &str, frontend: &str) -> SocketAddr {
    let first = begins(node, client, 40_000, frontend);
    answers(node, client, 40_000, first);
    first
}

/// Two backends, and eight that include the two.
fn few_and_many(backend: fn(u16) -> String) -> [Vec<SocketAddr>; 2] {
    [8..10, 2..10].map(|all| all.map(|at| address(&backend(at))).collect())
}

#[test]
fn kernel_simultaneous_connections_of_a_client_get_one_backend() {
    for ([frontend, _], backend, client) in PLACES {
        Node::test(move |node| {
            let backends: Vec<_> = (5..9).map(|at| address(&backend(at))).collect();
            lead(node, 1, frontend, &backends);
            let mut chosen = std::collections::BTreeSet::new();
            for at in 0..10 {
                let first = begins(node, &client(at), 40_000, frontend);
                assert!((40_001..40_005).all(|port| begins(node, &client(at), port, frontend) == first));
                chosen.insert(first);
            }
            assert!(chosen.len() > 1, "not all of them at the same: {chosen:?}");
        });
    }
}

/// Seconds for which a client is remembered, and after which it returns.
const KNOWN_FOR: u32 = 10_000;
const COMES_AGAIN: u64 = 7_000;

/// Ages all saved clients.
fn age_clients(node: &Node, seconds: u64) {
    let clients = map::find_handle(&node.handles, Map::Clients).unwrap();
    for key in clients.keys().collect::<Vec<_>>() {
        let mut client = clients.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let visit = client.last_chunk_mut::<8>().unwrap();
        *visit = u64::from_ne_bytes(*visit).wrapping_sub(seconds * 1_000_000_000).to_ne_bytes();
        node.put(Map::Clients, &key, &client);
    }
}

#[test]
fn kernel_a_client_that_returns_in_time_renews_its_affinity() {
    for ([frontend, _], backend, client) in PLACES {
        Node::test(move |node| {
            let [_, many] = few_and_many(backend);
            lead(node, 1, frontend, &many);
            let facts = PortFacts { affinity_timeout: KNOWN_FOR, ignored_bits: 0 };
            node.maps.execute(&Action::WriteFacts(PortIndex(1), facts)).unwrap();
            let all = || (0..10).map(client);
            let firsts: Vec<_> =
                all().map(|client| begins_and_is_answered(node, &client, frontend)).collect();
            for port in [40_001, 40_002] {
                age_clients(node, COMES_AGAIN);
                let again: Vec<_> = all().map(|client| begins(node, &client, port, frontend)).collect();
                assert_eq!(again, firsts, "{port}");
            }
        });
    }
}

/// By its address alone the client would get the same backend after each pause, with or without Maglev.
#[test]
fn kernel_a_client_whose_affinity_expired_may_get_any_backend() {
    for (([frontend, _], backend, client), by_maglev) in
        PLACES.into_iter().flat_map(|it| [false, true].map(|by_maglev| (it, by_maglev)))
    {
        Node::test(move |node| {
            let [_, many] = few_and_many(backend);
            let flags = WordFlags::default().with(WordFlags::MAGLEV, by_maglev);
            lead_as(node, 1, (QuotaId(1), flags), frontend, &many);
            // Every pause is too long.
            node.maps.execute(&Action::WriteFacts(PortIndex(1), PortFacts::default())).unwrap();
            let mut chosen = std::collections::BTreeSet::new();
            for port in (40_000..40_040).step_by(2) {
                let first = begins(node, &client(1), port, frontend);
                assert_eq!(begins(node, &client(1), port + 1, frontend), first, "both begin at once");
                answers(node, &client(1), port, first);
                chosen.insert(first);
            }
            assert!(chosen.len() > 1, "always {chosen:?}");
        });
    }
}

/// A backend without weight is not in the list but still a member.
#[test]
fn kernel_a_client_returns_to_a_member_that_left_the_list() {
    for ([frontend, _], backend, client) in PLACES {
        Node::test_with(256, move |node| {
            let [_, many] = few_and_many(backend);
            lead(node, 1, frontend, &many);
            let clients = 0..20;
            let firsts: Vec<_> =
                clients.clone().map(|at| begins_and_is_answered(node, &client(at), frontend)).collect();
            let stay = &many[4..];
            lead(node, 1, frontend, stay);
            for (at, first) in clients.zip(&firsts) {
                assert_eq!(begins(node, &client(at), 40_001, frontend), *first);
            }
            assert!(firsts.iter().any(|first| !stay.contains(first)));
            for at in 100..120 {
                let first = begins(node, &client(at), 40_000, frontend);
                assert!(stay.contains(&first), "{first} gets a new client");
            }
        });
    }
}

/// The list changes later, and by their number alone the clients would get other backends.
#[test]
fn kernel_affinity_begins_with_a_backends_reply() {
    for ([frontend, _], backend, client) in PLACES {
        Node::test(move |node| {
            let [few, many] = few_and_many(backend);
            lead(node, 1, frontend, &few);
            let firsts: Vec<_> = (0..20).map(|at| begins(node, &client(at), 40_000, frontend)).collect();
            for (at, first) in (0..10).zip(&firsts) {
                answers(node, &client(at), 40_000, *first);
            }
            lead(node, 1, frontend, &many);
            let again: Vec<_> = (0..20).map(|at| begins(node, &client(at), 40_001, frontend)).collect();
            assert_eq!(again[..10], firsts[..10], "the backend has replied to them");
            assert_ne!(again[10..], firsts[10..], "these may be forged");
        });
    }
}

/// Five ports of one quota, each with more clients than it has slots.
fn flood(node: &mut Node, frontends: &[String], backends: &[SocketAddr], client: fn(u32) -> String) {
    for (index, frontend) in (2..).zip(frontends) {
        lead_of(node, index, QuotaId(2), frontend, backends);
        for at in 0..20_000 {
            let sent = Sent::tcp(&format!("{}:40000", client(at)), frontend, SYN);
            let (verdict, frame) = node.come(&sent.frame());
            assert_eq!(verdict, NEXT, "{at}");
            answers(node, &client(at), 40_000, see(&frame, true).to);
        }
    }
}

/// Even real clients of one quota get no more than its part of the table.
#[test]
fn kernel_a_flood_of_one_service_moves_few_clients_of_another() {
    for ([frontend, other], backend, client) in PLACES {
        Node::test(move |node| {
            let [few, many] = few_and_many(backend);
            lead(node, 1, frontend, &few);
            let firsts: Vec<_> =
                (0..1_000).map(|at| begins_and_is_answered(node, &client(at), frontend)).collect();
            let ports: Vec<_> = (81..86).map(|port| other.replace(":80", &format!(":{port}"))).collect();
            flood(node, &ports, &few, client);
            lead(node, 1, frontend, &many);
            let again = |at| begins(node, &client(at), 40_001, frontend);
            let moved = (0..1_000).zip(&firsts).filter(|(at, first)| again(*at) != **first).count();
            assert!(moved < 20, "{moved} of 1000 have moved");
        });
    }
}

/// A backend accepts any SYN, and replies to a forged segment that does not fit.
#[test]
fn kernel_forged_segments_create_no_affinity() {
    for ([frontend, _], backend, client) in PLACES {
        Node::test(move |node| {
            let [few, many] = few_and_many(backend);
            lead(node, 1, frontend, &few);
            let firsts: Vec<_> = (0..20).map(|at| begins(node, &client(at), 40_000, frontend)).collect();
            for (at, first) in (0..20).zip(&firsts) {
                let (name, place) = (format!("{}:40000", client(at)), first.to_string());
                agrees(node, &client(at), 40_000, *first);
                node.comes(&Sent::tcp(&name, frontend, ACK));
                node.leaves(&Sent::tcp(&place, &name, ACK));
            }
            lead(node, 1, frontend, &many);
            let again: Vec<_> = (0..20).map(|at| begins(node, &client(at), 40_001, frontend)).collect();
            assert_ne!(again, firsts);
        });
    }
}

/// A client keeps its own slot, even among many.
#[test]
fn kernel_thousands_of_clients_of_one_service_keep_their_backends() {
    let ([frontend, _], backend, client) = PLACES[0];
    Node::test(move |node| {
        let [few, many] = few_and_many(backend);
        lead(node, 1, frontend, &few);
        let firsts: Vec<_> = (0..4_000)
            .map(|at| {
                let first = begins_and_is_answered(node, &client(at), frontend);
                node.comes(&Sent::tcp(&format!("{}:40000", client(at)), frontend, ACK | RST));
                first
            })
            .collect();
        lead(node, 1, frontend, &many);
        let moved = (0..4_000)
            .zip(&firsts)
            .filter(|(at, first)| begins(node, &client(*at), 40_001, frontend) != **first)
            .count();
        assert!(moved < 200, "{moved} of 4000 have moved");
    });
}

/// For each of the families: how many last bits do not count.
const LEFT_OUT: [&[u8]; 2] = [&[1, 8, 13, 24], &[1, 16, 33, 63, 64, 65, 72, 96]];

/// The same address with one bit flipped, counted from the last one.
fn turned(client: &str, bit: u8) -> String {
    match client.trim_matches(['[', ']']).parse().unwrap() {
        IpAddr::V4(it) => IpAddr::from((it.to_bits() ^ 1 << bit).to_be_bytes()).to_string(),
        IpAddr::V6(it) => format!("[{}]", IpAddr::from((it.to_bits() ^ 1 << bit).to_be_bytes())),
    }
}

/// The backends of clients whose addresses differ from this one in one of these bits.
fn begin_of(
    node: &Node,
    client: &str,
    bits: std::ops::Range<u8>,
    from: u16,
    frontend: &str,
) -> Vec<SocketAddr> {
    bits.map(|bit| begins(node, &turned(client, bit), from + u16::from(bit), frontend)).collect()
}

#[test]
fn kernel_clients_of_one_prefix_share_a_backend_and_neighbours_do_not() {
    for (([frontend, _], backend, client), lengths) in PLACES.into_iter().zip(LEFT_OUT) {
        Node::test(move |node| {
            let [_, many] = few_and_many(backend);
            lead(node, 1, frontend, &many);
            let client = client(77);
            for left_out in lengths {
                leave_out(node, 1, *left_out);
                // A port used before keeps its backend.
                let from = 20_000 + 300 * u16::from(*left_out);
                let first = begins(node, &client, from, frontend);
                let inside = begin_of(node, &client, 0..*left_out, from + 1, frontend);
                assert!(inside.iter().all(|it| *it == first), "{left_out}: {first} and {inside:?}");
                let outside = begin_of(node, &client, *left_out..left_out + 5, from + 100, frontend);
                assert!(outside.iter().any(|it| *it != first), "{left_out}: all at {first}");
            }
        });
    }
}

/// By their number alone, clients would move once there are more backends.
#[test]
fn kernel_a_reply_to_any_client_sets_the_prefixs_affinity() {
    for (([frontend, _], backend, client), left_out) in PLACES.into_iter().zip([8, 64]) {
        Node::test(move |node| {
            let [few, many] = few_and_many(backend);
            lead(node, 1, frontend, &few);
            leave_out(node, 1, left_out);
            // Each of another prefix.
            let clients: Vec<_> = (0..5).map(|bit| turned(&client(1), left_out + bit)).collect();
            let firsts: Vec<_> =
                clients.iter().map(|client| begins_and_is_answered(node, client, frontend)).collect();
            lead(node, 1, frontend, &many);
            leave_out(node, 1, left_out);
            for (client, first) in clients.iter().zip(&firsts) {
                let again = begin_of(node, client, 0..left_out, 41_000, frontend);
                assert!(again.iter().all(|it| it == first), "{client} at {first}, its prefix at {again:?}");
            }
            let others: Vec<_> = (0..5).map(|bit| turned(&clients[0], left_out + 5 + bit)).collect();
            let found: Vec<_> = others.iter().map(|it| begins(node, it, 41_000, frontend)).collect();
            assert!(found.iter().any(|it| !few.contains(it)), "none of them was there: {found:?}");
        });
    }
}

/// An entry of a client or another prefix does not separate it from the clients of the current prefix.
#[test]
fn kernel_clients_of_a_changed_prefix_share_one_backend_at_once() {
    for (([frontend, _], backend, client), left_out) in PLACES.into_iter().zip([8, 64]) {
        Node::test(move |node| {
            let [few, many] = few_and_many(backend);
            for (before, after) in [(0, left_out), (left_out, left_out + 4), (left_out + 4, left_out - 4)] {
                lead(node, 1, frontend, &few);
                leave_out(node, 1, before);
                let from = 40_000 + u16::from(before);
                answers(node, &client(1), from, begins(node, &client(1), from, frontend));
                lead(node, 1, frontend, &many);
                leave_out(node, 1, after);
                let port = 45_000 + 100 * u16::from(before);
                let now = begin_of(node, &client(1), 0..after, port, frontend);
                assert!(now.iter().all(|it| *it == now[0]), "{before}, then {after}: {now:?}");
                let from = from + 1_000;
                let first = begins(node, &client(1), from, frontend);
                answers(node, &client(1), from, first);
                let then = begin_of(node, &client(1), 0..after, port + 5_000, frontend);
                assert!(then.iter().all(|it| *it == first), "{before}, then {after}: {then:?}");
            }
        });
    }
}

/// Each of two services has its own prefix and clients.
#[test]
fn kernel_each_service_has_its_own_affinity_prefix() {
    for (([frontend, other], backend, client), left_out) in PLACES.into_iter().zip([8, 64]) {
        Node::test(move |node| {
            let [few, many] = few_and_many(backend);
            lead(node, 1, frontend, &few);
            lead(node, 2, other, &few);
            leave_out(node, 1, left_out);
            let clients: Vec<_> = (0..left_out).map(|bit| turned(&client(1), bit)).collect();
            let mine = begins_and_is_answered(node, &clients[0], frontend);
            let firsts: Vec<_> = clients.iter().map(|it| begins_and_is_answered(node, it, other)).collect();
            assert!(few.iter().all(|backend| firsts.contains(backend)), "each for itself: {firsts:?}");
            lead(node, 1, frontend, &many);
            leave_out(node, 1, left_out);
            lead(node, 2, other, &many);
            for (client, first) in clients.iter().zip(&firsts) {
                assert_eq!(begins(node, client, 41_000, frontend), mine);
                assert_eq!(begins(node, client, 41_000, other), *first);
            }
        });
    }
}
