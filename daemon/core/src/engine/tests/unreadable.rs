//! An unreadable source: a folder that is missing or does not respond.

use std::vec;

use crate::facts::{ObjectKey, Rejection};

use super::*;

/// The rejection of an unreadable folder of this source.
pub(super) fn unreadable(source: Source) -> Event {
    let object = ObjectKey::File(source, "folder".into());
    Event::Rejected(Rejection { object, origin: None, reason: "there is none".into(), partial: false })
}

#[test]
fn invariant_08_an_unreadable_source_adds_objects_and_removes_none() {
    let former = engine(vec![
        service("a", "10.0.0.1"),
        slice("a", &["1.1.1.1"]),
        service("b", "10.0.0.2"),
        slice("b", &["1.1.1.2"]),
    ]);
    let (mut engine, _) = Engine::start(former.into_maps(), Seed(0), &[Source::Manifests]).unwrap();
    let events = [service("a", "10.0.0.1"), slice("a", &["1.1.1.9"]), service("c", "10.0.0.3")];
    events.into_iter().chain([slice("c", &["1.1.1.3"])]).for_each(|event| engine.apply(event));
    engine.step(NOW, &mut |_| ());
    check_answer(&engine, "10.0.0.1:80", &["1.1.1.1:80"]);
    engine.apply(unreadable(Source::Manifests));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert_eq!(
        (snapshot.is_readable_synced(), snapshot.is_synced(), snapshot.programmed),
        (true, false, true)
    );
    for (address, backend) in
        [("10.0.0.1:80", "1.1.1.9:80"), ("10.0.0.2:80", "1.1.1.2:80"), ("10.0.0.3:80", "1.1.1.3:80")]
    {
        check_answer(&engine, address, &[backend]);
    }
    engine.apply(Event::Synced(Source::Manifests));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert!(snapshot.is_synced() && snapshot.unreadable.is_empty());
    assert_eq!(engine.maps().dial("10.0.0.2:80".parse().unwrap()), DialOutcome::Passed);
}

#[test]
fn an_unreadable_source_does_not_delay_the_others() {
    let sources = [Source::Config, Source::Manifests];
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &sources).unwrap();
    let events = [service("a", "10.0.0.1"), slice("a", &["1.1.1.1"]), Event::Synced(Source::Manifests)];
    events.into_iter().for_each(|event| engine.apply(event));
    assert!(!engine.step(NOW, &mut |_| ()).is_readable_synced());
    assert!(!engine.has_initial_state() && !engine.is_written(), "it may be about to sync");
    engine.apply(unreadable(Source::Config));
    let snapshot = engine.step(NOW, &mut |_| ());
    assert!(
        snapshot.is_readable_synced()
            && engine.has_initial_state()
            && engine.is_written()
            && engine.lacks_unreadable_source()
    );
    let key = FrontendKey {
        address: "10.0.0.1".parse().unwrap(),
        port: PORT,
        transport: crate::keys::Transport::Tcp,
    };
    engine.maps_mut().execute(&Action::RemoveFrontend(key)).unwrap();
    assert_eq!(engine.check_maps().unwrap().len(), 1, "the maps are compared");
    engine.apply(Event::Synced(Source::Config));
    assert!(engine.step(NOW, &mut |_| ()).is_synced() && !engine.lacks_unreadable_source());
}
