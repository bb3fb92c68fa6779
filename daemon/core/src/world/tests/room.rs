//! The room that tables share: how much of it they may take, and what becomes of a service that finds none.

use super::*;
use crate::op::WordFlags;

const PLACES: u32 = 16_381;
const BLOCK: u32 = 1 << 14;

fn slots(slots: u32) -> Rig {
    Rig::with(Capacity { slots, ports: 256, ..Capacity::default() })
}

/// A service with two backends, of which the first has this weight, so that it asks for a table.
fn weighing(name: &str, number: u8, weight: u16) -> Vec<Event> {
    let facts = service(name, &std::format!("10.0.0.{number}"), &[]);
    let weights = crate::weights::Weights::read(&std::format!("1.1.1.1={weight}")).unwrap();
    let asked = crate::weights::Asked { weights, wrong: None };
    vec![applied(ServiceFacts { weights: Some(asked.into()), ..facts }), slice(name, &["1.1.1.1", "1.1.1.2"])]
}

/// How many slots the cluster list of the service's one port has.
fn count(rig: &Rig, name: &str) -> u32 {
    let word = rig.world.services.get(rig.id(name)).unwrap().ports[0].realized.list(Scope::Cluster).word;
    assert_eq!(word.flags.has(WordFlags::TABLE), word.count == PLACES);
    word.count
}

fn used(rig: &Rig) -> u32 {
    rig.world.space.slots[0].used()
}

/// Goes on until nothing waits for readers any more.
fn rest(rig: &mut Rig) {
    for _ in 0..20 {
        rig.grace();
    }
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Four services; their tables together are all that their namespace may have.
fn full() -> Rig {
    let mut rig = slots(1 << 18);
    rig.turn(NAMES.iter().zip(1..).flat_map(|(name, number)| weighing(name, number, 2)).collect());
    assert_eq!(NAMES.map(|name| count(&rig, name)), [PLACES; 4]);
    rig
}

#[test]
fn invariant_10_tables_that_are_made_anew_before_readers_leave_take_room_for_one_more() {
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
    assert_eq!(NAMES.map(|name| count(&rig, name)), [PLACES; 4], "each finds its room again");
    assert_eq!(used(&rig), 4 * BLOCK);
}

#[test]
fn a_table_of_a_full_namespace_is_made_anew() {
    let mut rig = full();
    rig.turn(weighing("b", 2, 7));
    assert_eq!(NAMES.map(|name| count(&rig, name)), [PLACES; 4]);
}

#[test]
fn a_service_without_room_for_its_table_gets_one_when_another_leaves() {
    let mut rig = full();
    rig.turn(weighing("e", 5, 2));
    assert_eq!(count(&rig, "e"), 2);
    rig.turn(vec![deleted("a")]);
    rest(&mut rig);
    assert_eq!(count(&rig, "e"), PLACES, "nothing was said of it meanwhile");
}

#[test]
fn a_service_that_finds_no_room_for_its_table_again_writes_nothing() {
    let mut rig = full();
    rig.turn(weighing("e", 5, 2));
    rig.world.retry(rig.id("e"));
    rig.turn(vec![]);
    assert_eq!((rig.log.len(), rig.planned), (0, 1));
    // Room comes free, but none for a table.
    rig.turn(vec![applied(service("f", "10.0.0.6", &[])), slice("f", &["1.1.1.1"])]);
    rig.turn(vec![slice("f", &["1.1.1.2"])]);
    for _ in 0..4 {
        rig.grace();
        assert_eq!((rig.log.len(), rig.planned), (0, 0));
    }
    assert_eq!(count(&rig, "e"), 2);
}

/// The budget has room, and the maps have none in one piece.
#[test]
fn a_table_that_found_no_run_of_slots_is_made_when_there_is_one() {
    let mut rig = slots(1 << 16);
    let taken = [1 << 15, 1 << 14, 1 << 13].map(|count| {
        let base = rig.world.space.slots(Family::V4).take(count).unwrap();
        crate::op::Range { family: Family::V4, base, count }
    });
    rig.turn(weighing("a", 1, 2));
    assert_eq!(count(&rig, "a"), 2);
    rig.world.retry(rig.id("a"));
    rig.turn(vec![]);
    assert_eq!((rig.log.len(), rig.planned), (0, 1), "its list is there");
    rig.world.space.freed.now.ranges.extend(taken);
    rest(&mut rig);
    assert_eq!((count(&rig, "a"), used(&rig)), (PLACES, BLOCK));
}

/// A start finds tables, and what they take counts.
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

/// The maps grow by what is coming.
#[test]
fn invariant_10_no_more_tables_are_coming_than_there_may_be() {
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
    let [v4, _] = rig.world.coming().slots;
    assert!(v4 <= limits::table_slots_max(1 << 18), "{v4} slots are coming");
}
