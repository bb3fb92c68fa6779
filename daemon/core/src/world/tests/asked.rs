//! The demand of all services together is bounded, whatever the maps hold.

use core::net::Ipv4Addr;
use core::ops::Range;
use std::format;

use super::*;
use crate::facts::Ingress;
use crate::snapshot::{Status, Verdict};
use crate::work;

/// The most frontends in the maps.
const MAX: usize = 100;
/// The most frontends that may be asked for.
const MOST: usize = limits::frontend_demand_max(MAX);

fn rig() -> Rig {
    let mut rig = Rig::with(Capacity { slots: 256, ports: 1 << 10, ..Capacity::default() });
    rig.turn(vec![limit()]);
    rig
}

fn limit() -> Event {
    Event::SettingsApplied(Arc::new(Settings { frontends_max: Some(MAX), ..Settings::default() }))
}

fn key(namespace: &str, number: u32) -> ServiceKey {
    ServiceKey { name: ObjectName::new(namespace, &format!("s-{number:03}")).unwrap(), source: SOURCE }
}

/// A service with `frontends` addresses of its own: a cluster IP and load-balancer addresses.
fn asking(namespace: &str, number: u32, frontends: u32) -> ServiceFacts {
    let place = u32::try_from(namespace.len()).unwrap() << 21 | number << 13;
    let address = |it: u32| IpAddr::V4(Ipv4Addr::from_bits(0x6400_0000 + place + it));
    ServiceFacts {
        key: key(namespace, number),
        cluster_ips: vec![address(0)],
        ingress: (1..frontends).map(|it| Ingress { address: address(it), proxied: false }).collect(),
        ..service("x", "10.0.0.1", &[])
    }
}

/// Services with so many frontends each, of which the maps hold none.
fn crowd(namespace: &str, numbers: Range<u32>, frontends: u32) -> Vec<Event> {
    let port = || ServicePort {
        protocol: Protocol::Other("X".into()),
        ..service("x", "10.0.0.1", &[]).ports[0].clone()
    };
    let of = |number| ServiceFacts { ports: vec![port()], ..asking(namespace, number, frontends) };
    numbers.map(|number| applied(of(number))).collect()
}

fn gone(namespace: &str, numbers: Range<u32>) -> Vec<Event> {
    numbers.map(|number| Event::ServiceDeleted(key(namespace, number), None)).collect()
}

/// How many frontends the services of a namespace have.
fn asked(snapshot: &Snapshot, namespace: &str) -> usize {
    let of = snapshot.services.iter().filter(|view| view.key.name.namespace() == namespace);
    of.map(|view| view.frontends.len()).sum()
}

/// How many frontends of a service clients can dial.
fn dialled(snapshot: &Snapshot, namespace: &str, number: u32) -> usize {
    let view = snapshot.services.iter().find(|view| view.key == key(namespace, number)).unwrap();
    let is_there = |row: &&FrontendView| row.status == Status::Done && row.verdict != Verdict::Unprogrammed;
    view.frontends.iter().filter(is_there).count()
}

#[test]
fn invariant_10_the_frontend_demand_of_all_services_is_bounded() {
    let mut rig = rig();
    let all = (0..200).map(|number| applied(asking("tenant", number, 1_000)));
    let snapshot = rig.turn(all.collect());
    let sum = asked(&snapshot, "tenant");
    assert!((MOST / 2..=MOST + 200).contains(&sum), "{sum} frontends, and {MOST} may be asked for");
    assert!(snapshot.services.iter().all(|view| !view.frontends.is_empty()), "each has one");
    assert_eq!(snapshot.fill.frontends, MAX);
    let named: Vec<_> = snapshot.rejections.named.values().collect();
    assert!(named.len() == 200 && named.iter().all(|it| it.partial && !it.is_waiting()));
    let reason = "999 of its frontends wait for room: all services may ask for 200 together, twice";
    assert!(named[199].reason.starts_with(reason), "{}", named[199].reason);
}

#[test]
fn invariant_10_frontends_alongside_a_demanding_namespace_are_served_and_stay() {
    let mut rig = rig();
    rig.turn(vec![applied(asking("prod", 0, 40))]);
    let snapshot = rig.turn(crowd("tenant", 0..200, 1_000));
    assert_eq!(dialled(&snapshot, "prod", 0), 40);
    let snapshot = rig.turn(vec![applied(asking("prod", 0, 44)), applied(asking("shops", 0, 3))]);
    assert_eq!((dialled(&snapshot, "prod", 0), dialled(&snapshot, "shops", 0)), (44, 3), "and more");
    let crowded = crowd("tenants", 0..20, 1_000).into_iter().chain(crowd("others", 0..20, 1_000));
    rig.turn(crowded.collect());
    let moved = ServiceFacts { cluster_ips: vec![ip("10.0.0.9")], ..asking("prod", 0, 44) };
    let snapshot = rig.turn(vec![applied(moved)]);
    assert_eq!(dialled(&snapshot, "prod", 0), 44, "a replacement needs no capacity");
    let mut none = asking("prod", 0, 44);
    none.ingress.insert(0, Ingress { address: ip("10.0.0.8"), proxied: false });
    none.ingress.insert(0, Ingress { address: ip("10.0.0.7"), proxied: false });
    let snapshot = rig.turn(vec![applied(none)]);
    let view = snapshot.services.iter().find(|view| view.key == key("prod", 0)).unwrap();
    let is_kept = |address: &IpAddr| view.frontends.iter().any(|row| row.address == *address);
    assert!(
        asking("prod", 0, 44).ingress.iter().map(|it| it.address).all(|it| is_kept(&it)),
        "what it has comes before what is new"
    );
    assert!(
        asked(&snapshot, "tenant") + asked(&snapshot, "tenants") + asked(&snapshot, "others") <= MOST + 240
    );
}

#[test]
fn invariant_10_waiting_frontend_demand_is_decided_again_when_capacity_returns() {
    let mut rig = rig();
    rig.turn(crowd("tenant", 0..5, 300));
    let rest = |rig: &mut Rig| (0..8).map(|_| rig.turn(vec![])).last().unwrap();
    let mut events = crowd("tenant", 5..60, 2);
    events.push(applied(asking("tenant", 60, 10)));
    let snapshot = rig.turn(events);
    assert_eq!(dialled(&snapshot, "tenant", 60), 1);
    rig.turn(gone("tenant", 0..1));
    let snapshot = rest(&mut rig);
    let sum = asked(&snapshot, "tenant");
    assert!((MOST / 9 * 8..=MOST + 60).contains(&sum), "{sum}: another service has the capacity");
    rig.turn(gone("tenant", 1..5));
    let snapshot = rest(&mut rig);
    assert_eq!((asked(&snapshot, "tenant"), dialled(&snapshot, "tenant", 60)), (2 * 55 + 10, 10));
    assert!(snapshot.rejections.named.is_empty(), "no service waits");
    rig.turn(gone("tenant", 5..61));
    rest(&mut rig);
    let snapshot = rig.turn(vec![applied(asking("prod", 0, 300))]);
    assert_eq!(asked(&snapshot, "prod"), MOST * 8 / 9 + 1, "all capacity came free");
}

#[test]
fn invariant_08_a_restart_keeps_every_frontend_in_the_maps() {
    let mut rig = rig();
    let prod = || (0..10).map(|number| applied(asking("prod", number, 9)));
    rig.turn(prod().collect());
    let crowds = || ["a", "bb", "ccc"].into_iter().flat_map(|namespace| crowd(namespace, 0..10, 1_000));
    let restarted = || {
        let mut later = Rig::with(Capacity { slots: 256, ports: 1 << 10, ..Capacity::default() });
        later.world.adopt(&rig.dump());
        later
    };
    let snapshot = restarted().turn([limit()].into_iter().chain(crowds()).chain(prod()).collect());
    assert_eq!((0..10).map(|number| dialled(&snapshot, "prod", number)).sum::<usize>(), 90);
    let mut later = restarted();
    later.turn([limit()].into_iter().chain(crowds()).collect());
    let snapshot = (0..8).map(|_| later.turn(vec![])).last().unwrap();
    let sum: usize = ["a", "bb", "ccc"].into_iter().map(|namespace| asked(&snapshot, namespace)).sum();
    assert!((MOST * 8 / 9..=MOST + 30).contains(&sum), "{sum}: leftovers without demand come free");
}

/// No other service takes the truncated frontends of a service, such as its other cluster IP. Frontends that clients
/// can dial come first.
#[test]
fn invariant_02_a_services_truncated_frontends_go_to_no_other() {
    let both = |at: &str, external: &str, number: u32, namespace: &str| ServiceFacts {
        cluster_ips: vec![ip(&format!("10.0.0.{at}")), ip(&format!("fd00::{at}"))],
        ip_families: Family::ALL.to_vec(),
        external_ips: vec![ip(external)],
        ..asking(namespace, number, 1)
    };
    let mut rig = rig();
    rig.turn(vec![applied(both("8", "fd00::70", 0, "taker"))]);
    for length in 1..=12 {
        rig.turn(crowd(&"a".repeat(length), 0..4, 1_000));
    }
    let odd = ServicePort {
        name: "a".into(),
        protocol: Protocol::Other("X".into()),
        port: NonZeroU16::new(99).unwrap(),
        node_port: None,
    };
    let mut facts = both("7", "192.0.2.7", 0, "prod");
    facts.ports.insert(0, odd);
    rig.turn(vec![applied(facts)]);
    let snapshot = rig.turn(vec![applied(both("8", "fd00::7", 0, "taker"))]);
    assert_eq!((asked(&snapshot, "prod"), dialled(&snapshot, "prod", 0)), (1, 1));
    let taker = snapshot.services.iter().find(|view| view.key == key("taker", 0)).unwrap();
    let row = taker.frontends.iter().find(|row| row.address == ip("fd00::7")).unwrap();
    assert_eq!((row.verdict, row.owner.as_ref()), (Verdict::Conflict, Some(&key("prod", 0))));
    assert!(rig.dump().frontends.iter().all(|(key, _)| key.address != ip("fd00::7")));
}

/// A service that waited before the restart is decided first, and takes nothing from its neighbours.
#[test]
fn invariant_08_a_restart_keeps_the_frontends_of_neighbours() {
    let mut rig = rig();
    rig.turn((1..=10).map(|number| applied(asking("prod", number, 9))).collect());
    let crowds = || {
        let lengths = (1..=12).filter(|length| *length != 4);
        lengths.flat_map(|length| crowd(&"a".repeat(length), 0..4, 1_000))
    };
    for event in crowds() {
        rig.turn(vec![event]);
    }
    let snapshot = rig.turn(vec![applied(asking("prod", 0, 60))]);
    assert_eq!(dialled(&snapshot, "prod", 0), 1, "it waits");
    let mut later = Rig::with(Capacity { slots: 256, ports: 1 << 10, ..Capacity::default() });
    later.world.adopt(&rig.dump());
    let prod = [(0, 60)].into_iter().chain((1..=10).map(|number| (number, 9)));
    let prod = prod.map(|(number, frontends)| applied(asking("prod", number, frontends)));
    let snapshot = later.turn([limit()].into_iter().chain(crowds()).chain(prod).collect());
    let each: Vec<_> = (1..=10).map(|number| dialled(&snapshot, "prod", number)).collect();
    assert_eq!(each, [9; 10]);
}

/// The work of releasing `room` frontends while so many services wait.
fn work_beside(waiting: u32, room: u32) -> u64 {
    let mut rig = rig();
    rig.turn(crowd("prod", 0..1, room));
    rig.turn(crowd("tenant", 0..waiting, 300));
    work::take();
    rig.turn(gone("prod", 0..1));
    (0..8).for_each(|_| drop(rig.turn(vec![])));
    work::take()
}

#[test]
fn invariant_10_freed_demand_costs_the_same_however_many_wait() {
    let (few, many) = (work_beside(40, 50), work_beside(160, 50));
    assert!(many * 10 <= few * 12, "{many} instead of {few}");
}

/// The frontends of waiting services are all built and sorted before truncation.
#[test]
fn invariant_10_deciding_truncated_frontends_counts_as_work_of_a_piece() {
    let mut rig = rig();
    rig.world.queue.most = limits::PIECE_WORK;
    for number in 0..40 {
        rig.turn(crowd("tenant", number..number + 1, 1_000));
    }
    (0..60).for_each(|_| drop(rig.grace()));
    let zone = NodeFacts { zone: Some("other".into()), ..NodeFacts::default() };
    rig.world.apply(Event::NodeApplied(Arc::new(zone)));
    let now = rig.clock();
    work::take();
    rig.world.decide(now);
    let work = work::take();
    assert!(work <= 4 * limits::PIECE_WORK, "{work}");
}

/// Eight ninths of 1,152 are 1,024.
#[test]
fn invariant_10_one_namespace_gets_exactly_its_quota_of_frontends() {
    let mut rig = Rig::with(Capacity { slots: 256, ports: 1 << 11, ..Capacity::default() });
    let settings = Settings { frontends_max: Some(1_152), ..Settings::default() };
    let all = (0..12).map(|number| applied(asking("tenant", number, 100)));
    let snapshot = rig.turn([Event::SettingsApplied(Arc::new(settings))].into_iter().chain(all).collect());
    assert_eq!(snapshot.fill.frontends, 1_024);
}
