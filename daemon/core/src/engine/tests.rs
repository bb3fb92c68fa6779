//! The smallest form of the incident, and the order of ops at a take-over, through the whole engine.

use core::num::NonZeroU16;
use std::{format, vec};

use crate::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, NodeFacts, ServiceFacts, ServicePort,
    ServiceType, SliceFacts, SlicePort, Timestamp,
};
use crate::keys::{Family, FrontendKey, ObjectName, Protocol, ServiceKey, SliceKey};
use crate::maps::{Capacity, DialOutcome, MemoryMaps};
use crate::op::{Action, Dump, FrontendValue, MapGrowth};
use crate::snapshot::MapCheck;

use super::*;

/// Forwards the rest of `Maps` to the wrapped maps.
macro_rules! forward_to_maps {
    () => {
        fn begin_grace(&mut self) -> Grace {
            self.maps.begin_grace()
        }

        fn is_grace_over(&self, grace: Grace) -> bool {
            self.maps.is_grace_over(grace)
        }

        fn dump(&mut self) -> Result<Dump, MapError> {
            self.maps.dump()
        }

        fn capacity(&self) -> Capacity {
            self.maps.capacity()
        }
    };
}

mod quota_ids;
mod quotas;
mod restored;
mod unreadable;
mod unsourced;

const NOW: ClockReading = ClockReading { wall: Timestamp(1_000), mono: Duration::ZERO };
const PORT: NonZeroU16 = NonZeroU16::new(80).unwrap();

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name).unwrap()
}

fn service(service: &str, cluster_ip: &str) -> Event {
    Event::ServiceApplied(Arc::new(service_facts(service, cluster_ip)))
}

fn service_facts(service: &str, cluster_ip: &str) -> ServiceFacts {
    let key = ServiceKey { name: name(service), source: Source::Manifests };
    let port = ServicePort { name: "".into(), protocol: Protocol::TCP, port: PORT, node_port: None };
    let cluster_ips = vec![cluster_ip.parse().unwrap()];
    ServiceFacts {
        cluster_ips,
        ports: vec![port],
        on_empty: Some("refuse".into()),
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }
}

fn slice(service: &str, endpoints: &[&str]) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for address in endpoints {
        let address = address.parse().unwrap();
        let conditions = Conditions::READY;
        builder
            .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
            .unwrap();
    }
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: name(&format!("{service}-1")), source: Source::Manifests },
        meta: Meta::default(),
        service: Some(service.into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: PORT }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }))
}

fn engine(events: Vec<Event>) -> Engine<MemoryMaps> {
    let (mut engine, errors) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    assert_eq!(errors, []);
    events.into_iter().chain([Event::Synced(Source::Manifests)]).for_each(|event| engine.apply(event));
    engine.step(NOW, &mut |_| ());
    engine
}

#[track_caller]
fn check_answer(engine: &Engine<MemoryMaps>, address: &str, backends: &[&str]) {
    let slots = match engine.maps().dial(address.parse().unwrap()) {
        DialOutcome::Served(slots) => slots,
        DialOutcome::Refused => Vec::new(),
        other => panic!("{address} is {other:?}"),
    };
    let found: Vec<_> = slots.iter().map(|slot| slot.backend().to_string()).collect();
    assert_eq!(found, backends, "{address}");
}

#[test]
fn an_emptied_service_does_not_affect_one_with_a_longer_name() {
    let mut engine = engine(vec![
        service("test", "10.0.0.1"),
        service("test-extended", "10.0.0.2"),
        slice("test", &["1.1.1.1"]),
        slice("test-extended", &["1.1.1.1"]),
    ]);
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    engine.apply(slice("test", &[]));
    engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &[]);
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.1:80"]);
}

#[test]
fn nothing_is_written_before_a_source_has_synced() {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &Source::ALL).unwrap();
    engine.apply(service("a", "10.0.0.1"));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert!(!snapshot.is_synced());
    assert_eq!(engine.maps().entries(), 0);
}

#[test]
fn a_deleted_service_leaves_nothing_in_the_maps() {
    let mut engine = engine(vec![service("a", "10.0.0.1"), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80", "1.1.1.2:80"]);
    let key = |text| ServiceKey { name: name(text), source: Source::Manifests };
    engine.apply(Event::ServiceDeleted(key("a"), None));
    let slice = SliceKey { name: name("a-1"), source: Source::Manifests };
    engine.apply(Event::SliceDeleted(slice, None));
    // The frontend is removed; its readers leave, and the word is wiped; the word's readers leave.
    let snapshot = (0..3).map(|_| engine.step(NOW, &mut |_| ())).last().unwrap();
    assert_eq!((engine.maps().entries(), snapshot.fill.ports, snapshot.fill.slots), (0, 0, [0; 2]));
    assert_eq!(snapshot.services.iter().count(), 0);
}

#[test]
fn a_restart_finds_its_lists_and_writes_nothing() {
    let events = vec![service("a", "10.0.0.1"), slice("a", &["1.1.1.1"])];
    let maps = engine(events.clone()).into_maps();
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    events.into_iter().chain([Event::Synced(Source::Manifests)]).for_each(|event| engine.apply(event));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert_eq!(snapshot.counters.ops, 0);
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
}

#[test]
fn invariant_04_a_new_node_address_never_serves_a_removed_node_port() {
    let Event::ServiceApplied(facts) = service("a", "10.0.0.1") else { panic!("a service") };
    let mut facts = (*facts).clone();
    facts.ports[0].node_port = NonZeroU16::new(30_080);
    let mut engine = engine(vec![Event::ServiceApplied(Arc::new(facts))]);
    engine.maps_mut().forget_readers();
    let maps = Recording { maps: engine.into_maps(), ..Recording::default() };
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    let node_port_addresses = ["192.168.0.1".parse().unwrap()].into();
    engine.apply(Event::NodeApplied(Arc::new(NodeFacts { node_port_addresses, ..NodeFacts::default() })));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    assert_eq!(engine.maps().names, ["remove frontend", "remove frontend", "insert node address"]);
}

#[test]
fn invariant_04_a_removed_node_address_never_serves_a_new_node_port() {
    let maps = Recording::default();
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    let node = |address: &str| {
        let node_port_addresses = [address.parse().unwrap()].into();
        Event::NodeApplied(Arc::new(NodeFacts { node_port_addresses, ..NodeFacts::default() }))
    };
    engine.apply(node("192.168.0.1"));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    let Event::ServiceApplied(facts) = service("a", "10.0.0.1") else { panic!("a service") };
    let mut facts = (*facts).clone();
    facts.ports[0].node_port = NonZeroU16::new(30_080);
    engine.apply(node("192.168.0.2"));
    engine.apply(Event::ServiceApplied(Arc::new(facts)));
    engine.maps_mut().names.clear();
    engine.step(NOW, &mut |_| ());
    let names = &engine.maps().names;
    let ends = (names.first().copied(), names.last().copied());
    assert_eq!(ends, (Some("remove node address"), Some("insert node address")), "{names:?}");
    assert_eq!(names.iter().filter(|name| **name == "insert frontend").count(), 2);
}

/// Maps that record the names of the ops, and the announced and reserved growth.
#[derive(Default)]
struct Recording {
    maps: MemoryMaps,
    names: Vec<&'static str>,
    prepared: Vec<MapGrowth>,
    reserved: Vec<MapGrowth>,
}

impl Maps for Recording {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        self.names.push(action.name());
        self.maps.execute(action)
    }

    fn prepare(&mut self, coming: &MapGrowth) {
        assert_eq!(self.names, [""; 0], "written before the maps were prepared");
        self.prepared.push(*coming);
    }

    fn reserve_capacity(&mut self, coming: &MapGrowth) -> Result<(), MapError> {
        self.reserved.push(*coming);
        Ok(())
    }

    forward_to_maps!();
}

/// Maps that accept frontends in batches, but never this one.
struct BatchMaps {
    maps: MemoryMaps,
    refused: Option<std::net::IpAddr>,
    steps: Vec<usize>,
}

impl Maps for BatchMaps {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        assert!(self.steps.is_empty(), "{} after the first frontend", action.name());
        self.maps.execute(action)
    }

    fn execute_batch(&mut self, ops: &[Op]) -> Result<usize, MapError> {
        let is_refused = |op: &&Op| {
            let (Action::InsertFrontend(key, _) | Action::RemoveFrontend(key)) = &op.action else {
                panic!("not a frontend")
            };
            Some(key.address) == self.refused
        };
        let count = ops.iter().take_while(|op| !is_refused(op)).count();
        ops.iter().take(count).for_each(|op| self.maps.execute(&op.action).unwrap());
        self.steps.push(count);
        let refused = || MapError::Refused { op: "write frontend", cause: "for a test".to_owned() };
        if count == 0 { Err(refused()) } else { Ok(count) }
    }

    forward_to_maps!();
}

/// The refused service also has an external IP, which is not tried after its first address was refused.
fn start_together(refused: Option<&str>) -> (Engine<BatchMaps>, Arc<Snapshot>) {
    let refused = refused.map(|address| address.parse().unwrap());
    let maps = BatchMaps { maps: MemoryMaps::default(), refused, steps: Vec::new() };
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    let Event::ServiceApplied(facts) = service("b", "10.0.0.2") else { panic!("a service") };
    let mut facts = (*facts).clone();
    facts.external_ips = vec!["198.51.100.2".parse().unwrap()];
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        let applied =
            if name == "b" { Event::ServiceApplied(Arc::new(facts.clone())) } else { service(name, address) };
        engine.apply(applied);
        engine.apply(slice(name, &["1.1.1.1"]));
    }
    engine.apply(Event::Synced(Source::Manifests));
    let snapshot = engine.step(NOW, &mut |_| ());
    (engine, snapshot)
}

#[test]
fn invariant_04_new_frontends_are_written_in_one_batch_after_all_lists() {
    let (engine, snapshot) = start_together(None);
    assert_eq!(engine.maps().steps, [4]);
    assert_eq!((snapshot.fill.frontends, snapshot.fill.retries), (4, 0));
}

#[test]
fn invariant_03_a_refused_frontend_in_a_batch_delays_only_its_service() {
    let (mut engine, snapshot) = start_together(Some("10.0.0.2"));
    assert_eq!(engine.maps().steps, [1, 0, 1], "those before it, itself, the next service's");
    assert_eq!((snapshot.fill.frontends, snapshot.fill.retries), (2, 1));
    let answer =
        |engine: &Engine<BatchMaps>, address: &str| engine.maps().maps.dial(address.parse().unwrap());
    assert_eq!(answer(&engine, "10.0.0.2:80"), DialOutcome::Passed);
    assert_eq!(answer(&engine, "198.51.100.2:80"), DialOutcome::Passed);
    assert!(matches!(answer(&engine, "10.0.0.3:80"), DialOutcome::Served(_)));
    engine.maps_mut().refused = None;
    engine.maps_mut().steps.clear();
    let mono = engine.next_due(NOW.mono).unwrap() + Duration::from_secs(10);
    let snapshot = engine.step(ClockReading { mono, ..NOW }, &mut |_| ());
    assert_eq!((snapshot.fill.frontends, snapshot.fill.retries), (4, 0));
    assert!(matches!(answer(&engine, "198.51.100.2:80"), DialOutcome::Served(_)));
}

fn deleted(name: &str) -> [Event; 2] {
    let Event::ServiceApplied(facts) = service(name, "10.0.0.1") else { panic!("a service") };
    let Event::SliceApplied(slice) = slice(name, &[]) else { panic!("a slice") };
    [Event::ServiceDeleted(facts.key.clone(), None), Event::SliceDeleted(slice.key.clone(), None)]
}

#[test]
fn frontends_of_many_services_are_removed_in_one_batch() {
    let (mut engine, _) = start_together(None);
    engine.maps_mut().steps.clear();
    ["a", "b", "c"].into_iter().flat_map(deleted).for_each(|event| engine.apply(event));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert_eq!(engine.maps().steps, [4]);
    assert_eq!((snapshot.fill.frontends, snapshot.fill.retries), (0, 0));
}

#[test]
fn invariant_03_a_refused_removal_in_a_batch_delays_only_its_service() {
    let (mut engine, _) = start_together(None);
    engine.maps_mut().steps.clear();
    engine.maps_mut().refused = Some("10.0.0.2".parse().unwrap());
    ["a", "b", "c"].into_iter().flat_map(deleted).for_each(|event| engine.apply(event));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert_eq!(engine.maps().steps, [1, 0, 1], "those before it, itself, the next service's");
    assert_eq!((snapshot.fill.frontends, snapshot.fill.retries), (2, 1));
    let answer =
        |engine: &Engine<BatchMaps>, address: &str| engine.maps().maps.dial(address.parse().unwrap());
    assert!(matches!(answer(&engine, "10.0.0.2:80"), DialOutcome::Served(_)), "its list stays");
    assert_eq!(answer(&engine, "10.0.0.3:80"), DialOutcome::Passed);
    engine.maps_mut().refused = None;
    engine.maps_mut().steps.clear();
    let mono = engine.next_due(NOW.mono).unwrap() + Duration::from_secs(10);
    let snapshot = engine.step(ClockReading { mono, ..NOW }, &mut |_| ());
    assert_eq!((snapshot.fill.frontends, snapshot.fill.retries), (0, 0));
}

/// One of two new ports gets the index of the removed port, and none is free for the other.
#[test]
fn invariant_10_a_service_frees_old_ports_although_new_ones_do_not_fit() {
    let capacity = Capacity { ports: 2, ..Capacity::default() };
    let (mut engine, _) = Engine::start(MemoryMaps::new(capacity), Seed(0), &[Source::Manifests]).unwrap();
    let with = |ports: &[(&str, u16)]| {
        let port = |(name, number): &(&str, u16)| ServicePort {
            name: (*name).into(),
            port: NonZeroU16::new(*number).unwrap(),
            ..service_facts("web", "10.0.0.1").ports[0].clone()
        };
        let facts =
            ServiceFacts { ports: ports.iter().map(port).collect(), ..service_facts("web", "10.0.0.1") };
        Event::ServiceApplied(Arc::new(facts))
    };
    engine.apply(with(&[("b", 80), ("c", 81)]));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    let has = |engine: &Engine<MemoryMaps>, port: u16| {
        engine.maps().dial((core::net::IpAddr::from([10, 0, 0, 1]), port).into()) != DialOutcome::Passed
    };
    assert_eq!([80, 81].map(|port| has(&engine, port)), [true, true]);
    engine.apply(with(&[("a", 79), ("aa", 78), ("c", 81)]));
    engine.step(NOW, &mut |_| ());
    let there = [78, 79, 80, 81].map(|port| has(&engine, port));
    assert_eq!(there, [false, false, false, true], "no client of the removed port meets another port");
    engine.step(NOW, &mut |_| ());
    assert_eq!([78, 79, 80, 81].map(|port| has(&engine, port)), [false, true, false, true]);
}

#[test]
fn a_start_with_empty_maps_prepares_them_once() {
    let (mut engine, _) = Engine::start(Recording::default(), Seed(0), &[Source::Manifests]).unwrap();
    let mut facts = service_facts("b", "fd00::2");
    facts.cluster_ips.push("10.0.0.2".parse().unwrap());
    facts.external_ips = vec!["198.51.100.2".parse().unwrap()];
    facts.ports[0].node_port = NonZeroU16::new(30_080);
    facts.affinity_timeout = Some(60);
    facts.ip_families = vec![Family::V6, Family::V4];
    engine.apply(Event::ServiceApplied(Arc::new(facts)));
    engine.apply(slice("b", &["1.1.1.1", "1.1.1.2"]));
    engine.apply(service("a", "10.0.0.1"));
    engine.apply(slice("a", &["1.1.1.3"]));
    engine.apply(slice("of-nobody", &["1.1.1.4"]));
    engine.step(NOW, &mut |_| ());
    assert_eq!(engine.maps().prepared, [], "the first list is not whole");
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    let coming = MapGrowth { frontends: [4, 2], ports: 3, slots: [3, 0], members: 2 };
    assert_eq!(engine.maps().prepared, [coming]);
    assert_eq!(engine.maps().reserved.first(), Some(&coming), "as decided");
    engine.apply(service("c", "10.0.0.3"));
    engine.step(NOW, &mut |_| ());
    assert_eq!(engine.maps().prepared.len(), 1);
}

/// The configuration syncs at once and is small; the apiserver's list comes later and is large.
#[test]
fn a_start_prepares_the_maps_again_after_each_synced_source() {
    let sources = [Source::Config, Source::Manifests];
    let (mut engine, _) = Engine::start(Counting::default(), Seed(0), &sources).unwrap();
    engine.apply(Event::Synced(Source::Config));
    engine.step(NOW, &mut |_| ());
    (1..=40).for_each(|at| engine.apply(service(&format!("s{at}"), &format!("10.0.0.{at}"))));
    engine.apply(slice("s1", &["1.1.1.1", "1.1.1.2", "1.1.1.3"]));
    engine.step(NOW, &mut |_| ());
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    // A list takes a whole block of slots.
    let coming = MapGrowth { frontends: [40, 0], ports: 40, slots: [4, 0], ..MapGrowth::default() };
    assert_eq!(engine.maps().prepared, [MapGrowth::default(), coming]);
    engine.apply(service("later", "10.0.1.1"));
    engine.step(NOW, &mut |_| ());
    assert_eq!(engine.maps().prepared.len(), 2);
}

/// Readiness depends on it: an operator removes kube-proxy once this daemon is ready.
#[test]
fn invariant_08_a_start_is_filling_until_every_synced_source_is_written() {
    let sources = [Source::Config, Source::Manifests];
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &sources).unwrap();
    engine.limit_pieces(64);
    engine.apply(Event::Synced(Source::Config));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert!(
        snapshot.programmed && !snapshot.filling && !snapshot.is_synced(),
        "there is nothing to be written"
    );
    (1..=40).for_each(|at| engine.apply(service(&format!("s{at}"), &format!("10.0.0.{at}"))));
    engine.apply(Event::Synced(Source::Manifests));
    let mut steps = 0;
    loop {
        let snapshot = engine.step(NOW, &mut |_| ());
        assert!(snapshot.is_synced());
        if !snapshot.filling {
            assert_eq!(snapshot.fill.frontends, 40);
            break;
        }
        steps += 1;
    }
    assert!(steps > 3, "{steps}");
    // Later services are not part of the start.
    (1..=40).for_each(|at| engine.apply(service(&format!("t{at}"), &format!("10.0.1.{at}"))));
    assert!(!engine.step(NOW, &mut |_| ()).filling && !engine.is_written());
}

#[test]
fn a_start_that_finds_its_services_in_the_maps_prepares_nothing() {
    let first = engine(vec![service("a", "10.0.0.1"), slice("a", &["1.1.1.1"])]);
    let maps = Recording { maps: first.into_maps(), ..Recording::default() };
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    engine.apply(service("a", "10.0.0.1"));
    engine.apply(slice("a", &["1.1.1.1"]));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    assert_eq!(engine.maps().prepared, []);
}

#[test]
fn changes_by_another_writer_are_found_named_and_repaired() {
    use crate::op::{FrontendType, PortIndex, QuotaId, Word};

    let mut engine = engine(vec![
        service("a", "10.0.0.1"),
        slice("a", &["1.1.1.1"]),
        service("b", "10.0.0.2"),
        slice("b", &["1.1.1.2"]),
    ]);
    assert_eq!(engine.check_maps(), Ok(Vec::new()), "nothing was touched");
    let key = |address: &str| FrontendKey {
        address: address.parse().unwrap(),
        port: PORT,
        transport: crate::keys::Transport::Tcp,
    };
    let value =
        FrontendValue { port: PortIndex(9), kind: FrontendType::ClusterIp, quota: QuotaId::default() };
    let address = "192.0.2.9".parse().unwrap();
    for action in [
        Action::RemoveFrontend(key("10.0.0.1")),
        Action::PublishWord(PortIndex(1), crate::list::Scope::Cluster, Word::EMPTY),
        Action::InsertFrontend(key("10.0.0.9"), value),
        Action::InsertNodeAddress(address),
    ] {
        engine.maps_mut().execute(&action).unwrap();
    }
    let drift: Vec<_> = engine.check_maps().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        drift,
        [
            "frontend 10.0.0.1:80/TCP of default/a is gone or points elsewhere",
            "the backends or sources of port */TCP of default/b were changed",
            "frontend 10.0.0.9:80/TCP is in the maps, but holdfast did not write it",
            "node address 192.0.2.9 was added or removed",
        ]
    );
    let snapshot = engine.step(NOW, &mut |_| ());
    assert_eq!(snapshot.counters.drift, 4);
    assert_eq!(snapshot.checked, Some(MapCheck { at: NOW.wall, differences: 4 }));
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.2:80"]);
    assert_eq!(engine.maps().dial("10.0.0.9:80".parse().unwrap()), DialOutcome::Passed);
    assert_eq!(engine.check_maps(), Ok(Vec::new()), "everything is repaired");
    let snapshot = engine.step(ClockReading { wall: Timestamp(NOW.wall.0 + 60), ..NOW }, &mut |_| ());
    assert_eq!(snapshot.checked, Some(MapCheck { at: Timestamp(NOW.wall.0 + 60), differences: 0 }));
    assert_eq!(snapshot.counters.drift, 4);
}

/// The maps may rightly hold objects of a source that has not synced, so nothing is compared before.
#[test]
fn a_comparison_before_the_first_sync_returns_not_yet() {
    let (mut engine, _) = Engine::start(Recording::default(), Seed(0), &[Source::Manifests]).unwrap();
    engine.apply(service("a", "10.0.0.1"));
    engine.step(NOW, &mut |_| ());
    assert_eq!(engine.check_maps(), Err(CheckError::NotYet));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    assert_eq!(engine.check_maps(), Ok(Vec::new()));
}

/// Maps that count look-ups, and cannot be read while `is_unreadable`.
#[derive(Default)]
struct Counting {
    maps: MemoryMaps,
    looked_up: usize,
    is_unreadable: bool,
    prepared: Vec<MapGrowth>,
}

impl Maps for Counting {
    fn prepare(&mut self, coming: &MapGrowth) {
        self.prepared.push(*coming);
    }

    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        self.maps.execute(action)
    }

    forward_to_maps!();

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        self.looked_up += 1;
        let unreadable = || MapError::Refused { op: "read", cause: "for a test".to_owned() };
        if self.is_unreadable { Err(unreadable()) } else { self.maps.read_value(key) }
    }
}

/// Many small services, and one with as many frontends.
fn counting() -> Engine<Counting> {
    let (mut engine, _) = Engine::start(Counting::default(), Seed(0), &[Source::Manifests]).unwrap();
    let address = |number: u32| core::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string();
    (0..1_000).for_each(|at| engine.apply(service(&format!("s{at}"), &address(at))));
    let mut heavy = service_facts("heavy", "10.1.0.1");
    let port = |at| ServicePort {
        name: format!("p{at}").into(),
        port: NonZeroU16::new(at).unwrap(),
        ..heavy.ports.first().unwrap().clone()
    };
    heavy.ports = (1..=1_000).map(port).collect();
    engine.apply(Event::ServiceApplied(Arc::new(heavy)));
    engine.apply(Event::Synced(Source::Manifests));
    while !engine.is_written() {
        engine.step(NOW, &mut |_| ());
    }
    engine
}

/// With 100,000 services, comparing all maps at once would delay each change by a tenth of a second.
#[test]
fn invariant_10_one_step_of_a_comparison_looks_up_at_most_a_piece() {
    let mut engine = counting();
    engine.begin_check();
    let (mut pieces, mut most) = (0, 0);
    let drift = loop {
        let before = engine.maps().looked_up;
        let ended = engine.continue_check();
        (pieces, most) = (pieces + 1, most.max(engine.maps().looked_up - before));
        if let Some(drift) = ended {
            break drift;
        }
    };
    assert_eq!((drift, engine.maps().looked_up), (Ok(Vec::new()), 2_000));
    let bound = usize::try_from(crate::limits::PIECE_WORK / crate::limits::FRONTEND_WORK).unwrap() + 1;
    assert!(most <= bound && pieces > 2_000 / bound, "{most} of {bound} in one of {pieces} pieces");
}

#[test]
fn unreadable_maps_end_a_comparison_and_the_next_one_restarts() {
    let mut engine = counting();
    engine.maps_mut().is_unreadable = true;
    assert_eq!(engine.check_maps().unwrap_err().to_string(), "cannot read: for a test");
    engine.maps_mut().is_unreadable = false;
    assert_eq!(engine.check_maps(), Ok(Vec::new()));
    assert_eq!(engine.step(NOW, &mut |_| ()).counters.drift, 0);
}

#[test]
fn an_unknown_flag_is_found_and_removed() {
    use crate::op::WordFlags;

    let mut engine = engine(vec![service("a", "10.0.0.1"), slice("a", &["1.1.1.1"])]);
    let dump = engine.maps_mut().dump().unwrap();
    let word = dump.ports.first().unwrap().cluster.0;
    let flags = word.flags.with(WordFlags::UNKNOWN, true);
    let foreign = Action::PublishWord(
        dump.ports.first().unwrap().index,
        crate::list::Scope::Cluster,
        crate::op::Word { flags, ..word },
    );
    engine.maps_mut().execute(&foreign).unwrap();
    assert_eq!(engine.check_maps().unwrap().len(), 1);
    engine.step(NOW, &mut |_| ());
    let after = engine.maps_mut().dump().unwrap();
    assert_eq!(after.ports.first().unwrap().cluster.0.flags, word.flags);
}

#[test]
fn sources_changed_by_another_writer_are_rewritten() {
    use crate::op::SourceKey;
    use crate::source_ranges::SourceRange;

    let mut facts = service_facts("a", "10.0.0.1");
    facts.ingress = vec![crate::facts::Ingress { address: "10.0.0.9".parse().unwrap(), proxied: false }];
    facts.source_ranges = vec!["192.0.2.0/24".into()];
    let mut engine = engine(vec![Event::ServiceApplied(Arc::new(facts)), slice("a", &["1.1.1.1"])]);
    let before = engine.maps_mut().dump().unwrap();
    let [own] = before.sources.as_deref().unwrap() else { panic!("{before:?}") };
    let foreign = SourceKey { range: SourceRange::parse("198.51.100.0/24").unwrap(), ..*own };
    for (change, gone) in [
        (Action::InsertSource(foreign, crate::op::QuotaId::default()), false),
        (Action::RemoveSource(*own), true),
    ] {
        engine.maps_mut().execute(&change).unwrap();
        let drift: Vec<_> = engine.check_maps().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(drift, ["the backends or sources of port */TCP of default/a were changed"], "{gone}");
        engine.step(NOW, &mut |_| ());
        assert_eq!(engine.maps_mut().dump().unwrap().sources, before.sources);
    }
    assert_eq!(engine.check_maps(), Ok(Vec::new()));
}
