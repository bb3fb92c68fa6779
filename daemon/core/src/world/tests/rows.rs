//! The rows of all services together are bounded: ports times endpoints, listed or not.

use core::net::Ipv4Addr;
use core::ops::Range;
use std::format;

use super::*;

/// The most rows of all services; no service has more than half.
const MOST: usize = limits::row_demand_max(SLOTS) as usize;
const SLOTS: u32 = 1 << 17;
/// The ports of a service with the most rows that one may have.
const PORTS: u16 = 64;
const ENDPOINTS: u32 = (1 << limits::ROWS_PER_SERVICE_MAX.ilog2()) / PORTS as u32;

fn rig() -> Rig {
    Rig::with(Capacity { slots: SLOTS, ports: 1 << 13, ..Capacity::default() })
}

fn named(namespace: &str, number: u32) -> ObjectName {
    ObjectName::new(namespace, &format!("s-{number:03}")).unwrap()
}

fn name(port: u16) -> Arc<str> {
    format!("p-{port:03}").into()
}

/// A service of so many ports.
fn asking(namespace: &str, number: u32, ports: u16) -> Event {
    let port = |it: u16| {
        let port = NonZeroU16::new(80 + it).unwrap();
        ServicePort { name: name(it), protocol: Protocol::TCP, port, node_port: None }
    };
    let place = u32::try_from(namespace.len()).unwrap() << 16 | number;
    let key = ServiceKey { name: named(namespace, number), source: SOURCE };
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x6400_0000 + place));
    let ports = (0..ports).map(port).collect();
    applied(ServiceFacts { key, cluster_ips: vec![address], ports, ..service("x", "10.0.0.1", &[]) })
}

/// The slice of a service, with these endpoints at these of its ports, ready or not.
fn listing(
    (namespace, number): (&str, u32),
    ports: Range<u16>,
    endpoints: Range<u32>,
    is_ready: impl Fn(u32) -> bool,
) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for it in endpoints {
        let conditions = Conditions { ready: is_ready(it), serving: false, terminating: false };
        let address = Ipv4Addr::from_bits(0x0101_0000 + it).into();
        builder
            .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
            .unwrap();
    }
    let of = |it| SlicePort { name: name(it), protocol: Protocol::TCP, port: NonZeroU16::new(80).unwrap() };
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: named(namespace, number), source: SOURCE },
        service: Some(named(namespace, number).name().into()),
        ports: ports.map(of).collect(),
        endpoints: builder.finish(),
        ..slice_facts("x", "x", &[])
    }))
}

/// A service at one port with these endpoints.
fn small(namespace: &str, number: u32, endpoints: Range<u32>) -> [Event; 2] {
    [asking(namespace, number, 1), listing((namespace, number), 0..1, endpoints, |_| true)]
}

/// Services with the most rows that one may have.
fn crowd(namespace: &str, numbers: Range<u32>) -> impl Iterator<Item = Event> {
    let of = move |number| {
        let slice = listing((namespace, number), 0..PORTS, 0..ENDPOINTS, |_| true);
        [asking(namespace, number, PORTS), slice]
    };
    numbers.flat_map(of)
}

fn gone(namespace: &str, number: u32) -> Vec<Event> {
    let name = named(namespace, number);
    let slice = SliceKey { name: name.clone(), source: SOURCE };
    let service = ServiceKey { name, source: SOURCE };
    vec![Event::ServiceDeleted(service, None), Event::SliceDeleted(slice, None)]
}

/// How many rows the services of a namespace have, and how many rows of last lists besides.
fn rows(snapshot: &Snapshot, namespace: &str) -> (usize, usize) {
    let of = snapshot.services.iter().filter(|view| view.key.name.namespace() == namespace);
    let ports: Vec<_> = of.flat_map(|view| view.ports.clone()).collect();
    let last = ports.iter().filter_map(|port| Some((port.last.rows()?, &port.rows)));
    let last = last.filter(|(last, rows)| !Arc::ptr_eq(last, rows)).map(|(last, _)| last.iter().len());
    (ports.iter().map(|port| port.rows.iter().len()).sum(), last.sum())
}

/// The backends in the maps for clients of a service's first port.
fn led_to(rig: &Rig, namespace: &str, number: u32) -> Vec<u32> {
    let key = ServiceKey { name: named(namespace, number), source: SOURCE };
    let port = &rig.world.services.get(rig.world.tables.find_id(&key).unwrap()).unwrap().ports[0];
    let slots = port.realized.cluster.rows.slots_in_range(Scope::Cluster, port.realized.cluster.word.count);
    let number = |address| if let IpAddr::V4(it) = address { it.to_bits() - 0x0101_0000 } else { 0 };
    slots.map(|slot| number(slot.address)).collect()
}

fn rest(rig: &mut Rig) -> Snapshot {
    (0..8).map(|_| rig.grace()).last().unwrap()
}

#[test]
fn invariant_10_the_row_demand_of_all_services_is_bounded() {
    let mut rig = rig();
    let snapshot = rig.turn(crowd("tenant", 0..12).collect());
    let (shown, kept) = rows(&snapshot, "tenant");
    let free = 12 * usize::from(PORTS) * limits::FREE_ROWS_PER_PORT;
    assert!((MOST / 2..=MOST + free).contains(&shown), "{shown} rows, and {MOST} may be listed");
    assert_eq!(kept, 0);
    let is_empty = |port: &crate::snapshot::PortView| port.rows.is_empty(Scope::Cluster);
    assert!(!snapshot.services.iter().any(|view| view.ports.iter().any(is_empty)), "each list has a backend");
    let named: Vec<_> = snapshot.rejections.named.values().collect();
    assert!(named.len() == 11 && named.iter().all(|it| it.partial && !it.is_waiting()), "{named:?}");
    let left = usize::from(PORTS) * (ENDPOINTS as usize - limits::FREE_ROWS_PER_PORT);
    let reason = format!("{left} of its ports times endpoints wait for room: all services may ask for twice");
    assert!(named[10].reason.starts_with(&reason), "{}", named[10].reason);
}

#[test]
fn invariant_10_rows_alongside_a_demanding_namespace_are_served_and_stay() {
    let mut rig = rig();
    rig.turn(small("prod", 0, 0..40).into());
    rig.turn(crowd("tenant", 0..4).collect());
    assert_eq!(led_to(&rig, "prod", 0), Vec::from_iter(0..40));
    let shops = small("shops", 0, 0..300);
    rig.turn(small("prod", 0, 0..44).into_iter().chain(shops).collect());
    assert_eq!((led_to(&rig, "prod", 0).len(), led_to(&rig, "shops", 0).len()), (44, 300), "and more");
    let names: Vec<_> = (10..40).map(|length| "t".repeat(length)).collect();
    rig.turn(names.iter().flat_map(|namespace| crowd(namespace, 0..2)).collect());
    // The namespace may ask for no more rows, but its lists change and grow within their blocks.
    for first in [100, 200, 300] {
        rig.turn(small("prod", 0, first..first + 64).into());
        rest(&mut rig);
        assert_eq!(led_to(&rig, "prod", 0), Vec::from_iter(first..first + 64));
        rig.turn(small("prod", 0, first + 20..first + 90).into());
        rest(&mut rig);
        let led = led_to(&rig, "prod", 0);
        assert!(led.len() >= 64 && led[..44] == Vec::from_iter(first + 20..first + 64), "{led:?}");
        names.iter().for_each(|namespace| drop(rig.turn(gone(namespace, 1))));
        rig.turn(names.iter().flat_map(|namespace| crowd(namespace, 1..2)).collect());
    }
}

#[test]
fn invariant_10_waiting_row_demand_is_decided_again_when_capacity_returns() {
    let mut rig = rig();
    rig.turn(crowd("tenant", 0..2).collect());
    rig.turn(small("tenant", 9, 0..1_000).into());
    assert_eq!(led_to(&rig, "tenant", 9).len(), limits::FREE_ROWS_PER_PORT);
    rig.turn(gone("tenant", 0));
    let snapshot = rest(&mut rig);
    assert_eq!(led_to(&rig, "tenant", 9).len(), 1_000);
    assert_eq!(rows(&snapshot, "tenant"), (limits::ROWS_PER_SERVICE_MAX + 1_000, 0), "the other service too");
    assert!(snapshot.rejections.named.is_empty(), "no service waits");
    [1, 9].into_iter().for_each(|number| drop(rig.turn(gone("tenant", number))));
    rest(&mut rig);
    let snapshot = rig.turn(crowd("prod", 0..2).collect());
    let (shown, _) = rows(&snapshot, "prod");
    assert!(shown >= MOST * 8 / 9, "{shown}: all capacity came free");
}

/// Each port of a service has its list once, and loses it.
#[test]
fn invariant_10_last_lists_count_as_much_as_lists() {
    let mut rig = rig();
    let all = (0..4).map(|number| asking("tenant", number, 8));
    rig.turn(all.collect());
    for port in (0..8).chain(0..3) {
        let list = |number| listing(("tenant", number), port..port + 1, 0..9_000, |_| true);
        let snapshot = rig.turn((0..4).map(list).collect());
        let (shown, kept) = rows(&snapshot, "tenant");
        assert!(shown + kept <= MOST + 64, "{shown} rows and {kept} of last lists");
        assert!(rows(&snapshot, "tenant").0 > 0);
    }
    rig.turn(crowd("prod", 0..1).collect());
    assert!(led_to(&rig, "prod", 0).len() > 100, "a part is left to others nevertheless");
}

#[test]
fn invariant_10_realized_lists_keep_no_former_rows_in_memory() {
    let mut rig = rig();
    let with = |endpoints| listing(("tenant", 0), 0..1, 0..endpoints, |it| it == 0);
    rig.turn(vec![asking("tenant", 0, 1), with(1_000)]);
    rig.turn(vec![with(1)]);
    assert_eq!(rig.log.len(), 0, "the list is the same");
    let key = ServiceKey { name: named("tenant", 0), source: SOURCE };
    let port = &rig.world.services.get(rig.world.tables.find_id(&key).unwrap()).unwrap().ports[0];
    assert_eq!((port.rows.iter().len(), port.realized.cluster.rows.iter().len()), (1, 1));
}

#[test]
fn invariant_08_a_restart_keeps_every_list_in_the_maps() {
    let mut rig = rig();
    let prod = || small("prod", 0, 0..900).into_iter();
    rig.turn(prod().collect());
    let crowds = || ["a", "bb", "ccc"].into_iter().flat_map(|namespace| crowd(namespace, 0..2));
    let restarted = || {
        let mut later = self::rig();
        assert_eq!(later.world.adopt(&rig.dump()), []);
        later
    };
    let mut later = restarted();
    later.turn(crowds().chain(prod()).collect());
    assert_eq!(led_to(&later, "prod", 0).len(), 900);
    let mut later = restarted();
    later.turn(crowds().collect());
    let snapshot = rest(&mut later);
    let sum: usize = ["a", "bb", "ccc"].into_iter().map(|namespace| rows(&snapshot, namespace).0).sum();
    assert!(sum >= MOST - MOST / 9 / 9 / 9, "{sum}: leftovers without rows come free");
}

/// Hints send clients of this node elsewhere, while policy Local uses the backends here.
#[test]
fn a_truncated_list_keeps_a_backend_per_scope() {
    let mut rig = rig();
    rig.turn(crowd("tenant", 0..3).collect());
    let zone = |name: &str| crate::facts::HintSet { zones: [name.into()].into(), nodes: [].into() };
    let mut builder = EndpointsBuilder::new(Family::V4);
    let node = NodeFacts { name: "here".into(), zone: Some("a".into()), ..NodeFacts::default() };
    let names: [(u32, Option<&str>, &str); 4] =
        [(1, Some("here"), "b"), (2, Some("here"), "b"), (3, Some("here"), "b"), (4, None, "a")];
    for (number, node, hint) in names {
        let address = Ipv4Addr::from_bits(0x0101_0000 + number).into();
        let hint = zone(hint);
        let conditions = Conditions::READY;
        let node = node.map(Into::into);
        let endpoint = Endpoint { address, conditions, node, zone: None, hints: Some(&hint), target: None };
        builder.push(endpoint).unwrap();
    }
    let (Event::ServiceApplied(facts), Event::SliceApplied(slice)) =
        (asking("tenant", 9, 1), listing(("tenant", 9), 0..1, 0..1, |_| true))
    else {
        unreachable!()
    };
    let facts =
        ServiceFacts { external_ips: vec![ip("192.0.2.1")], external_policy: local(), ..(*facts).clone() };
    let slice = SliceFacts { endpoints: builder.finish(), ..(*slice).clone() };
    let node = Event::NodeApplied(Arc::new(node));
    let snapshot = rig.turn(vec![node, applied(facts), Event::SliceApplied(Arc::new(slice))]);
    let key = ServiceKey { name: named("tenant", 9), source: SOURCE };
    let view = snapshot.services.iter().find(|view| view.key == key).unwrap();
    let rows = &view.ports[0].rows;
    assert_eq!([Scope::Cluster, Scope::Local].map(|scope| rows.len(scope)), [1, 1]);
}
