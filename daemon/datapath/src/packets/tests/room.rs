//! Which flows are evicted from a full table, and which are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::craft::{ACK, SYN, Sent, TCP, address};
use super::lives::{self, age, all, change, found};
use super::node::{NEXT, Node, SHOT};
use crate::abi::flow::types::{self, flow_flag, flow_state};
use crate::abi::packets::types::{lifetime, packet_count};
use crate::flows::eviction_rank::{self, EvictionRank};
use crate::kernel::bed::Port;
use holdfast_core::op::QuotaId;

/// A frontend and its local backend, a second pair, and a client without its port.
type Place<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

const PLACES: [Place<'static>; 2] = [
    ("203.0.113.10:53", "10.1.0.5:53", "203.0.113.11:80", "10.1.0.6:8080", "198.51.100.7"),
    ("[2001:db8:f::10]:53", "[fd01::5]:53", "[2001:db8:f::11]:80", "[fd01::6]:8080", "[2001:db8:1::7]"),
];

const FLOWS: u32 = 256;

/// Runs a test in each family: one service over UDP, and over TCP another one of another quota.
fn in_both(test: fn(&Node, Place<'_>)) {
    for place @ (asked, answers, other, backend, _) in PLACES {
        Node::test_with(FLOWS, move |node| {
            node.serve_local(&Port { frontends: &[asked], backends: &[address(answers)], ..Port::UDP });
            let to = [address(backend)];
            let second = Port { index: 2, base: 8, frontends: &[other], backends: &to, ..Port::TCP };
            node.serve_local(&Port { share: QuotaId(2), ..second });
            test(node, place);
        });
    }
}

fn ask(node: &Node, (asked, answers, .., client): Place<'_>, port: u16) {
    let client = format!("{client}:{port}");
    assert_eq!(node.come(&Sent::udp(&client, asked, b"ask").frame()).0, NEXT, "{client}");
    assert_eq!(node.leaves(&Sent::udp(answers, &client, b"told")).from, address(asked));
}

fn connect(node: &Node, (_, _, other, backend, client): Place<'_>, port: u16) -> bool {
    let client = format!("{client}:{port}");
    if node.come(&Sent::tcp(&client, other, SYN).frame()).0 != NEXT {
        return false;
    }
    assert_eq!(node.leaves(&Sent::tcp(backend, &client, SYN | ACK)).from, address(other));
    assert_eq!(node.comes(&Sent::tcp(&client, other, ACK)).to, address(backend));
    true
}

/// Forged requests, faster than any of them ages.
#[test]
fn kernel_answered_requests_displace_no_clients_of_another_service() {
    in_both(|node, place| {
        for round in 0..4 {
            (0..500).for_each(|at| ask(node, place, 2_000 + 500 * round + at));
            (0..10).for_each(|at| assert!(connect(node, place, 30_000 + 10 * round + at), "{round} {at}"));
        }
        assert_eq!(node.counted(packet_count::COUNT_FULL), 0);
        let all = (30_000..30_040).all(|port| found(node, &format!("{}:{port}", place.4)).is_some());
        assert!(all, "no connection was evicted for a request");
    });
}

/// Sends forged streams of datagrams, slow enough to be cheap, without replies. Returns how many got a flow.
fn flood_of_streams(node: &Node, (asked, .., client): Place<'_>, ports: std::ops::Range<u16>) -> usize {
    let lasts = |port: &u16| {
        let client = format!("{client}:{port}");
        let has_room = node.come(&Sent::udp(&client, asked, b"go on").frame()).0 == NEXT;
        if has_room {
            change(node, &client, |flow| flow.began = flow.seen.wrapping_sub(60));
        }
        has_room
    };
    ports.filter(lasts).count()
}

/// UDP has no handshake, so any host can open any number of flows from any addresses.
#[test]
fn kernel_unanswered_streams_evict_only_each_other() {
    let shares = [QuotaId(1), QuotaId(2)];
    for (place, share) in PLACES.into_iter().flat_map(|place| shares.map(|share| (place, share))) {
        let (asked, answers, other, backend, client) = place;
        Node::test_with(FLOWS, move |node| {
            let to = [address(answers)];
            node.serve_local(&Port { share: QuotaId(1), frontends: &[asked], backends: &to, ..Port::UDP });
            let to = [address(backend)];
            let second = Port { index: 2, base: 8, frontends: &[other], backends: &to, ..Port::TCP };
            node.serve_local(&Port { share, ..second });
            (0..30).for_each(|at| assert!(connect(node, place, 30_000 + at)));
            (0..30).for_each(|at| ask(node, place, 31_000 + at));
            (0..30).for_each(|at| {
                ask(node, place, 32_000 + at);
                change(node, &format!("{client}:{}", 32_000 + at), |flow| {
                    flow.began = flow.began.wrapping_sub(60);
                });
            });
            assert_eq!(flood_of_streams(node, place, 2_000..2_500), 500);
            (0..30).for_each(|at| assert!(connect(node, place, 33_000 + at), "a new client, {share:?}"));
            assert_eq!(flood_of_streams(node, place, 2_500..3_000), 500);
            assert_eq!(node.counted(packet_count::COUNT_FULL), 0);
            let is_kept = |port: u16| found(node, &format!("{client}:{port}")).is_some();
            for (what, from) in [("connections", 30_000), ("conversations", 32_000), ("new ones", 33_000)] {
                assert_eq!((from..from + 30).filter(|port| is_kept(*port)).count(), 30, "{what}, {share:?}");
            }
            assert!(node.counted(packet_count::COUNT_UNANSWERED) > 0);
        });
    }
}

/// A flow with a recent reply may continue, as a handshake over UDP does. A slow machine may miss that.
#[test]
fn kernel_unanswered_streams_are_evicted_before_recent_replies() {
    in_both(|node, place @ (.., client)| {
        flood_of_streams(node, place, 2_000..2_300);
        let mut judged = 0;
        // So few that a random sample never consists of these alone.
        for round in 0..3 {
            let (began, asked) = (lives::now(), 30_000 + 10 * round..30_010 + 10 * round);
            asked.clone().for_each(|port| ask(node, place, port));
            flood_of_streams(node, place, 2_300 + 50 * round..2_350 + 50 * round);
            let kept = asked.filter(|port| found(node, &format!("{client}:{port}")).is_some()).count();
            if lives::now() - began <= lifetime::LIFE_TIME_WAIT.0 {
                assert_eq!(kept, 10, "{round}");
                judged += 1;
            }
        }
        assert!(judged > 0);
    });
}

#[test]
fn kernel_no_service_fills_the_table_of_flows() {
    in_both(|node, place| {
        let most = (0..300).find(|at| !connect(node, place, 30_000 + at)).unwrap();
        let parts = FLOWS / 9;
        assert!((7 * parts..=8 * parts + 8).contains(&most.into()), "alone it gets eight ninths: {most}");
        assert_eq!(node.counted(packet_count::COUNT_FULL), 1);
        (0..100).for_each(|at| ask(node, place, 2_000 + at));
        assert_eq!(node.counted(packet_count::COUNT_FULL), 1);
        let all = (30_000..30_000 + most).all(|port| found(node, &format!("{}:{port}", place.4)).is_some());
        assert!(all, "live flows stay");
    });
}

/// Eight ports would get 64 of 65 parts of the table, if each had its own quota.
#[test]
fn kernel_a_quota_gets_no_more_space_by_many_ports() {
    for (asked, answers, other, backend, client) in PLACES {
        Node::test_with(FLOWS, move |node| {
            let own = [address(answers)];
            node.serve_local(&Port { frontends: &[asked], backends: &own, ..Port::TCP });
            let ports: Vec<String> =
                (0..8).map(|at| other.replace(":80", &format!(":{}", 81 + at)).to_owned()).collect();
            for (index, frontend) in (3..).zip(&ports) {
                let (frontends, backends) = (&[frontend.as_str()], &[address(backend)]);
                let port = Port { index, base: 8 * index, frontends, backends, ..Port::TCP };
                node.serve_local(&Port { share: QuotaId(3), ..port });
            }
            let opens = |at: u16, to: &str, backend: &str| {
                let (client, to) = (format!("{client}:{at}"), address(to));
                if node.come(&Sent::tcp(&client, &to.to_string(), SYN).frame()).0 != NEXT {
                    return false;
                }
                node.leaves(&Sent::tcp(backend, &client, SYN | ACK));
                node.comes(&Sent::tcp(&client, &to.to_string(), ACK));
                true
            };
            let tenants = (0..300).zip(ports.iter().cycle());
            let opened = tenants.filter(|(at, port)| opens(30_000 + at, port, backend)).count();
            assert!((200..=228 + 8).contains(&opened), "together they get eight ninths: {opened}");
            let bystanders = (0..16).filter(|at| opens(20_000 + at, asked, answers)).count();
            assert_eq!(bystanders, 16);
        });
    }
}

/// Live connections of as many quotas as fill the table with small parts, then of further quotas by turns. The table
/// stays full while those connections live.
#[test]
fn kernel_quotas_with_connections_leave_space_to_small_ones() {
    const MANY: u32 = 4096;
    for (.., other, backend, client) in PLACES {
        Node::test_with(MANY, move |node| {
            let frontends: Vec<String> =
                (0..16 + 64).map(|at| other.replace(":80", &format!(":{}", 100 + at))).collect();
            for (index, frontend) in (1..).zip(&frontends) {
                let (frontends, backends) = (&[frontend.as_str()], &[address(backend)]);
                let share = QuotaId(u16::try_from(index).unwrap());
                node.serve_local(&Port { index, share, frontends, backends, ..Port::TCP });
            }
            let mut ports = 1_024..;
            let mut opened = |frontend: &str, most| {
                let place = ("", "", frontend, backend, client);
                ports.by_ref().take(most).take_while(|port| connect(node, place, *port)).count()
            };
            let (greedy, late) = frontends.split_at(16);
            let first: Vec<_> = greedy.iter().map(|it| opened(it, MANY as usize / 16)).collect();
            assert!(first.iter().all(|it| *it > 100), "{first:?}");
            let few: Vec<_> = late.iter().map(|it| opened(it, 16)).collect();
            assert!(
                few.iter().all(|it| (1..=3).contains(it)),
                "a sixty-fourth of what is left, or one: {few:?}"
            );
        });
    }
}

#[test]
fn kernel_flows_are_evicted_by_rank() {
    in_both(|node, place @ (.., client)| {
        (0..40).for_each(|at| assert!(connect(node, place, 30_000 + at)));
        (0..40).for_each(|at| {
            let client = format!("{client}:{}", 31_000 + at);
            assert_eq!(node.come(&Sent::tcp(&client, place.2, SYN).frame()).0, NEXT);
        });
        (0..400).for_each(|at| ask(node, place, 2_000 + at));
        let kept =
            |from: u16| (from..from + 40).filter(|at| found(node, &format!("{client}:{at}")).is_some());
        assert_eq!(kept(30_000).count(), 40, "connections");
        assert_eq!(kept(31_000).count(), 40, "what may still be answered goes after what has been");
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERED), 0);
    });
}

/// A reply soon after the request leaves no trace by which others would be evicted.
#[test]
fn kernel_answered_flows_evict_no_unanswered_ones() {
    let place @ (_, _, other, _, client) = PLACES[0];
    Node::test_with(40_000, move |node| {
        node.serve_local(&Port { frontends: &[place.0], backends: &[address(place.1)], ..Port::UDP });
        let to = [address(place.3)];
        node.serve_local(&Port { index: 2, base: 8, frontends: &[other], backends: &to, ..Port::TCP });
        let silent = format!("{client}:1111");
        assert_eq!(node.come(&Sent::tcp(&silent, other, SYN).frame()).0, NEXT);
        (0..17_000).for_each(|at| ask(node, place, 2_000 + at));
        assert!(found(node, &silent).is_some());
        assert_eq!(node.counted(packet_count::COUNT_UNANSWERED), 0);
        assert_eq!(node.counted(packet_count::COUNT_RECLAIMED), 0);
    });
}

/// A client of a port with only live flows is dropped; closed flows of that port make space again.
#[test]
fn kernel_a_full_quota_evicts_only_its_own_flows() {
    in_both(|node, place @ (.., client)| {
        let most = (0..300).find(|at| !connect(node, place, 30_000 + at)).unwrap();
        let refused = node.come(&Sent::tcp(&format!("{client}:2222"), place.2, SYN).frame()).0;
        assert_eq!(refused, SHOT);
        (0..most).for_each(|at| age(node, &format!("{client}:{}", 30_000 + at), 100_000));
        assert!(connect(node, place, 29_000));
        assert!(node.counted(packet_count::COUNT_RECLAIMED) > 0);
    });
}

/// Gives a flow one of all its possible states, by a number: flags, state, idle seconds. If `lives`, neither side has
/// closed it, and it is not old.
fn becomes(flow: &mut types::flow, number: u64, lives: bool) {
    let mut left = number;
    let mut any = |of: u64| {
        let one = left % of;
        left /= of;
        u32::try_from(one).unwrap()
    };
    let all =
        u8::try_from(flow_flag::FLOW_SYN_SEEN.0 | flow_flag::FLOW_FIN_SEEN.0 | flow_flag::FLOW_RST_SEEN.0)
            .unwrap();
    let legal = if lives { u8::try_from(flow_flag::FLOW_SYN_SEEN.0).unwrap() } else { all };
    let said = |before: u8, now: u32| before & !all | u8::try_from(now).unwrap() & legal;
    flow.state = u8::try_from(flow_state::FLOW_OPENING.0 + any(2)).unwrap();
    flow.client_flags = said(flow.client_flags, any(8));
    flow.backend_flags = said(flow.backend_flags, any(8));
    let silent = if lives { [0, 0, 4, 5] } else { [0, 4, 20, 40] }[any(4) as usize];
    // Whether it lasted long enough to be a stream, and longer than it is idle.
    let lasted = [0, 15, 100][any(3) as usize];
    if flow.transport == TCP && any(2) == 1 {
        flow.client_flags |= u8::try_from(flow_flag::FLOW_ENCAP.0).unwrap();
    }
    flow.seen = flow.seen.wrapping_sub(silent);
    flow.began = flow.seen.wrapping_sub(lasted);
}

const NEWCOMERS: &str = "203.0.113.12:80";

/// Fills a table with four flows of one quota, two over UDP and two over TCP, and serves a port of another quota.
fn crowd(node: &mut Node, number: u64) {
    let (asked, answers, other, backend, client) = PLACES[0];
    let udp = Port { index: 1, frontends: &[asked], backends: &[address(answers)], ..Port::UDP };
    node.serve_local(&udp);
    let to = [address(backend)];
    let tcp = Port { index: 2, base: 8, frontends: &[other], backends: &to, ..Port::TCP };
    node.serve_local(&tcp);
    node.serve_local(&Port { index: 3, base: 16, frontends: &[NEWCOMERS], share: QuotaId(2), ..tcp });
    for at in 0..4_u16 {
        let from = format!("{client}:{}", 30_000 + at);
        let sent = if at % 2 == 0 { Sent::udp(&from, asked, b"ask") } else { Sent::tcp(&from, other, SYN) };
        assert_eq!(node.come(&sent.frame()).0, NEXT);
        let number = (number * 4 + u64::from(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        change(node, &from, |flow| becomes(flow, number, at < 2 || !number.is_multiple_of(3)));
    }
}

/// Sends one more client, and checks which flow was evicted. `false`: a second passed meanwhile, so programs and daemon
/// may have counted differently.
fn one_gives_way(node: &Node) -> bool {
    let before: Vec<types::flow> = all(node).map(|(_, flow)| flow).collect();
    let now = lives::now();
    let newcomer = Sent::tcp(&format!("{}:40000", PLACES[0].4), NEWCOMERS, SYN);
    let has_room = node.come(&newcomer.frame()).0 == NEXT;
    if lives::now() != now {
        return false;
    }
    let is_left = |flow: &types::flow| all(node).any(|(_, it)| it.serial == flow.serial);
    let gone: Vec<_> = before.iter().filter(|it| !is_left(it)).collect();
    let most = before.iter().max_by_key(|it| eviction_rank::eviction_score(it, now)).unwrap();
    let worth = EvictionRank::from_flow(most, now);
    assert_eq!((has_room, gone.len()), (worth != EvictionRank::Needed, usize::from(has_room)), "{before:?}");
    assert!(gone.iter().all(|it| EvictionRank::from_flow(it, now) == worth), "{gone:?}, and not {most:?}");
    // Of flows without a reply the oldest goes, however long others are idle.
    let is_by_silence = worth >= EvictionRank::OldReply;
    let is_most = |it: &&types::flow| {
        eviction_rank::eviction_score(it, now) == eviction_rank::eviction_score(most, now)
    };
    assert!(!is_by_silence || gone.iter().all(is_most), "{gone:?}, and not {most:?}");
    true
}

/// The daemon moves flows to a smaller table by the same rank by which programs evict them.
#[test]
fn kernel_programs_and_daemon_evict_the_same_flow() {
    const ROUNDS: u32 = 16;
    let judged = Arc::new(AtomicU32::new(0));
    for round in 0..ROUNDS {
        let judged = Arc::clone(&judged);
        Node::test_with(4, move |node| {
            crowd(node, round.into());
            judged.fetch_add(u32::from(one_gives_way(node)), Relaxed);
        });
    }
    assert!(judged.load(Relaxed) > ROUNDS / 2);
}
