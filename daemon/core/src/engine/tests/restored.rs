//! A start with the saved state of a former process.

use std::borrow::ToOwned;
use std::vec;
use std::vec::Vec;

use crate::facts::{ObjectKey, Rejection};
use crate::snapshot::{Reason, Verdict};

use super::*;

const LATER: ClockReading = ClockReading { wall: Timestamp(5_000), mono: Duration::from_secs(4) };

/// The saved state of a process, and the maps that it left.
fn former() -> (SavedSnapshot, MemoryMaps) {
    let mut engine = engine(vec![
        service("a", "10.0.0.1"),
        slice("a", &["1.1.1.1"]),
        service("b", "10.0.0.2"),
        slice("b", &["1.1.1.2"]),
        service("lost", "10.0.0.3"),
        slice("lost", &["1.1.1.3"]),
    ]);
    engine.apply(slice("lost", &[]));
    let snapshot = engine.step(NOW, &mut |_| ());
    (SavedSnapshot::from(&*snapshot), engine.into_maps())
}

fn start(maps: MemoryMaps, saved: SavedSnapshot) -> Engine<MemoryMaps> {
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    engine.restore(saved, NOW);
    engine
}

#[test]
fn restored_services_serve_at_once_if_the_maps_are_empty() {
    let mut engine = start(MemoryMaps::default(), former().0);
    assert_eq!(engine.next_due(Duration::ZERO), Some(GRACE_POLL), "it waits only for readers");
    let snapshot = engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.2:80"]);
    assert_eq!((snapshot.programmed, snapshot.is_synced()), (true, false));
    assert_eq!(snapshot.stale_since, Some(Timestamp(1_000)));
}

#[test]
fn the_maps_serve_unchanged_until_the_restored_wait_is_over() {
    let (mut saved, maps) = former();
    // The saved state is older than the maps.
    saved.services.retain(|view| view.key.name.name() != "a");
    let mut engine = start(maps, saved);
    let snapshot = engine.step(NOW, &mut |_| ());
    assert!(!snapshot.programmed);
    assert_eq!(engine.next_due(NOW.mono), Some(RESTORED_WAIT), "then it may write");
    let snapshot = engine.step(LATER, &mut |_| ());
    assert!(snapshot.programmed);
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
}

/// A start with maps that a former process wrote after its last save, and that save.
fn newer(events: Vec<Event>) -> Engine<MemoryMaps> {
    let (saved, maps) = former();
    let mut engine = start(maps, saved.clone());
    events.into_iter().for_each(|event| engine.apply(event));
    engine.apply(Event::Resumed(Source::Manifests));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    start(engine.into_maps(), saved)
}

/// The disk may have been full for days.
#[test]
fn a_restored_list_replaces_no_different_list_in_the_maps() {
    let mut engine = newer(vec![slice("a", &["1.1.1.9"])]);
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.9:80"]);
    let mut changed = Vec::new();
    let snapshot = engine.step(LATER, &mut |change| changed.push(change.service.name.name().to_owned()));
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.9:80"]);
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.2:80"]);
    assert!(snapshot.programmed && engine.has_initial_state());
    assert_eq!(changed, ["b", "lost"], "unchanged services continue");
    engine.apply(Event::Resumed(Source::Manifests));
    engine.apply(slice("a", &["1.1.1.10"]));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(LATER, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.10:80"]);
}

/// An unreadable folder confirms nothing of the restored state.
#[test]
fn a_restored_list_of_an_unreadable_source_replaces_no_newer_list() {
    let mut engine = newer(vec![slice("a", &["1.1.1.9"])]);
    engine.apply(super::unreadable::unreadable(Source::Manifests));
    let snapshot = engine.step(LATER, &mut |_| ());
    assert!(snapshot.programmed && engine.has_initial_state() && !engine.lacks_unreadable_source());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.9:80"]);
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.2:80"]);
}

#[test]
fn a_restored_service_takes_no_address_of_another_service() {
    let gone = ServiceKey { name: name("a"), source: Source::Manifests };
    let mut engine =
        newer(vec![Event::ServiceDeleted(gone, None), service("z", "10.0.0.1"), slice("z", &["1.1.1.7"])]);
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.7:80"]);
    engine.step(LATER, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.7:80"]);
}

/// Empty maps, because another version's programs serve from their own maps.
struct Waiting(MemoryMaps);

impl Maps for Waiting {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        self.0.execute(action)
    }

    fn begin_grace(&mut self) -> Grace {
        self.0.begin_grace()
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        self.0.is_grace_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        self.0.dump()
    }

    fn capacity(&self) -> Capacity {
        self.0.capacity()
    }

    fn is_predecessor_serving(&self) -> bool {
        true
    }
}

#[test]
fn restored_services_wait_while_another_versions_programs_serve() {
    let maps = Waiting(MemoryMaps::default());
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    engine.restore(former().0, NOW);
    let snapshot = engine.step(NOW, &mut |_| ());
    assert!(!snapshot.programmed && !engine.is_written(), "the other version's maps are never older");
    assert_eq!(engine.next_due(NOW.mono), Some(RESTORED_WAIT), "then it may write");
    assert!(engine.step(LATER, &mut |_| ()).programmed);
    assert!(engine.is_written());
}

#[test]
fn invariant_08_a_restored_state_removes_nothing_from_the_maps() {
    let (mut saved, maps) = former();
    saved.services.clear();
    let mut engine = start(maps, saved);
    engine.step(LATER, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(LATER, &mut |_| ());
    assert_eq!(engine.maps().dial("10.0.0.1:80".parse().unwrap()), DialOutcome::Passed);
}

#[test]
fn times_and_reasons_survive_a_restart() {
    let (saved, maps) = former();
    let mut engine = start(maps, saved);
    for event in [service("a", "10.0.0.1"), slice("a", &["1.1.1.1"]), service("lost", "10.0.0.3")] {
        engine.apply(event);
    }
    engine.apply(slice("lost", &[]));
    engine.apply(Event::Synced(Source::Manifests));
    let snapshot = engine.step(LATER, &mut |_| ());
    let row = |name: &str| {
        let view = snapshot.services.iter().find(|view| view.key.name.name() == name).unwrap();
        let row = view.frontends.first().unwrap();
        (row.verdict, row.reason, row.since)
    };
    assert_eq!(row("a"), (Verdict::Serving, None, Timestamp(1_000)));
    assert_eq!(row("lost"), (Verdict::Refusing, Some(Reason::Vanished), Timestamp(1_000)));
    assert!(snapshot.services.iter().all(|view| view.key.name.name() != "b"), "no source has it");
    assert_eq!(snapshot.stale_since, None);
}

#[test]
fn a_resumed_source_changes_only_what_differs() {
    let (saved, maps) = former();
    let mut engine = start(maps, saved);
    engine.apply(Event::Resumed(Source::Manifests));
    engine.apply(slice("b", &["1.1.1.9"]));
    engine.apply(Event::Synced(Source::Manifests));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert_eq!(snapshot.services.iter().count(), 3);
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.9:80"]);
}

#[test]
fn invariant_06_a_rejected_object_keeps_its_restored_version() {
    let (saved, maps) = former();
    let mut engine = start(maps, saved);
    let object = ObjectKey::Slice(SliceKey { name: name("a-1"), source: Source::Manifests });
    engine.apply(service("a", "10.0.0.1"));
    engine.apply(Event::Rejected(Rejection {
        object: object.clone(),
        origin: None,
        reason: "bad".into(),
        partial: false,
    }));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    engine.apply(Event::RejectionEnded(object));
    engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &[]);
}

#[test]
fn invariant_06_an_unreadable_file_keeps_its_restored_objects() {
    let (mut saved, maps) = former();
    for view in saved.services.iter_mut().map(Arc::make_mut) {
        let of = |meta: &Meta| Meta { origin: Some("b.yaml".into()), ..meta.clone() };
        if view.key.name.name() == "b" {
            view.facts =
                view.facts.as_ref().map(|it| Arc::new(ServiceFacts { meta: of(&it.meta), ..(**it).clone() }));
            let slices =
                view.slices.iter().map(|it| Arc::new(SliceFacts { meta: of(&it.meta), ..(**it).clone() }));
            view.slices = slices.collect();
        }
    }
    let mut engine = start(maps, saved);
    let file = ObjectKey::File(Source::Manifests, "b.yaml".into());
    let rejection = Rejection { object: file.clone(), origin: None, reason: "bad".into(), partial: false };
    engine.apply(Event::Rejected(rejection));
    engine.apply(Event::Synced(Source::Manifests));
    engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.2:80"]);
    assert_eq!(engine.maps().dial("10.0.0.1:80".parse().unwrap()), DialOutcome::Passed, "it is in no file");
    engine.apply(Event::RejectionEnded(file));
    engine.step(NOW, &mut |_| ());
    assert_eq!(
        engine.maps().dial("10.0.0.2:80".parse().unwrap()),
        DialOutcome::Passed,
        "the file no longer has it"
    );
}

const BOTH: [Source; 2] = [Source::Manifests, Source::Kubernetes];

/// An unresponsive source withholds nothing of the others from clients.
#[test]
fn invariant_08_a_synced_source_is_added_before_the_others_sync() {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &BOTH).unwrap();
    for event in [service("a", "10.0.0.1"), slice("a", &["1.1.1.1"])] {
        engine.apply(event);
    }
    let snapshot = engine.step(NOW, &mut |_| ());
    assert!(!snapshot.programmed, "the list is not whole");
    engine.apply(Event::Synced(Source::Manifests));
    let snapshot = engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    assert!(
        snapshot.programmed && !snapshot.is_synced() && !engine.is_written(),
        "the former maps keep serving"
    );
    engine.apply(Event::ServiceDeleted(ServiceKey { name: name("a"), source: Source::Manifests }, None));
    engine.step(NOW, &mut |_| ());
    assert_eq!(
        engine.maps().dial("10.0.0.1:80".parse().unwrap()),
        DialOutcome::Passed,
        "its own source deleted it"
    );
}

#[test]
fn invariant_08_leftovers_stay_until_every_source_has_synced() {
    let (mut engine, _) = Engine::start(former().1, Seed(0), &BOTH).unwrap();
    for event in [service("a", "10.0.0.1"), slice("a", &["1.1.1.9"]), Event::Synced(Source::Manifests)] {
        engine.apply(event);
    }
    engine.step(NOW, &mut |_| ());
    engine.step(LATER, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.9:80"]);
    check_answer(&engine, "10.0.0.2:80", &["1.1.1.2:80"]);
    engine.apply(Event::Synced(Source::Kubernetes));
    engine.step(LATER, &mut |_| ());
    assert_eq!(engine.maps().dial("10.0.0.2:80".parse().unwrap()), DialOutcome::Passed);
    assert!(engine.is_written());
}

/// Services come before their slices; until those arrive, a service has no backend.
#[test]
fn invariant_08_half_of_a_first_list_changes_nothing() {
    let mut former = former().1;
    for maps in [MemoryMaps::default(), std::mem::take(&mut former)] {
        let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Config, Source::Manifests]).unwrap();
        let before = engine.maps().dial("10.0.0.1:80".parse().unwrap());
        engine.apply(Event::Synced(Source::Config));
        engine.apply(service("a", "10.0.0.1"));
        for now in [NOW, LATER] {
            engine.step(now, &mut |_| ());
            assert_eq!(engine.maps().dial("10.0.0.1:80".parse().unwrap()), before);
        }
        assert_eq!(engine.next_due(LATER.mono), None, "the engine does not retry meanwhile");
        engine.apply(slice("a", &["1.1.1.1"]));
        engine.apply(Event::Synced(Source::Manifests));
        engine.step(LATER, &mut |_| ());
        check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    }
}

/// The address moves in place from the source of lower precedence, so it is never missing in between.
#[test]
fn invariant_08_an_address_moves_in_place_to_the_preferred_source() {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &BOTH).unwrap();
    let from_cluster = |event| match event {
        Event::ServiceApplied(facts) => {
            let key = ServiceKey { source: Source::Kubernetes, ..facts.key.clone() };
            Event::ServiceApplied(Arc::new(ServiceFacts { key, ..(*facts).clone() }))
        }
        Event::SliceApplied(facts) => {
            let key = SliceKey { source: Source::Kubernetes, ..facts.key.clone() };
            Event::SliceApplied(Arc::new(SliceFacts { key, ..(*facts).clone() }))
        }
        other => other,
    };
    for event in [service("b", "10.0.0.1"), slice("b", &["1.1.1.2"])].map(from_cluster) {
        engine.apply(event);
    }
    engine.apply(Event::Synced(Source::Kubernetes));
    engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.2:80"]);
    for event in [service("a", "10.0.0.1"), slice("a", &["1.1.1.1"]), Event::Synced(Source::Manifests)] {
        engine.apply(event);
    }
    engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
}
