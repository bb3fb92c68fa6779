//! The source ranges of a load balancer: no allowed client is denied and no other one admitted, not even for a moment.

use super::*;
use crate::facts::Ingress;
use crate::keys::{FrontendKey, Transport};
use crate::maps::{Client, DialOutcome, Maps, MemoryMaps};
use crate::op::{FrontendType, PortIndex, SourceKey, WordFlags};
use crate::snapshot::Status;
use crate::source_ranges::SourceRange;
use std::format;

const VIP: &str = "10.0.0.9";

/// Clients, and the ranges that contain each of them.
const CLIENTS: [(&str, &[&str]); 3] =
    [("192.0.2.1", &["192.0.2.0/24"]), ("198.51.100.1", &["198.51.100.0/24"]), ("203.0.113.1", &[])];

fn balanced(vips: &[&str], ranges: &[&str]) -> ServiceFacts {
    ServiceFacts {
        kind: ServiceType::LoadBalancer,
        ingress: vips.iter().map(|it| Ingress { address: ip(it), proxied: false }).collect(),
        source_ranges: ranges.iter().map(|it| (*it).into()).collect(),
        ..service("a", "10.0.0.1", &[])
    }
}

fn names(log: &[Op]) -> Vec<&'static str> {
    log.iter().map(|op| op.action.name()).collect()
}

/// The outcome for each client at the VIP.
fn met(maps: &MemoryMaps) -> [DialOutcome; 3] {
    CLIENTS.map(|(client, _)| maps.lookup(ip(VIP), 80, Transport::Tcp, Client::From(ip(client))))
}

/// Replays the ops and checks after each: a client allowed before and after is never denied, and one allowed neither
/// before nor after is never admitted.
#[track_caller]
fn play(rig: &Rig, maps: &mut MemoryMaps, allowed: [[bool; 3]; 2]) {
    let [before, after] = allowed;
    for op in &rig.log {
        maps.execute(&op.action).unwrap();
        for (at, answer) in met(maps).into_iter().enumerate() {
            match (before[at], after[at]) {
                (true, true) => {
                    assert!(matches!(answer, DialOutcome::Served(_)), "{at} {op:?}: {:?}", rig.log);
                }
                (false, false) => {
                    assert!(!matches!(answer, DialOutcome::Served(_)), "{at} {op:?}: {:?}", rig.log);
                }
                _ => {}
            }
        }
    }
}

/// Which clients these ranges of a VIP allow.
fn allowed(ranges: Option<&[&str]>) -> [bool; 3] {
    let is_in = |ranges: &[&str], of: &[&str]| ranges.is_empty() || of.iter().any(|it| ranges.contains(it));
    CLIENTS.map(|(_, of)| ranges.is_some_and(|ranges| is_in(ranges, of)))
}

#[test]
fn invariant_04_source_ranges_change_without_a_wrong_verdict_in_between() {
    let both: &[&str] = &["192.0.2.0/24", "198.51.100.0/24"];
    // `None`: the service has no VIP.
    let versions: [Option<&[&str]>; 11] = [
        Some(&[]),
        Some(&both[..1]),
        Some(both),
        Some(&both[1..]),
        Some(&both[..1]),
        None,
        Some(&both[..1]),
        Some(&[]),
        Some(both),
        None,
        Some(&[]),
    ];
    let (mut rig, mut maps) = (Rig::new(), MemoryMaps::default());
    rig.turn(vec![slice("a", &["1.1.1.1", "1.1.1.2"])]);
    let mut before = None;
    for (at, ranges) in versions.into_iter().enumerate() {
        let facts = ranges.map_or_else(|| balanced(&[], both), |ranges| balanced(&[VIP], ranges));
        // The list changes too.
        let endpoints = format!("1.1.1.{}", 3 + at);
        rig.turn(vec![applied(facts), slice("a", &[&endpoints, "1.1.1.2"])]);
        play(&rig, &mut maps, [allowed(before), allowed(ranges)]);
        for _ in 0..3 {
            rig.grace();
            play(&rig, &mut maps, [allowed(ranges), allowed(ranges)]);
        }
        let served = met(&maps).map(|answer| matches!(answer, DialOutcome::Served(_)));
        assert_eq!(served, allowed(ranges), "{at}");
        let sources = maps.dump().unwrap().sources.unwrap();
        assert_eq!(sources.len(), ranges.unwrap_or_default().len(), "{at}: nothing is left behind");
        before = ranges;
    }
    rig.turn(vec![deleted("a"), slice("a", &[])]);
    play(&rig, &mut maps, [allowed(before), [false; 3]]);
    for _ in 0..3 {
        rig.grace();
        play(&rig, &mut maps, [[false; 3]; 2]);
    }
    assert_eq!(maps.dump().unwrap(), Dump { sources: Some(vec![]), ..Dump::default() });
}

#[test]
fn invariant_04_sources_precede_word_and_frontend_and_leave_after_grace() {
    let mut rig = Rig::new();
    rig.turn(vec![slice("a", &["1.1.1.1"]), applied(balanced(&[VIP], &["192.0.2.0/24"]))]);
    let first = ["insert source", "write range", "publish word", "insert frontend", "insert frontend"];
    assert_eq!(names(&rig.log), first);
    rig.turn(vec![applied(balanced(&[VIP], &[]))]);
    assert_eq!(names(&rig.log), ["publish word"], "some clients are about to look for their source");
    rig.grace();
    assert_eq!(names(&rig.log), ["remove source"]);
    rig.turn(vec![applied(balanced(&[VIP], &["192.0.2.0/24"]))]);
    assert_eq!(names(&rig.log), ["insert source", "publish word"]);
    rig.turn(vec![applied(balanced(&[VIP], &["198.51.100.0/24"]))]);
    assert_eq!(names(&rig.log), ["remove source", "insert source"], "no client is in both");
    rig.turn(vec![applied(balanced(&[VIP], &["198.51.0.0/16"]))]);
    assert_eq!(names(&rig.log), ["insert source", "remove source"], "clients that are in both stay");
    rig.turn(vec![applied(balanced(&[VIP], &["198.51.100.0/24"]))]);
    assert_eq!(names(&rig.log), ["insert source", "remove source"], "here too");
    rig.turn(vec![applied(balanced(&[], &["198.51.100.0/24"]))]);
    assert_eq!(names(&rig.log), ["remove frontend"], "it is restricted while it exists");
    rig.grace();
    assert_eq!(names(&rig.log), ["publish word"]);
    rig.grace();
    assert_eq!(names(&rig.log), ["remove source"]);
}

/// A service that adds ranges again within a grace period: the former ones are still in the maps.
#[test]
fn invariant_04_stale_sources_admit_no_client_when_sources_return() {
    let mut rig = Rig::new();
    let mut maps = MemoryMaps::default();
    let mut play = |rig: &Rig, allowed: [[bool; 3]; 2]| play(rig, &mut maps, allowed);
    rig.turn(vec![slice("a", &["1.1.1.1"]), applied(balanced(&[VIP], &["192.0.2.0/24"]))]);
    play(&rig, [[false; 3], [true, false, false]]);
    rig.turn(vec![applied(balanced(&[], &["192.0.2.0/24"]))]);
    play(&rig, [[true, false, false], [false; 3]]);
    rig.grace();
    assert_eq!(names(&rig.log), ["publish word"], "sources stay for clients on their way");
    play(&rig, [[false; 3]; 2]);
    rig.turn(vec![applied(balanced(&[VIP], &["198.51.100.0/24"]))]);
    play(&rig, [[false; 3], [false, true, false]]);
}

fn is_source(op: &Op) -> bool {
    matches!(op.action, Action::InsertSource(..) | Action::RemoveSource(_))
}

#[test]
fn a_load_balancer_address_is_served_only_after_its_sources() {
    let mut rig = Rig::new();
    rig.refuse = is_source;
    let facts = balanced(&[VIP], &["192.0.2.0/24"]);
    let snapshot = rig.turn(vec![slice("a", &["1.1.1.1"]), applied(facts)]);
    assert_eq!(names(&rig.log), [] as [&str; 0]);
    assert_eq!(row(&view(&snapshot, "a"), VIP).status, Status::Error("refused".into()));
    rig.refuse = |_| false;
    rig.retry(rig.id("a"));
    let snapshot = rig.turn(vec![]);
    assert_eq!(names(&rig.log)[0], "insert source");
    assert_eq!(row(&view(&snapshot, "a"), VIP).status, Status::Done);
}

/// Other services' ranges have filled the map.
#[test]
fn a_range_without_capacity_delays_no_list_and_no_revocation() {
    let mut rig = Rig::new();
    rig.turn(vec![slice("a", &["1.1.1.1"]), applied(balanced(&[VIP], &["192.0.2.0/24"]))]);
    rig.refuse = |op| matches!(op.action, Action::InsertSource(..));
    rig.turn(vec![slice("a", &["1.1.1.2"]), applied(balanced(&[VIP], &["198.51.100.0/24"]))]);
    assert_eq!(names(&rig.log), ["remove source", "write range", "publish word"]);
}

#[test]
fn a_source_of_a_refused_op_is_removed_nevertheless() {
    let mut rig = Rig::new();
    rig.turn(vec![slice("a", &["1.1.1.1"]), applied(balanced(&[VIP], &["192.0.2.0/24"]))]);
    rig.refuse = is_source;
    rig.turn(vec![applied(balanced(&[VIP], &["192.0.2.0/24", "203.0.113.0/24"]))]);
    rig.refuse = |_| false;
    rig.turn(vec![applied(balanced(&[VIP], &["192.0.2.0/24"]))]);
    let range = SourceRange::parse("203.0.113.0/24").unwrap();
    let removed = |op: &Op| matches!(op.action, Action::RemoveSource(key) if key.range == range);
    assert!(rig.log.iter().any(removed), "{:?}", rig.log);
}

#[test]
fn only_ports_with_a_load_balancer_address_have_sources() {
    let mut rig = Rig::new();
    rig.turn(vec![slice("a", &["1.1.1.1"]), applied(balanced(&[], &["192.0.2.0/24"]))]);
    assert!(!rig.log.iter().any(is_source), "{:?}", rig.log);
    let external = ServiceFacts { external_ips: vec![ip(VIP)], ..balanced(&[], &["192.0.2.0/24"]) };
    rig.turn(vec![applied(external)]);
    assert!(!rig.log.iter().any(is_source), "{:?}", rig.log);
}

#[test]
fn a_node_within_the_ranges_adds_the_balancers_address() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(balanced(&[VIP], &["192.0.2.0/24"])), applied(service("b", "10.0.0.2", &[]))]);
    let node = |addresses: &[&str]| {
        let node_port_addresses = addresses.iter().map(|it| ip(it)).collect();
        let node = NodeFacts { name: "here".into(), node_port_addresses, ..NodeFacts::default() };
        Event::NodeApplied(Arc::new(node))
    };
    let changed = |rig: &Rig| {
        let sources = rig.log.iter().filter(|op| is_source(op));
        sources.map(|op| format!("{:?}", op.action)).collect::<Vec<_>>()
    };
    let own = SourceRange::single_host(ip(VIP));
    rig.turn(vec![node(&["192.0.2.7"])]);
    let index = rig.world.services.get(rig.id("a")).unwrap().ports[0].index.unwrap();
    let key = SourceKey { port: index, range: own };
    assert_eq!(
        changed(&rig),
        [format!("{:?}", Action::InsertSource(key, rig.world.tables.quota(rig.id("a"))))]
    );
    let touched: Vec<_> = rig.changes.iter().map(|change| change.service.clone()).collect();
    assert_eq!(touched, [service_key("a")], "no other service is decided again");
    rig.turn(vec![node(&["198.51.100.7"])]);
    assert_eq!(changed(&rig), [format!("{:?}", Action::RemoveSource(key))]);
}

/// A port as a former daemon left it, with one source.
fn left(flags: WordFlags, range: &str) -> Dump {
    let index = PortIndex(3);
    let key = FrontendKey { address: ip(VIP), port: NonZeroU16::new(80).unwrap(), transport: Transport::Tcp };
    let value = crate::op::FrontendValue { port: index, kind: FrontendType::LoadBalancer, quota: share() };
    let word = crate::op::Word { flags, ..crate::op::Word::EMPTY };
    let facts = crate::op::PortFacts::default();
    let (cluster, local) = ((word, vec![]), (crate::op::Word::EMPTY, vec![]));
    let source = SourceKey { port: index, range: SourceRange::parse(range).unwrap() };
    Dump {
        frontends: vec![(key, value)],
        ports: vec![DumpPort { index, family: Family::V4, facts, cluster, local }],
        sources: Some(vec![source]),
        ..Dump::default()
    }
}

/// A world that found such a port and has its namespace's number, which no load-balancer address implies.
fn found(range: &str) -> Rig {
    let mut rig = Rig::new();
    rig.turn(vec![applied(super::service("other", "10.9.9.9", &[]))]);
    rig.world.adopt(&left(WordFlags::SOURCES, range));
    rig
}

#[test]
fn invariant_08_sources_that_a_start_finds_are_adopted() {
    let mut rig = found("192.0.2.0/24");
    let bare = ServiceFacts { cluster_ips: vec![], ..balanced(&[VIP], &["192.0.2.0/24"]) };
    rig.turn(vec![applied(bare.clone())]);
    assert_eq!(names(&rig.log), [] as [&str; 0]);

    let mut rig = found("198.51.100.0/24");
    rig.turn(vec![applied(bare)]);
    assert_eq!(names(&rig.log), ["remove source", "insert source"]);

    let mut rig = found("198.51.100.0/24");
    rig.turn(vec![]);
    rig.grace();
    assert_eq!(names(&rig.log), ["publish word", "remove source"], "no frontend uses the port");
}

/// A list that cannot grow delays no revoked range: a narrowed range applies to all clients at once.
#[test]
fn invariant_04_sources_change_while_a_list_finds_no_slots() {
    let mut rig = Rig::with(Capacity { slots: 1 << 10, ports: 1 << 14, ..Capacity::default() });
    let backends = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "1.1.1.5"];
    rig.turn(vec![slice("a", &backends[..4]), applied(balanced(&[VIP], &["198.51.0.0/16"]))]);
    super::room::filled(&mut rig, 12);
    rig.turn(vec![slice("a", &backends), applied(balanced(&[VIP], &["198.51.100.0/24"]))]);
    (0..4).for_each(|_| drop(rig.grace()));
    let there: Vec<_> = rig.dump().sources.unwrap().into_iter().map(|it| it.range).collect();
    assert_eq!(there, [SourceRange::new(ip("198.51.100.0"), 24).unwrap()]);
}
