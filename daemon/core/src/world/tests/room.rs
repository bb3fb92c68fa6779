//! The slots for Maglev tables: their limits, and services whose table does not fit.

use super::*;
use crate::op::WordFlags;

const PLACES: u32 = 16_381;
const BLOCK: u32 = 1 << 14;

fn slots(slots: u32) -> Rig {
    Rig::with(Capacity { slots, ports: 256, ..Capacity::default() })
}

/// A service with two backends; the first has this weight, which requires a table.
fn weighing(name: &str, number: u8, weight: u16) -> Vec<Event> {
    let facts = service(name, &std::format!("10.0.0.{number}"), &[]);
    let weights = crate::weights::Weights::parse(&std::format!("1.1.1.1={weight}")).unwrap();
    let asked = crate::weights::WeightSetting { weights, wrong: None };
    vec![applied(ServiceFacts { weights: Some(asked.into()), ..facts }), slice(name, &["1.1.1.1", "1.1.1.2"])]
}

/// How many slots the cluster list of the service's only port has.
fn count(rig: &Rig, name: &str) -> u32 {
    let word = rig.world.services.get(rig.id(name)).unwrap().ports[0].realized.list(Scope::Cluster).word;
    assert_eq!(word.flags.contains(WordFlags::TABLE), word.count == PLACES);
    word.count
}

fn used(rig: &Rig) -> u32 {
    rig.world.space.used(Family::V4)
}

/// Continues until no grace period is left.
pub(super) fn rest(rig: &mut Rig) {
    for _ in 0..20 {
        rig.grace();
    }
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Four services whose tables use up their namespace's quota.
fn full() -> Rig {
    let mut rig = slots(1 << 18);
    rig.turn(NAMES.iter().zip(1..).flat_map(|(name, number)| weighing(name, number, 2)).collect());
    assert_eq!(NAMES.map(|name| count(&rig, name)), [PLACES; 4]);
    rig
}

#[test]
fn invariant_10_replaced_tables_exceed_the_budget_by_at_most_one() {
    let mut rig = full();
    let most = limits::table_slots_of_namespace_max(1 << 18) + BLOCK;
    for round in 3..40 {
        rig.turn(NAMES.iter().zip(1..).flat_map(|(name, number)| weighing(name, number, round)).collect());
        assert!(used(&rig) <= most + 1_000, "round {round}: {} slots of {most} are taken", used(&rig));
        assert_eq!(NAMES.map(|name| count(&rig, name) > 0), [true; 4]);
        if round % 8 == 0 {
            rig.grace();
        }
    }
    rest(&mut rig);
    assert_eq!(NAMES.map(|name| count(&rig, name)), [PLACES; 4], "each table fits again");
    assert_eq!(used(&rig), 4 * BLOCK);
}

#[test]
fn a_table_of_a_namespace_at_its_quota_is_replaced() {
    let mut rig = full();
    rig.turn(weighing("b", 2, 7));
    assert_eq!(NAMES.map(|name| count(&rig, name)), [PLACES; 4]);
}

#[test]
fn a_service_waiting_for_a_table_gets_one_when_another_leaves() {
    let mut rig = full();
    rig.turn(weighing("e", 5, 2));
    assert_eq!(count(&rig, "e"), 2);
    rig.turn(vec![deleted("a")]);
    rest(&mut rig);
    assert_eq!(count(&rig, "e"), PLACES, "no event concerned it meanwhile");
}

#[test]
fn a_service_whose_table_still_does_not_fit_writes_nothing() {
    let mut rig = full();
    rig.turn(weighing("e", 5, 2));
    rig.retry(rig.id("e"));
    rig.turn(vec![]);
    assert_eq!((rig.log.len(), rig.planned), (0, 1));
    // Capacity comes free, but not for a table.
    rig.turn(vec![applied(service("f", "10.0.0.6", &[])), slice("f", &["1.1.1.1"])]);
    rig.turn(vec![slice("f", &["1.1.1.2"])]);
    for _ in 0..4 {
        rig.grace();
        assert_eq!((rig.log.len(), rig.planned), (0, 0));
    }
    assert_eq!(count(&rig, "e"), 2);
}

/// The budget allows the table, but no run of slots is long enough.
#[test]
fn a_table_is_built_when_a_run_of_slots_comes_free() {
    let mut rig = slots(1 << 16);
    let taken = [1 << 15, 1 << 14, 1 << 13].map(|count| {
        let base = rig.world.space.slots(Family::V4).allocate(count).unwrap();
        crate::op::SlotRange { family: Family::V4, base, count }
    });
    rig.turn(weighing("a", 1, 2));
    assert_eq!(count(&rig, "a"), 2);
    rig.retry(rig.id("a"));
    rig.turn(vec![]);
    assert_eq!((rig.log.len(), rig.planned), (0, 1), "its list is there");
    rig.world.space.freed.now.ranges.extend(taken);
    rest(&mut rig);
    assert_eq!((count(&rig, "a"), used(&rig)), (PLACES, BLOCK));
}

#[test]
fn tables_that_a_start_finds_are_counted() {
    let before = full();
    let mut again = slots(1 << 18);
    assert_eq!(again.world.adopt(&before.dump()), []);
    let known = NAMES.iter().zip(1..).flat_map(|(name, number)| weighing(name, number, 2));
    again.turn(known.chain(weighing("e", 5, 2)).collect());
    let most = limits::table_slots_of_namespace_max(1 << 18) + BLOCK;
    assert!(used(&again) <= most + 1_000, "{} slots of {most}", used(&again));
    rest(&mut again);
    let tables = ["a", "b", "c", "d", "e"].map(|name| count(&again, name));
    assert_eq!(tables.iter().filter(|count| **count == PLACES).count(), 4);
}

/// The maps grow by the estimate.
#[test]
fn invariant_10_the_growth_estimate_respects_the_table_limit() {
    let mut rig = slots(1 << 18);
    let number = |number: u16| NonZeroU16::new(1_000 + number).unwrap();
    let name = |it: u16| -> Arc<str> { std::format!("p{it}").into() };
    let port =
        |it| ServicePort { name: name(it), protocol: Protocol::TCP, port: number(it), node_port: None };
    let ports = (0..100).map(port).collect();
    let [Event::ServiceApplied(facts), Event::SliceApplied(slice)] = &weighing("a", 1, 2)[..] else {
        unreachable!()
    };
    let of_slice = |it| SlicePort { name: name(it), protocol: Protocol::TCP, port: number(it) };
    let slice = SliceFacts { ports: (0..100).map(of_slice).collect(), ..(**slice).clone() };
    rig.world.apply(applied(ServiceFacts { ports, ..(**facts).clone() }));
    rig.world.apply(Event::SliceApplied(Arc::new(slice)));
    let now = rig.clock();
    rig.world.decide(now);
    let [v4, _] = rig.world.estimate_pending_growth().slots;
    assert!(v4 <= limits::table_slots_max(1 << 18), "{v4} slots are coming");
}

/// A service with a list of these backends.
fn listed(namespace: &str, number: u8, backends: std::ops::Range<u32>) -> Vec<Event> {
    let name = ObjectName::new(namespace, &std::format!("s-{number}")).unwrap();
    let key = ServiceKey { name: name.clone(), source: SOURCE };
    let address = std::format!("10.{}.0.{number}", namespace.len());
    let facts = ServiceFacts { key, ..service("x", &address, &[]) };
    let backends: Vec<_> = backends.map(|it| core::net::Ipv4Addr::from_bits(0x0101_0000 + it)).collect();
    let backends: Vec<_> = backends.iter().map(std::string::ToString::to_string).collect();
    let backends: Vec<&str> = backends.iter().map(AsRef::as_ref).collect();
    let service = Some(name.name().into());
    let key = SliceKey { name, source: SOURCE };
    vec![
        applied(facts),
        Event::SliceApplied(Arc::new(SliceFacts { key, service, ..slice_facts("x", "x", &backends) })),
    ]
}

/// Namespaces, each named by a number of letters, take all that each may have.
pub(super) fn filled(rig: &mut Rig, namespaces: usize) {
    for length in 1..=namespaces {
        for number in 0..200 {
            let backends = 1 << (6 - number / 32);
            rig.turn(listed(&"t".repeat(length), number, 0..backends));
        }
    }
}

/// The backends of a service's list in the maps.
pub(super) fn found(rig: &Rig, namespace: &str, number: u8) -> Vec<IpAddr> {
    let name = ObjectName::new(namespace, &std::format!("s-{number}")).unwrap();
    let id = rig.world.tables.find_id(&ServiceKey { name, source: SOURCE }).unwrap();
    let port = &rig.world.services.get(id).unwrap().ports[0];
    let list = &port.realized.cluster;
    list.rows.slots_in_range(Scope::Cluster, list.word.count).map(|slot| slot.backend().ip()).collect()
}

#[test]
fn invariant_10_a_list_changes_within_its_block_when_slots_are_full() {
    let mut rig = Rig::with(Capacity { slots: 1 << 10, ports: 1 << 12, ..Capacity::default() });
    rig.turn(listed("web", 1, 0..3));
    filled(&mut rig, 12);
    assert!(rig.world.space.headroom(Family::V4) <= 1);
    for round in 1..20 {
        // The others' lists change too.
        let others = (0..40).flat_map(|number| listed("t", number, round..round + 16));
        rig.turn(others.chain(listed("web", 1, round..round + 4 - round % 2)).collect());
        rest(&mut rig);
        let expected = [ip(&std::format!("1.1.0.{round}"))];
        assert_eq!(
            (&found(&rig, "web", 1)[..1], found(&rig, "web", 1).len()),
            (&expected[..], (4 - round % 2) as usize)
        );
    }
}

#[test]
fn invariant_10_lists_of_one_namespace_leave_slots_to_another() {
    let mut rig = Rig::with(Capacity { slots: 1 << 10, ports: 1 << 12, ..Capacity::default() });
    filled(&mut rig, 1);
    let left = rig.world.space.headroom(Family::V4);
    assert!(left >= 64 && used(&rig) >= 7 * left, "{left} of {} are left", used(&rig));
    rig.turn(listed("web", 1, 0..5));
    assert_eq!(found(&rig, "web", 1).len(), 5);
    rig.turn(listed("web", 1, 0..9));
    assert_eq!(found(&rig, "web", 1).len(), 9, "and grows");
}

#[test]
fn invariant_10_all_slots_and_indices_come_free() {
    let mut rig = Rig::with(Capacity { slots: 1 << 10, ports: 1 << 12, ..Capacity::default() });
    rig.turn(listed("web", 1, 0..3));
    filled(&mut rig, 3);
    for length in 1..=3 {
        for number in 0..200 {
            let name = ObjectName::new(&"t".repeat(length), &std::format!("s-{number}")).unwrap();
            let key = ServiceKey { name: name.clone(), source: SOURCE };
            let slice = SliceKey { name, source: SOURCE };
            rig.turn(vec![Event::ServiceDeleted(key, None), Event::SliceDeleted(slice, None)]);
        }
    }
    rest(&mut rig);
    let kept: u32 = (0..10).map(|order| limits::spare_blocks(1 << 10, order) << order).sum();
    assert_eq!((used(&rig), rig.world.space.headroom(Family::V4)), (4, (1 << 10) - 4 - kept));
    assert_eq!(rig.world.space.lists[0].used(), 4);
}

/// No slot is free for a second list, so the port of the new name gets the slots of the old one.
#[test]
fn invariant_10_a_renamed_port_needs_no_more_slots() {
    let mut rig = Rig::with(Capacity { slots: 1 << 10, ports: 1 << 12, ..Capacity::default() });
    let named = |name: &str, backends| {
        let [Event::ServiceApplied(facts), Event::SliceApplied(slice)] =
            <[Event; 2]>::try_from(listed("thirteen-long", 1, backends)).unwrap()
        else {
            unreachable!()
        };
        let ports = facts.ports.iter().map(|port| ServicePort { name: name.into(), ..port.clone() });
        let facts = ServiceFacts { ports: ports.collect(), ..(*facts).clone() };
        let ports = slice.ports.iter().map(|port| SlicePort { name: name.into(), ..port.clone() });
        let slice = SliceFacts { ports: ports.collect(), ..(*slice).clone() };
        vec![applied(facts), Event::SliceApplied(Arc::new(slice))]
    };
    rig.turn(named("http", 0..3));
    filled(&mut rig, 12);
    for (round, name) in (1_u32..).zip(["api", "zzz", "api"]) {
        rig.turn(named(name, 10 * round..10 * round + 3));
        let dump = rig.dump();
        let (_, value) = dump.frontends.iter().find(|(key, _)| key.address == ip("10.13.0.1")).unwrap();
        let list = &dump.ports.iter().find(|port| port.index == value.port).unwrap().cluster.1;
        let expected = (0..3).map(|it| ip(&std::format!("1.1.0.{}", 10 * round + it)));
        assert!(list.iter().map(|slot| slot.backend().ip()).eq(expected), "{name}");
        rest(&mut rig);
    }
}

/// Clients would reach backends of a deleted service through a list that no longer changes.
#[test]
fn invariant_02_an_address_whose_new_owner_finds_no_capacity_is_removed() {
    let b = || vec![applied(service("b", "10.0.0.1", &[])), slice("b", &["2.2.2.2"])];
    let leaves = || vec![deleted("a")];
    let together = || [leaves(), b()].concat();
    // In one piece, and with the winner before and after the leaving service.
    for turns in [vec![together()], vec![b(), leaves()], vec![leaves(), b()]] {
        let mut rig = Rig::with(Capacity { slots: 256, ports: 2, ..Capacity::default() });
        rig.turn(vec![applied(service("a", "10.0.0.1", &[])), slice("a", &["1.1.1.1"])]);
        rig.turn(vec![applied(service("c", "10.0.0.3", &[])), slice("c", &["3.3.3.3"])]);
        turns.into_iter().for_each(|events| drop(rig.turn(events)));
        rest(&mut rig);
        let snapshot = rig.turn(vec![]);
        let row = row(&view(&snapshot, "b"), "10.0.0.1").clone();
        assert_eq!((row.verdict.as_str(), row.status), ("serving", crate::snapshot::Status::Done));
        assert_eq!(rig.dump().frontends.len(), 2);
    }
}
