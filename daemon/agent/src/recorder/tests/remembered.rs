//! The history after a start from a former process's table.

use holdfast_core::engine::SavedSnapshot;

use super::*;

/// The engine of a daemon that starts after a boot, with another one's snapshot of these services.
fn restarted(count: u16) -> Rig {
    let mut before = Rig::new();
    services(&mut before, count);
    let now = ClockReading { wall: Timestamp(THEN.cast_signed()), mono: Duration::from_secs(9) };
    let snapshot = before.engine.step(now, &mut |_| {});
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[SOURCE]).unwrap();
    engine.limit_pieces(u64::MAX);
    engine.restore(SavedSnapshot::from(&*snapshot), now);
    Rig { engine, steps: 10 }
}

#[test]
fn a_start_with_the_same_state_adds_no_records() {
    let told = restarted(20).batch([]);
    let visible = told.iter().filter(|it| it.change.visible).count();
    assert_eq!((visible, all(&recorded(told, None)).len()), (20, 0));
}

#[test]
fn watchers_receive_that_a_remembered_service_is_in_the_maps() {
    let history = Arc::<History>::default();
    let mut watch = history.watch(None);
    record_into(&history, restarted(1).batch([]));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let WatchEvent::Line(line) = runtime.block_on(watch.next()) else { panic!("nothing was told") };
    let record = line.record().unwrap();
    assert_eq!((record.seq, record.kind), (None, holdfast_status::record::Kind::Event));
    let after: Vec<_> = record.transitions.iter().filter_map(|it| it.after.as_ref()).collect();
    assert_eq!(after.iter().map(|met| &*met.status).collect::<Vec<_>>(), ["done"]);
}

#[test]
fn changes_while_no_daemon_ran_are_recorded() {
    let mut rig = restarted(3);
    let told = rig.batch([slice("web-1", &["10.1.1.2"], false, meta("7", "kcm"))]);
    let recorded = all(&recorded(told, None));
    let services: Vec<_> = recorded.iter().filter_map(|record| record.service.as_deref()).collect();
    assert_eq!(services, ["default/web-1"]);
    assert!(recorded[0].triggers.iter().any(|trigger| &*trigger.event == "applied"), "{recorded:?}");
}

/// The file does not record which changes the maps had refused.
#[test]
fn a_start_that_ends_a_refused_write_is_recorded() {
    let history = Arc::<History>::default();
    let mut refused = services(&mut Rig::new(), 1);
    refused.iter_mut().for_each(|timed| timed.change.error = Some("full".into()));
    record_into(&history, refused);
    record_into(&history, restarted(1).batch([]));
    record_into(&history, restarted(1).batch([]));
    let rules: Vec<_> = all(&history).iter().map(|record| record.rule.to_string()).collect();
    assert_eq!(rules, ["refused-by-the-maps", "usable-endpoints"], "and it is recorded once");
}
