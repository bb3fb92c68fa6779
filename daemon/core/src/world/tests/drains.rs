//! How a drain changes lists, which services it touches, and what a restart finds of it.

use std::string::String;

use super::*;
use crate::change::Cause;
use crate::drains::{Drain, DrainChange, DrainOrder, Drains};
use crate::snapshot::{UnusedReason, Verdict};

fn by_root() -> DrainOrder {
    DrainOrder { uid: 0, user: Some("root".into()), at: Timestamp(100) }
}

/// `1.1.1.1`, `1.1.1.1:8080` or either with ` of a`, a service of this name.
fn drain(text: &str) -> Drain {
    let (what, service) = text.split_once(" of ").map_or((text, None), |(what, of)| (what, Some(of)));
    let service = service.map(|name| service_key(name).name);
    match what.parse::<SocketAddr>() {
        Ok(backend) => Drain::new(backend.ip(), NonZeroU16::new(backend.port()), service),
        Err(_) => Drain::new(ip(what), None, service),
    }
}

fn drains(each: &[&str]) -> Arc<Drains> {
    let mut drains = Drains::default();
    each.iter().for_each(|text| drains.add(drain(text), by_root()).unwrap());
    Arc::new(drains)
}

fn draining(each: &[&str]) -> Event {
    Event::DrainsApplied(drains(each), by_root())
}

fn plain(name: &str, address: &str) -> Event {
    applied(service(name, address, &[]))
}

fn two(name: &str) -> Event {
    slice(name, &["1.1.1.1", "1.1.1.2"])
}

/// The backends in the maps for clients of a port.
fn listed(rig: &Rig, port: usize) -> Vec<IpAddr> {
    rig.dump().ports[port].backends(Scope::Cluster).keys().map(|slot| slot.address).collect()
}

fn because(snapshot: &Snapshot, name: &str, backend: &str) -> Option<UnusedReason> {
    let view = view(snapshot, name);
    let port = &view.ports[0];
    port.unused_reason(&port.rows.find(backend.parse().unwrap()).unwrap())
}

#[test]
fn a_drained_backend_gets_no_clients_and_differs_from_weight_zero() {
    let mut rig = Rig::new();
    rig.turn(vec![plain("a", "10.0.0.1"), two("a")]);
    let snapshot = rig.turn(vec![draining(&["1.1.1.1"])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.2")]);
    assert_eq!(because(&snapshot, "a", "1.1.1.1:8080"), Some(UnusedReason::Drained));
    assert_eq!(because(&snapshot, "a", "1.1.1.2:8080"), None);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, Verdict::Serving);
    let snapshot = rig.turn(vec![draining(&[])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.1"), ip("1.1.1.2")]);
    assert_eq!(because(&snapshot, "a", "1.1.1.1:8080"), None);
}

#[test]
fn drains_make_no_list_empty() {
    let mut rig = Rig::new();
    rig.turn(vec![plain("a", "10.0.0.1"), two("a")]);
    let snapshot = rig.turn(vec![draining(&["1.1.1.1", "1.1.1.2"])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.1"), ip("1.1.1.2")], "all have the same weight");
    assert_eq!(because(&snapshot, "a", "1.1.1.1:8080"), None);
    assert!(view(&snapshot, "a").ports[0].rows.weights().is_drained("1.1.1.1:8080".parse().unwrap()));
    // The other backend leaves.
    rig.turn(vec![draining(&["1.1.1.1"]), slice("a", &["1.1.1.1"])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.1")]);
}

/// Most services on a drained node have no other backend.
#[test]
fn a_drain_that_changes_nothing_for_clients_writes_nothing() {
    let mut rig = Rig::new();
    rig.turn(vec![plain("a", "10.0.0.1"), slice("a", &["1.1.1.1"]), plain("b", "10.0.0.2"), two("b")]);
    let snapshot = rig.turn(vec![draining(&["1.1.1.1 of a"])]);
    assert_eq!((rig.planned, rig.log.as_slice()), (1, &[][..]));
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").status, crate::snapshot::Status::Done);
    rig.turn(vec![draining(&["1.1.1.1 of a", "1.1.1.1 of b", "1.1.1.2 of b"])]);
    assert_eq!(rig.log, []);
}

#[test]
fn a_drain_overrides_weights() {
    let mut rig = Rig::with(Capacity { slots: 1 << 18, ports: 64, ..Capacity::default() });
    let weights = crate::weights::Weights::parse("1.1.1.1=5,1.1.1.3=0").unwrap();
    let asked = crate::weights::WeightSetting { weights, wrong: None };
    let facts = ServiceFacts { weights: Some(asked.into()), ..service("a", "10.0.0.1", &[]) };
    rig.turn(vec![applied(facts), slice("a", &["1.1.1.1", "1.1.1.2", "1.1.1.3"]), draining(&["1.1.1.1"])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.2")]);
    rig.turn(vec![draining(&[])]);
    let dump = rig.dump();
    let shares: Vec<_> = dump.ports[0].backends(Scope::Cluster).values().copied().collect();
    assert!(shares[0] > 4 * shares[1] && shares.len() == 2, "its weight is as it was: {shares:?}");
}

/// The names are those of an incident.
#[test]
fn a_drain_touches_no_service_of_a_similar_name() {
    let names = ["kubernetes", "kubernetes-intranet", "kube", "kubernetes-"];
    let mut rig = Rig::new();
    let each = names.iter().zip(1_u8..);
    rig.turn(each.flat_map(|(name, at)| [plain(name, &std::format!("10.0.0.{at}")), two(name)]).collect());
    let snapshot = rig.turn(vec![draining(&["1.1.1.1 of kubernetes"])]);
    assert_eq!(rig.planned, 1);
    assert_eq!(because(&snapshot, "kubernetes", "1.1.1.1:8080"), Some(UnusedReason::Drained));
    for other in &names[1..] {
        assert_eq!(because(&snapshot, other, "1.1.1.1:8080"), None, "{other}");
    }
    // Later decisions must agree.
    let snapshot =
        rig.turn(names.iter().map(|name| slice(name, &["1.1.1.1", "1.1.1.2", "1.1.1.3"])).collect());
    assert_eq!(because(&snapshot, "kubernetes", "1.1.1.1:8080"), Some(UnusedReason::Drained));
    assert_eq!(because(&snapshot, "kubernetes-intranet", "1.1.1.1:8080"), None);
}

#[test]
fn a_drain_touches_only_services_that_have_the_backend() {
    let mut rig = Rig::new();
    rig.turn(vec![plain("a", "10.0.0.1"), two("a"), plain("b", "10.0.0.2"), slice("b", &["1.1.1.11"])]);
    rig.turn(vec![draining(&["1.1.1.1:8080"])]);
    assert_eq!(rig.planned, 1);
    let caused: Vec<_> = rig.changes.iter().flat_map(|change| &change.causes).collect();
    let [Cause::Drained(turned)] = &caused[..] else { panic!("{caused:?}") };
    assert_eq!(**turned, DrainChange { drain: drain("1.1.1.1:8080"), is_on: true, by: by_root() });
    rig.turn(vec![draining(&["1.1.1.1:8080", "1.1.1.1:9", "9.9.9.9"])]);
    assert_eq!(rig.planned, 0, "no service has these");
    rig.turn(vec![draining(&[])]);
    assert_eq!(rig.planned, 1);
    let [Cause::Drained(turned)] = &rig.changes[0].causes[..] else { panic!() };
    assert!(!turned.is_on);
}

/// Each change takes one scan, and neither is lost.
#[test]
fn two_drain_changes_before_the_scan_both_count() {
    let mut rig = Rig::new();
    rig.turn(vec![
        plain("a", "10.0.0.1"),
        two("a"),
        plain("b", "10.0.0.2"),
        slice("b", &["1.1.1.3", "1.1.1.4"]),
    ]);
    rig.turn(vec![draining(&["1.1.1.1"]), draining(&["1.1.1.1", "1.1.1.3"])]);
    assert_eq!((listed(&rig, 0), listed(&rig, 1)), (vec![ip("1.1.1.2")], vec![ip("1.1.1.4")]));
    rig.turn(vec![draining(&["1.1.1.3"]), draining(&["1.1.1.1", "1.1.1.3"])]);
    assert_eq!(rig.log, [], "undrained and drained again is as before");
}

#[test]
fn a_drain_scan_over_many_services_proceeds_in_pieces() {
    const SERVICES: usize = 100;
    let mut rig = Rig::new();
    let address = |at: usize| std::format!("10.0.0.{at}");
    let named = |at: usize| std::format!("s{at}");
    let known = (1..SERVICES).flat_map(|at| [plain(&named(at), &address(at)), two(&named(at))]);
    rig.turn(known.collect());
    rig.world.queue.most = 10;
    rig.turn(vec![draining(&["1.1.1.1"])]);
    assert!(rig.planned < 10, "{}", rig.planned);
    assert!(rig.world.has_dirty());
    // Services decided meanwhile use the new drains, and a further change has a scan of its own.
    rig.turn(vec![slice("s99", &["1.1.1.1", "1.1.1.2", "1.1.1.3"]), draining(&["1.1.1.1", "1.1.1.3"])]);
    let mut turns = 0;
    let snapshot = loop {
        let snapshot = rig.turn(vec![]);
        turns += 1;
        if !rig.world.has_dirty() {
            break snapshot;
        }
        assert!(turns < 1_000, "the scan does not end");
    };
    for at in 1..SERVICES {
        assert_eq!(because(&snapshot, &named(at), "1.1.1.1:8080"), Some(UnusedReason::Drained), "{at}");
    }
    assert_eq!(because(&snapshot, "s99", "1.1.1.3:8080"), Some(UnusedReason::Drained));
}

/// Whatever follows, and wherever the scan is.
#[test]
fn each_drain_change_is_scanned_however_many_follow() {
    const SERVICES: usize = 40;
    let mut rig = Rig::new();
    let all = (1..SERVICES).flat_map(|at| {
        let name = std::format!("s{at}");
        [plain(&name, &std::format!("10.0.0.{at}")), two(&name)]
    });
    rig.turn(all.collect());
    // A piece of the scan is about three services.
    rig.world.queue.most = 6;
    let mut others = vec![String::from("1.1.1.1")];
    let is_drained = |snapshot: &Snapshot, at: usize| {
        because(snapshot, &std::format!("s{at}"), "1.1.1.1:8080") == Some(UnusedReason::Drained)
    };
    for last in 1..100 {
        let texts: Vec<&str> = others.iter().map(String::as_str).collect();
        let snapshot = rig.turn(vec![draining(&texts)]);
        if (1..SERVICES).all(|at| is_drained(&snapshot, at)) {
            return;
        }
        others.push(std::format!("9.9.9.{last}"));
        for _ in 0..40 {
            rig.turn(vec![]);
        }
    }
    panic!("the first order never came to its end");
}

#[test]
fn a_drain_scan_counts_its_work() {
    let mut rig = Rig::with(Capacity { slots: 1 << 14, ports: 1 << 12, ..Capacity::default() });
    let many = |range: core::ops::Range<u16>| {
        let all = range.flat_map(|at| {
            let [high, low] = at.to_be_bytes();
            let name = std::format!("s{at}");
            let own = slice(&name, &[&std::format!("1.1.{high}.{low}")]);
            [plain(&name, &std::format!("10.0.{high}.{low}")), own]
        });
        all.collect()
    };
    let mut cost = |range| {
        rig.turn(many(range));
        crate::work::take();
        rig.turn(vec![draining(&["1.1.0.1"])]);
        let cost = crate::work::take();
        assert_eq!(rig.planned, 1);
        rig.turn(vec![draining(&[])]);
        cost
    };
    let (few, all) = (cost(1..501), cost(501..1_001));
    assert!(all < few + 2_000, "twice the services: {few}, then {all}");
}

#[test]
fn with_affinity_a_drained_backend_stays_a_member_of_its_list() {
    let mut rig = Rig::new();
    let facts = ServiceFacts { affinity_timeout: Some(60), ..service("a", "10.0.0.1", &[]) };
    rig.turn(vec![applied(facts), two("a"), draining(&["1.1.1.1"])]);
    let dump = rig.dump();
    let own = dump.members.iter().filter(|(it, _)| it.membership == Membership::List(Scope::Cluster));
    assert_eq!(own.map(|(it, _)| it.backend.ip()).collect::<Vec<_>>(), [ip("1.1.1.1"), ip("1.1.1.2")]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.2")]);
}

#[test]
fn a_backend_of_a_held_list_can_be_drained_and_comes_back() {
    let mut rig = Rig::new();
    rig.turn(vec![settings(OnEmpty::Hold), plain("a", "10.0.0.1"), two("a")]);
    let none = || Event::SliceApplied(Arc::new(slice_facts("a", "a", &[])));
    rig.turn(vec![none()]);
    let snapshot = rig.turn(vec![draining(&["1.1.1.1"])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.2")]);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, Verdict::Held);
    assert_eq!(because(&snapshot, "a", "1.1.1.1:8080"), Some(UnusedReason::Drained));
    rig.turn(vec![draining(&["1.1.1.1", "1.1.1.2"])]);
    assert_eq!(listed(&rig, 0).len(), 2, "no list becomes empty");
    rig.turn(vec![draining(&[])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.1"), ip("1.1.1.2")]);
}

#[test]
fn a_hold_that_begins_during_a_drain_writes_nothing() {
    let mut rig = Rig::new();
    rig.turn(vec![settings(OnEmpty::Hold), plain("a", "10.0.0.1"), two("a"), draining(&["1.1.1.1"])]);
    let snapshot = rig.turn(vec![Event::SliceApplied(Arc::new(slice_facts("a", "a", &[])))]);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, Verdict::Held);
    assert_eq!((rig.log.as_slice(), listed(&rig, 0)), (&[][..], vec![ip("1.1.1.2")]));
    assert_eq!(because(&snapshot, "a", "1.1.1.1:8080"), Some(UnusedReason::Drained));
    rig.turn(vec![draining(&[])]);
    assert_eq!(listed(&rig, 0), [ip("1.1.1.1"), ip("1.1.1.2")], "it was held with the others");
}

/// One of two backends ends, and then the slice is deleted. In one turn, no decision is made between the two.
fn one_ends_and_all_vanishes() -> [Event; 2] {
    let mut endpoints = EndpointsBuilder::new(Family::V4);
    let ends = Conditions { ready: false, serving: false, terminating: true };
    for (address, conditions) in [("1.1.1.1", ends), ("1.1.1.2", Conditions::READY)] {
        let address = ip(address);
        let one = Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
        endpoints.push(one).unwrap();
    }
    let ending = SliceFacts { endpoints: endpoints.finish(), ..slice_facts("a", "a", &[]) };
    let key = ending.key.clone();
    [Event::SliceApplied(Arc::new(ending)), Event::SliceDeleted(key, None)]
}

#[test]
fn invariant_07_a_vanished_weightless_backend_is_held_when_the_listed_one_ended() {
    let weights = crate::weights::Weights::parse("1.1.1.2=0").unwrap();
    let asked = crate::weights::WeightSetting { weights, wrong: None };
    let weighing = ServiceFacts { weights: Some(asked.into()), ..service("a", "10.0.0.1", &[]) };
    for (facts, drained) in [(weighing, &[][..]), (service("a", "10.0.0.1", &[]), &["1.1.1.2"])] {
        for turns in [1, 2] {
            let mut rig = Rig::new();
            rig.turn(vec![settings(OnEmpty::Auto), applied(facts.clone()), two("a"), draining(drained)]);
            assert_eq!(listed(&rig, 0), [ip("1.1.1.1")]);
            let mut events = one_ends_and_all_vanishes().to_vec();
            let last = events.split_off(2 / turns).into_iter();
            rig.turn(events);
            let snapshot = last.fold(rig.turn(vec![]), |_, event| rig.turn(vec![event]));
            assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, Verdict::Held, "{drained:?}, {turns}");
            assert_eq!(listed(&rig, 0), [ip("1.1.1.2")], "{drained:?}, {turns}");
        }
    }
}

/// A drain that the start finds is no change and makes no record.
#[test]
fn invariant_08_a_restart_between_two_drain_changes_changes_nothing() {
    let objects = || vec![plain("a", "10.0.0.1"), two("a"), plain("b", "10.0.0.2"), two("b")];
    let mut before = Rig::new();
    before.turn(objects());
    let snapshot = before.turn(vec![draining(&["1.1.1.1 of a"])]);
    // The saved rows do not contain drains.
    let mut remembered = SavedSnapshot::from(&snapshot);
    for view in remembered.services.iter_mut().map(Arc::make_mut) {
        for port in &mut view.ports {
            let weights = port.rows.weights().clone().with_drained(core::iter::empty());
            let rows = Arc::new(crate::list::Rows::clone(&port.rows).with_weights(weights));
            port.last = crate::list::LastList::restore(Some(Arc::clone(&rows)));
            port.rows = rows;
        }
    }
    let mut world = World::new(Seed(0), Capacity { slots: 256, ports: 64, ..Capacity::default() }, &[SOURCE]);
    assert_eq!(world.adopt(&before.dump()), []);
    world.tables.drains = drains(&["1.1.1.1 of a"]);
    let node = NodeFacts { name: "here".into(), ..NodeFacts::default() };
    let mut again = Rig { world, ..Rig::new() };
    again.world.restore_services(remembered, again.clock());
    again.turn(vec![Event::NodeApplied(Arc::new(node)), settings(OnEmpty::Refuse)]);
    let mut events = objects();
    events.push(Event::Synced(SOURCE));
    let snapshot = again.turn(events);
    assert_eq!(again.log, []);
    assert_eq!(because(&snapshot, "a", "1.1.1.1:8080"), Some(UnusedReason::Drained));
    assert_eq!(because(&snapshot, "b", "1.1.1.1:8080"), None);
    assert!(again.changes.iter().all(|change| !change.visible), "{:?}", again.changes);
}
