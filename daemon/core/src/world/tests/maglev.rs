//! Maglev tables: which services get one, their limits, and restarts.

use super::*;
use crate::op::{DumpPort, WordFlags};
use crate::work;

const PLACES: u32 = 16_381;

/// A service for clients from outside with this Maglev annotation.
fn asking(name: &str, number: u8, word: Option<&str>) -> Event {
    let address = std::format!("192.0.2.{number}");
    let facts = service(name, &std::format!("10.0.0.{number}"), &[&address]);
    applied(ServiceFacts { maglev: word.map(Into::into), ..facts })
}

fn slots(slots: u32) -> Rig {
    Rig::with(Capacity { slots, ports: 64, ..Capacity::default() })
}

fn rig() -> Rig {
    slots(1 << 18)
}

/// The cluster list of the service's only port: its number of slots, and whether Maglev selects from it.
fn list(rig: &Rig, name: &str) -> (u32, bool) {
    let service = rig.world.services.get(rig.id(name)).unwrap();
    let word = service.ports[0].realized.list(Scope::Cluster).word;
    (word.count, word.flags.contains(WordFlags::MAGLEV))
}

fn by_default() -> Event {
    Event::SettingsApplied(Arc::new(Settings { maglev: true, ..Settings::default() }))
}

#[test]
fn a_service_with_the_annotation_gets_a_maglev_table() {
    let mut rig = rig();
    rig.turn(vec![asking("a", 1, Some("true")), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    assert_eq!(list(&rig, "a"), (PLACES, true));
    rig.turn(vec![asking("a", 1, Some("false"))]);
    assert_eq!(list(&rig, "a"), (2, false), "a plain list is written");
}

#[test]
fn a_service_without_the_annotation_follows_the_configuration() {
    let mut rig = rig();
    rig.turn(vec![
        by_default(),
        asking("a", 1, None),
        asking("b", 2, Some("false")),
        asking("c", 3, Some("perhaps")),
        slice("a", &["1.1.1.1", "1.1.1.2"]),
        slice("b", &["1.1.1.1", "1.1.1.2"]),
        slice("c", &["1.1.1.1", "1.1.1.2"]),
    ]);
    assert_eq!(["a", "b", "c"].map(|name| list(&rig, name)), [(PLACES, true), (2, false), (PLACES, true)]);
}

/// Nodes that learn of a change at different times still select the same backend.
#[test]
fn a_single_backend_needs_no_table_and_is_selected_by_maglev() {
    let mut rig = rig();
    rig.turn(vec![asking("a", 1, Some("true")), slice("a", &["1.1.1.1"])]);
    assert_eq!(list(&rig, "a"), (1, true));
    rig.turn(vec![slice("a", &["1.1.1.1", "1.1.1.2"])]);
    assert_eq!(list(&rig, "a"), (PLACES, true));
    rig.turn(vec![slice("a", &["1.1.1.2"])]);
    assert_eq!(list(&rig, "a"), (1, true));
}

/// Processes of this node and pods served by their sockets select at random.
#[test]
fn a_service_for_the_cluster_alone_has_no_table() {
    let mut rig = rig();
    let facts = ServiceFacts { maglev: Some("true".into()), ..service("a", "10.0.0.1", &[]) };
    rig.turn(vec![applied(facts), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    assert_eq!(list(&rig, "a"), (2, false));
}

/// Nodes cannot agree on a list that only one of them has.
#[test]
fn the_list_of_this_node_is_no_table() {
    let mut rig = rig();
    let facts = ServiceFacts {
        maglev: Some("true".into()),
        kind: ServiceType::LoadBalancer,
        external_policy: local(),
        ..service("a", "10.0.0.1", &["192.0.2.1"])
    };
    rig.turn(vec![applied(facts), slice("a", &["@1.1.1.1", "@1.1.1.2", "1.1.1.3"])]);
    let service = rig.world.services.get(rig.id("a")).unwrap();
    let word = service.ports[0].realized.list(Scope::Local).word;
    assert_eq!((word.count, word.flags.contains(WordFlags::MAGLEV)), (2, false));
}

fn elsewhere(name: &str, number: u8) -> Vec<Event> {
    let Event::ServiceApplied(facts) = asking(name, number, Some("true")) else { unreachable!() };
    let object = ObjectName::new("elsewhere", name).unwrap();
    let key = ServiceKey { name: object.clone(), source: SOURCE };
    let slice = slice_facts(name, name, &["1.1.2.1", "1.1.2.2"]);
    let slice = SliceFacts { key: SliceKey { name: object, source: SOURCE }, ..slice };
    vec![applied(ServiceFacts { key, ..(*facts).clone() }), Event::SliceApplied(Arc::new(slice))]
}

#[test]
fn tables_of_one_namespace_leave_slots_to_others() {
    let mut rig = slots(1 << 17);
    for (name, number) in [("a", 1), ("b", 2), ("c", 3)] {
        rig.turn(vec![asking(name, number, Some("true")), slice(name, &["1.1.1.1", "1.1.1.2"])]);
    }
    let lists = |rig: &Rig| ["a", "b", "c"].map(|name| list(rig, name));
    assert_eq!(lists(&rig), [(PLACES, true), (PLACES, true), (2, true)], "c is served without a table");
    rig.turn(elsewhere("d", 4));
    let found = rig.world.tables.ids().filter_map(|id| rig.world.services.get(id));
    let counts: Vec<_> = found.map(|it| it.ports[0].realized.list(Scope::Cluster).word.count).collect();
    assert_eq!(counts, [PLACES, PLACES, 2, PLACES]);
    rig.turn(vec![deleted("a")]);
    rig.turn(vec![slice("c", &["1.1.1.1", "1.1.1.3"])]);
    assert_eq!(list(&rig, "c"), (2, true), "clients may still read the old table");
    (0..4).for_each(|_| drop(rig.grace()));
    assert_eq!(list(&rig, "c"), (PLACES, true), "a removed table has released its slots");
}

#[test]
fn without_slots_for_a_table_the_plain_list_is_served() {
    let mut rig = slots(256);
    let snapshot = rig.turn(vec![asking("a", 1, Some("true")), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    assert_eq!(list(&rig, "a"), (2, true));
    assert_eq!(row(&view(&snapshot, "a"), "192.0.2.1").status, crate::snapshot::Status::Done);
}

fn restarted(dump: &Dump) -> Rig {
    let mut again = rig();
    assert_eq!(again.world.adopt(dump), []);
    again.turn(vec![asking("a", 1, Some("true")), slice("a", &["1.1.1.1", "1.1.1.2", "1.1.1.3"])]);
    again
}

#[test]
fn invariant_08_a_table_is_found_again_without_an_op() {
    let mut before = rig();
    before.turn(vec![asking("a", 1, Some("true")), slice("a", &["1.1.1.1", "1.1.1.2", "1.1.1.3"])]);
    let dump = before.dump();
    assert_eq!(dump.ports[0].cluster.1.len(), PLACES as usize);
    assert_eq!(restarted(&dump).log, []);
}

/// A damaged word is longer than its list, and no table has that length.
#[test]
fn a_word_longer_than_its_list_is_rewritten() {
    let mut before = rig();
    before.turn(vec![asking("a", 1, Some("false")), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    let mut dump = before.dump();
    dump.ports[0].cluster.0.count = 1 << 17;
    let mut again = rig();
    work::take();
    assert_eq!(again.world.adopt(&dump), []);
    let done = work::take();
    assert!(done < 100, "{done} units of work for a list of two");
    again.turn(vec![asking("a", 1, Some("false")), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    assert_eq!(list(&again, "a"), (2, false));
}

#[test]
fn a_table_in_another_order_is_rewritten() {
    let mut before = rig();
    before.turn(vec![asking("a", 1, Some("true")), slice("a", &["1.1.1.1", "1.1.1.2", "1.1.1.3"])]);
    let mut dump = before.dump();
    let DumpPort { cluster: (_, slots), .. } = &mut dump.ports[0];
    slots.reverse();
    let names: Vec<_> = restarted(&dump).log.iter().map(|op| op.action.name()).collect();
    assert_eq!(names, ["write range", "publish word"]);
}
