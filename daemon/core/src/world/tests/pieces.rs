//! A batch in pieces: which services wait for which, and what clients get between two pieces.

use std::format;
use std::string::String;
use std::vec;

use super::*;
use crate::event::WatchKind;
use crate::hold::OnEmpty;
use crate::maps::{MapError, Maps};
use crate::snapshot::{Status, Verdict};

/// The work of a service or two.
const SMALL: u64 = 64;

fn in_namespace(namespace: &str, facts: ServiceFacts) -> ServiceFacts {
    let name = ObjectName::new(namespace, facts.key.name.name()).unwrap();
    ServiceFacts { key: ServiceKey { name, source: SOURCE }, ..facts }
}

fn crowd(namespace: &str, count: u32) -> Vec<Event> {
    let service = |number| {
        let address = format!("10.1.{}.{}", number / 250, number % 250 + 1);
        applied(in_namespace(namespace, service(&format!("s{number}"), &address, &[])))
    };
    (0..count).map(service).collect()
}

fn find(snapshot: &Snapshot, namespace: &str, name: &str) -> Option<Arc<ServiceView>> {
    let wanted = ObjectName::new(namespace, name).unwrap();
    snapshot.services.iter().find(|view| view.key.name == wanted).cloned()
}

fn rig() -> Rig {
    let mut rig = Rig::with(Capacity { slots: 1 << 12, ports: 1 << 14, ..Capacity::default() });
    rig.turn(vec![]);
    rig.world.queue.most = SMALL;
    rig
}

/// Runs pieces until nothing is dirty.
fn rest(rig: &mut Rig) -> (Snapshot, usize) {
    for pieces in 0..10_000 {
        let snapshot = rig.turn(vec![]);
        if !rig.world.has_dirty() {
            return (snapshot, pieces);
        }
    }
    panic!("does not come to rest");
}

#[test]
fn a_small_service_is_served_by_the_next_piece_among_many_waiting() {
    let mut rig = rig();
    rig.turn(crowd("tenant", 1_000));
    let snapshot = rig.turn(vec![applied(service("bystander", "10.0.0.1", &[]))]);
    assert_eq!(row(&view(&snapshot, "bystander"), "10.0.0.1").status, Status::Done);
    assert!(rig.world.has_dirty(), "the others still wait");
    let (snapshot, pieces) = rest(&mut rig);
    assert!(pieces > 100, "{pieces}");
    assert_eq!(snapshot.services.iter().count(), 1_001);
}

/// A process that resumed from the version would never receive the rest.
#[test]
fn invariant_08_lagging_views_have_no_version_to_resume_from() {
    let mut rig = rig();
    let version = |snapshot: &Snapshot| SavedSnapshot::from(snapshot).progress.len();
    let told = |version: &str| Event::Progress(WatchKind::Services, version.into());
    let mut events = crowd("tenant", 1_000);
    events.push(told("7"));
    let snapshot = rig.turn(events);
    assert_eq!((snapshot.progress.len(), snapshot.behind, version(&snapshot)), (1, true, 0));
    let (snapshot, _) = rest(&mut rig);
    assert_eq!((snapshot.behind, version(&snapshot)), (false, 1));
    let snapshot = rig.turn(vec![applied(service("one", "10.0.0.1", &[])), told("8")]);
    assert_eq!((snapshot.behind, version(&snapshot)), (false, 1), "one change is realized at once");
}

#[test]
fn invariant_08_without_apiserver_source_its_objects_and_versions_are_forgotten() {
    let remembered = || SavedSnapshot {
        progress: [(WatchKind::Services, "7".into()), (WatchKind::Slices, "7".into())].into(),
        ..SavedSnapshot::default()
    };
    for (sources, kept) in [(&[Source::Manifests][..], 0), (&[Source::Manifests, Source::Kubernetes], 2)] {
        let mut world = World::new(Seed(0), Capacity::default(), sources);
        world.restore_services(remembered(), ClockReading::default());
        assert_eq!(world.publish(ClockReading::default()).progress.len(), kept, "{sources:?}");
    }
}

#[test]
fn a_service_heavier_than_a_piece_lets_others_in_between() {
    let mut rig = rig();
    let addresses: Vec<_> = (1..=200).map(|last| format!("192.0.2.{last}")).collect();
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    let heavy = in_namespace("tenant", service("heavy", "10.0.0.9", &addresses));
    rig.turn(vec![applied(heavy)]);
    let mut most = 0;
    for last in 1..20 {
        let address = format!("10.0.1.{last}");
        let name = format!("b{last}");
        let snapshot = rig.turn(vec![applied(service(&name, &address, &[]))]);
        assert_eq!(row(&view(&snapshot, &name), &address).status, Status::Done, "{name}");
        most = most.max(rig.log.len());
    }
    assert!(most <= 16, "{most} ops in one piece");
    let (snapshot, _) = rest(&mut rig);
    let heavy = find(&snapshot, "tenant", "heavy").unwrap();
    assert_eq!(heavy.frontends.iter().filter(|row| row.status == Status::Done).count(), 201);
    assert_eq!(rig.changes.len(), 1, "one record for all of it");
    rig.turn(vec![Event::ServiceDeleted(heavy.key.clone(), None)]);
    for _ in 0..50 {
        rest(&mut rig);
        rig.grace();
    }
    assert_eq!(
        find(&rig.turn(vec![]), "tenant", "heavy").map(|view| view.key.clone()),
        None,
        "everything is removed"
    );
}

#[test]
fn a_change_while_a_heavy_service_is_realized_counts() {
    let mut rig = rig();
    let addresses: Vec<_> = (1..=100).map(|last| format!("192.0.2.{last}")).collect();
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    rig.turn(vec![applied(service("a", "10.0.0.9", &addresses))]);
    (0..5).for_each(|_| drop(rig.turn(vec![])));
    assert!(rig.world.has_dirty());
    rig.turn(vec![applied(service("a", "10.0.0.9", &addresses[50..])), slice("a", &["1.1.1.1"])]);
    for _ in 0..20 {
        rest(&mut rig);
        rig.grace();
    }
    let dump = rig.dump();
    assert_eq!(dump.frontends.len(), 51);
    assert_eq!(dump.ports[0].cluster.1.len(), 1);
}

#[test]
fn invariant_04_a_frontend_with_a_new_owner_never_misses_between_pieces() {
    let mut rig = rig();
    let shared = "192.0.2.1";
    rig.turn(vec![applied(service("owner", "10.0.0.1", &[shared])), slice("owner", &["1.1.1.1"])]);
    rest(&mut rig);
    let mut events = vec![deleted("owner")];
    events.extend(crowd("tenant", 100));
    let heir = in_namespace("tenant", service("heir", "10.0.0.2", &[shared]));
    events.push(applied(heir.clone()));
    let is_of_shared = |op: &Op| match op.action {
        Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => key.address == ip(shared),
        _ => false,
    };
    let mut ops: Vec<Op> = Vec::new();
    rig.turn(events);
    ops.extend(rig.log.iter().filter(|op| is_of_shared(op)).cloned());
    assert_eq!(ops, [], "the next claimant is undecided");
    while rig.world.has_dirty() {
        rig.turn(vec![]);
        ops.extend(rig.log.iter().filter(|op| is_of_shared(op)).cloned());
    }
    assert!(matches!(ops.as_slice(), [op] if is_insert(op)), "replaced at once, never removed: {ops:?}");
    for _ in 0..3 {
        rig.grace();
        rest(&mut rig);
    }
    assert_eq!(rig.dump().frontends.len(), 102, "and the former owner's own is removed");
}

#[test]
fn a_removal_continues_when_the_awaited_claim_does_not_come() {
    let mut rig = rig();
    rig.turn(vec![applied(service("owner", "10.0.0.1", &["192.0.2.1"]))]);
    rest(&mut rig);
    let mut events = vec![deleted("owner")];
    events.extend(crowd("tenant", 100));
    // It asks for the address at another port.
    let mut other = in_namespace("tenant", service("other", "10.0.0.2", &["192.0.2.1"]));
    other.ports[0].port = NonZeroU16::new(81).unwrap();
    events.push(applied(other));
    rig.turn(events);
    let left = |rig: &Rig| rig.dump().frontends.iter().any(|(key, _)| key.address == ip("192.0.2.1"));
    assert!(left(&rig), "it waits");
    rest(&mut rig);
    let dump = rig.dump();
    let numbers: Vec<_> = dump
        .frontends
        .iter()
        .filter(|it| it.0.address == ip("192.0.2.1"))
        .map(|it| it.0.port.get())
        .collect();
    assert_eq!(numbers, [81]);
}

#[test]
fn invariant_08_a_start_gives_no_frontend_to_a_later_loser() {
    let shared = "192.0.2.1";
    let of = |name: &str, created| {
        let meta = Meta { created: Some(Timestamp(created)), ..Meta::default() };
        applied(ServiceFacts { meta, ..service(name, &format!("10.0.0.{created}"), &[shared]) })
    };
    let mut before = rig();
    before.turn(vec![of("z-old", 1), of("a-young", 2), slice("z-old", &["1.1.1.1"])]);
    rest(&mut before);
    let mut later = Rig::with(Capacity { slots: 1 << 12, ports: 1 << 14, ..Capacity::default() });
    later.world.queue.most = SMALL;
    later.world.adopt(&before.dump());
    let mut events = vec![of("a-young", 2)];
    events.extend(crowd("tenant", 100));
    events.extend([of("z-old", 1), slice("z-old", &["1.1.1.1"])]);
    let snapshot = later.turn(events);
    assert!(!snapshot.programmed && later.log.is_empty(), "not everything is decided yet");
    let mut programmed = 0;
    while later.world.has_dirty() {
        let snapshot = later.turn(vec![]);
        let touched = |op: &&Op| match op.action {
            Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => key.address == ip(shared),
            _ => false,
        };
        assert_eq!(later.log.iter().filter(touched).count(), 0, "{:?}", later.log);
        programmed += usize::from(snapshot.programmed);
    }
    assert_eq!(programmed, 1, "it is programmed when all is written");
}

#[test]
fn invariant_08_leftovers_are_removed_only_when_all_services_are_decided() {
    let mut before = rig();
    before.turn(crowd("tenant", 100));
    rest(&mut before);
    let mut later = Rig::with(Capacity { slots: 1 << 12, ports: 1 << 14, ..Capacity::default() });
    later.world.queue.most = SMALL;
    later.world.adopt(&before.dump());
    later.turn(crowd("tenant", 99));
    let mut removed = 0;
    while later.world.has_dirty() {
        later.turn(vec![]);
        removed += later.log.iter().filter(|op| matches!(op.action, Action::RemoveFrontend(_))).count();
    }
    assert_eq!(removed, 1, "the one without a claim");
}

#[test]
fn losses_in_many_pieces_are_one_mass_loss() {
    let mut rig = rig();
    rig.world.queue.most = u64::MAX;
    let slices = |endpoints: &'static [&'static str]| {
        (0..40).map(move |number| slice(&format!("s{number}"), endpoints))
    };
    let mut events = crowd("default", 40);
    events.push(settings(OnEmpty::Auto));
    events.extend(slices(&["1.1.1.1"]));
    rig.turn(events);
    rig.world.queue.most = SMALL;
    rig.turn(slices(&[]).collect());
    let (snapshot, pieces) = rest(&mut rig);
    assert!(pieces > 5, "{pieces}");
    let rows = snapshot.services.iter().map(|view| (view.frontends[0].verdict, view.frontends[0].reason));
    let rows: Vec<_> = rows.collect();
    let expected = (Verdict::Held, Some(crate::snapshot::Reason::MassLoss));
    assert!(rows.iter().all(|row| *row == expected), "{rows:?}");
}

/// Maps that return this dump, whatever is written meanwhile.
struct Said(Dump);

impl Maps for Said {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        panic!("a comparison writes nothing, and this is {action:?}");
    }

    fn begin_grace(&mut self) -> Grace {
        Grace(0)
    }

    fn is_grace_over(&self, _: Grace) -> bool {
        true
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        Ok(self.0.clone())
    }

    fn capacity(&self) -> Capacity {
        Capacity::default()
    }
}

/// Compares in pieces, and calls `between` after each.
fn check_while(rig: &mut Rig, dump: Dump, mut between: impl FnMut(&mut Rig, usize)) -> (usize, Vec<String>) {
    rig.world.realized.begin_check();
    let mut maps = Said(dump);
    for piece in 0..1_000 {
        if let Some(drift) = rig.world.continue_check(&mut maps).unwrap() {
            return (piece, drift.iter().map(|drift| format!("{drift}")).collect());
        }
        between(rig, piece);
    }
    panic!("does not end");
}

#[test]
fn a_write_during_a_comparison_is_no_drift() {
    let mut rig = rig();
    rig.turn(crowd("default", 100));
    rest(&mut rig);
    let dump = rig.dump();
    let (pieces, drift) = check_while(&mut rig, dump, |rig, piece| {
        if piece >= 40 {
            return;
        }
        let (changed, gone) = (format!("s{}", 99 - piece), format!("s{}", 50 + piece));
        rig.turn(vec![slice(&changed, &["1.1.1.1"]), deleted(&gone)]);
        rest(rig);
        let new = format!("10.2.0.{}", piece + 1);
        rig.turn(vec![applied(service(&format!("new{piece}"), &new, &[]))]);
        rest(rig);
    });
    assert!(pieces > 10, "{pieces}");
    assert!(drift.is_empty(), "{drift:?}");
}

#[test]
fn a_foreign_change_is_found_in_any_piece() {
    let mut rig = rig();
    rig.turn(crowd("default", 100));
    rest(&mut rig);
    let mut dump = rig.dump();
    let (gone, _) = dump.frontends.remove(90);
    let (mut stray, value) = dump.frontends[10];
    stray.port = NonZeroU16::new(9).unwrap();
    dump.frontends.push((stray, value));
    dump.frontends.sort_unstable();
    let (_, drift) = check_while(&mut rig, dump, |_, _| ());
    assert_eq!(drift.len(), 2, "{drift:?}");
    assert!(drift[0].contains(&format!("{gone}")) && drift[1].contains(&format!("{stray}")), "{drift:?}");
    rig.turn(vec![]);
    let (snapshot, _) = rest(&mut rig);
    assert_eq!(snapshot.counters.drift, 2);
}

#[test]
fn a_start_ends_although_a_service_was_deleted_meanwhile() {
    let mut rig = Rig::with(Capacity { slots: 1 << 12, ports: 1 << 14, ..Capacity::default() });
    rig.world.queue.most = SMALL;
    let mut events = crowd("tenant", 20);
    events.extend([applied(service("gone", "10.0.0.1", &[])), deleted("gone")]);
    rig.turn(events);
    let (snapshot, _) = rest(&mut rig);
    assert!(snapshot.programmed);
    assert!(rig.world.has_initial_state());
}

#[test]
fn a_service_that_changes_during_a_start_is_decided_again() {
    let mut rig = Rig::with(Capacity { slots: 1 << 12, ports: 1 << 14, ..Capacity::default() });
    rig.world.queue.most = SMALL;
    rig.turn(crowd("default", 20));
    rig.turn(vec![]);
    assert!(!rig.world.queue.is_open());
    rig.turn(
        (0..20)
            .map(|number| slice(&format!("s{number}"), &["1.1.1.1"]))
            .chain([Event::Synced(SOURCE)])
            .collect(),
    );
    let (snapshot, _) = rest(&mut rig);
    assert!(snapshot.services.iter().all(|view| view.frontends[0].verdict == Verdict::Serving));
}
