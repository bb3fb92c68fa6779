//! Written records come back, and damaged ones do not; [`damage`] tests what replaces them, and [`versions`] files of
//! other versions.

mod damage;
mod versions;

use std::fs;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::{Event, WatchKind};
use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::index::Seed;
use holdfast_core::keys::{ObjectName, SliceKey, Source};
use holdfast_core::maps::MemoryMaps;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::{ClockReading, Uptime};
use holdfast_fixtures::clock::{await_event, pause_async};
use proptest::prelude::*;
use tokio::sync::watch;

use super::*;
use holdfast_kubernetes::source::{ResumeState, UntabledObject, UntabledObjects, Version};
use holdfast_objects::manifests::TextFolder;
use holdfast_objects::{Defaulting, Provenance, from_value};
use serde_json::json;

const MANIFESTS: &str = include_str!("tests/everything.yaml");

/// The snapshot of an engine that has seen every field of every kind.
pub(super) fn snapshot() -> Snapshot {
    snapshot_from(MANIFESTS)
}

/// The same of an engine that has seen these manifests.
pub(crate) fn snapshot_from(manifests: &str) -> Snapshot {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    let files = [("everything.yaml".into(), manifests.as_bytes().to_vec())].into();
    let mut turn = |events: Vec<Event>, at| {
        events.into_iter().for_each(|event| engine.apply(event));
        let at = ClockReading { wall: Timestamp(at), mono: Duration::from_secs(at.unsigned_abs() - 995) };
        Snapshot::clone(&engine.step(at, &mut |_| ()))
    };
    let mut texts = TextFolder::new("/folder");
    let mut events = texts.replace_files(&files);
    events.push(Event::Synced(Source::Manifests));
    events.push(Event::Progress(WatchKind::Services, "41".into()));
    turn(events, 1_000);
    // One service loses its endpoints, so that its last list differs from its rows.
    let emptied = manifests.replace("addresses: [192.0.2.9]", "addresses: []");
    turn(texts.replace_files(&[("everything.yaml".into(), emptied.into_bytes())].into()), 2_000)
}

use holdfast_core::facts::Timestamp;

fn context() -> SnapshotContext {
    SnapshotContext {
        boot: "boot".into(),
        cluster: Some("uid".into()),
        zone: Some("zone-a".into()),
        proxy_name: Some("other".into()),
        oddities: UntabledByKind { services: Arc::default(), slices: Arc::new(odds(2)) },
        numbers_below: 4_096,
    }
}

/// This many rejected slices, and one without a service.
fn odds(rejected: usize) -> UntabledObjects {
    let version = Version { uid: "u".into(), resource_version: "7".into() };
    let name = |text: String| ObjectName::new("default", &text).unwrap();
    let odd = |nth: usize| {
        let name = name(format!("rejected-{nth}"));
        let object = ObjectKey::Slice(SliceKey { name: name.clone(), source: Source::Kubernetes });
        let origin = Some("10.0.0.1:6443".into());
        let rejection = Rejection { object, origin, reason: "bad".into(), partial: nth == 0 };
        (name, UntabledObject { version: version.clone(), rejection: Some(rejection) })
    };
    let loose = (name("loose".to_owned()), UntabledObject { version: version.clone(), rejection: None });
    (0..rejected).map(odd).chain([loose]).collect()
}

/// A list costs less then.
#[test]
fn with_too_many_untabled_objects_no_version_is_written() {
    for (rejected, is_resumable) in [(4_095, true), (4_096, false)] {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        let odd = UntabledByKind { services: Arc::new(odds(rejected)), slices: Arc::default() };
        state.store(&SnapshotContext { oddities: odd, ..context() }, &snapshot()).unwrap();
        let kept = state.load().unwrap().unwrap();
        assert_eq!(kept.remembered.progress.contains_key(&WatchKind::Services), is_resumable, "{rejected}");
        assert!(!kept.remembered.services.is_empty());
    }
}

/// A waiting object is in no record: a restart must list it.
#[test]
fn while_an_object_waits_for_admission_no_version_is_written() {
    for (waiting, is_resumable) in [(0, true), (1, false)] {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        let mut snapshot = snapshot();
        Arc::make_mut(&mut snapshot.rejections).waiting = waiting;
        state.store(&context(), &snapshot).unwrap();
        let kept = state.load().unwrap().unwrap();
        assert_eq!(kept.remembered.progress.contains_key(&WatchKind::Services), is_resumable, "{waiting}");
    }
}

/// The version covers everything delivered, and the table lacks a part of it.
#[test]
fn while_changes_are_pending_no_version_is_written() {
    for behind in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        state.store(&context(), &Snapshot { behind, ..snapshot() }).unwrap();
        let kept = state.load().unwrap().unwrap();
        assert_eq!(kept.remembered.progress.contains_key(&WatchKind::Services), !behind, "{behind}");
    }
}

#[tokio::test]
async fn a_table_that_has_caught_up_is_written_once_more() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    let (snapshots, reader) = watch::channel(Arc::new(snapshot()));
    let (mut keeper, _) =
        SnapshotWriter::new(state.clone(), reader, watch::channel(None).1, None, Arc::default());
    let mut write = async |behind| {
        snapshots.send_replace(Arc::new(Snapshot { behind, ..snapshot() }));
        keeper.write_now().await.is_some()
    };
    assert!(write(true).await, "it is the newest known version");
    assert!(!write(true).await, "nothing is new");
    assert!(write(false).await, "it has the version now");
    assert!(!write(true).await, "the file suffices for an unchanged table");
}

fn written() -> (tempfile::TempDir, StateFolder) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(&folder.path().join("state"));
    state.store(&context(), &snapshot()).unwrap();
    (folder, state)
}

#[test]
fn a_written_snapshot_is_read_back() {
    let (_folder, state) = written();
    let kept = state.load().unwrap().unwrap();
    assert_eq!(kept.context, context());
    check_table(kept, &snapshot());
}

/// A ServiceImport and its slice are saved as such, so that a restart serves them before any apiserver answers, and a
/// list of the apiserver removes those that are gone.
#[test]
fn an_imported_service_is_read_back_as_imported() {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::ClusterSet]).unwrap();
    let of = Provenance { source: Source::ClusterSet, origin: None, defaulting: Defaulting::Done };
    let meta = |name: &str| {
        json!({"namespace": "demo", "name": name, "uid": "u", "resourceVersion": "7",
        "labels": {"multicluster.kubernetes.io/service-name": "web"}})
    };
    let spec = json!({"type": "ClusterSetIP", "ips": ["10.200.0.7"], "ports": [{"port": 80}]});
    let wire = from_value(&json!({"metadata": meta("web"), "spec": spec})).unwrap();
    engine.apply(Event::ServiceApplied(Arc::new(holdfast_objects::parse_import(&wire, &of).unwrap())));
    let wire = from_value(&json!({"metadata": meta("web-1"), "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080}], "endpoints": [{"addresses": ["10.1.0.1"]}]}))
    .unwrap();
    engine.apply(Event::SliceApplied(Arc::new(holdfast_objects::parse_slice(&wire, &of).unwrap().0)));
    engine.apply(Event::Synced(Source::ClusterSet));
    let snapshot = engine.step(ClockReading { wall: Timestamp(1_000), mono: Duration::ZERO }, &mut |_| ());
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    state.store(&context(), &snapshot).unwrap();
    let kept = state.load().unwrap().unwrap();
    let [view] = kept.remembered.services.as_slice() else { panic!("one service") };
    let written = snapshot.services.iter().next().unwrap();
    assert_eq!((&view.key, &view.facts, &view.slices), (&written.key, &written.facts, &written.slices));
    assert_eq!(view.frontends[0].kind, FrontendType::ClusterSetIp);
    let start = ResumeState::from_table(&kept.remembered, &kept.context.oddities);
    let names = |known: &[(ObjectName, Version)]| -> Vec<String> {
        known.iter().map(|(name, version)| format!("{name}@{}", version.resource_version)).collect()
    };
    assert_eq!(
        (names(&start.imports), names(&start.imported_slices)),
        (vec!["demo/web@".into()], vec!["demo/web-1@".into()]),
        "the next list delivers them again, with their faults"
    );
    assert!(start.services.is_none(), "Services have no version");
    assert_eq!(names(&start.only_imports().imports), ["demo/web@"]);
}

/// Compares the table as read, except the maps' part.
#[track_caller]
fn check_table(kept: SavedState, snapshot: &Snapshot) {
    let expected = SavedSnapshot::from(snapshot);
    assert_eq!((kept.remembered.at, &kept.remembered.progress), (expected.at, &expected.progress));
    assert!(expected.services.len() > 4, "the example has several services");
    for (found, mut view) in kept.remembered.services.into_iter().zip(expected.services) {
        let view = Arc::make_mut(&mut view);
        // A load balancer's history is not saved.
        view.balancer_history = None;
        // The maps' part is read from the maps.
        for port in &mut view.ports {
            port.index = None;
            for hold in port.hold.iter_mut().map(Arc::make_mut) {
                hold.begun = Uptime(expected.clock.wall_at(hold.begun).0);
                // Which backends may be probed is decided again.
                hold.backends.iter_mut().for_each(|it| it.is_open = false);
            }
        }
        for frontend in &mut view.frontends {
            frontend.status = holdfast_core::snapshot::Status::Pending;
        }
        assert_eq!(format!("{found:#?}"), format!("{view:#?}"));
    }
}

/// Another build reads the bytes that a daemon of this version wrote. A change of a form raises the version, and
/// `BLESS=1` writes the file of the new one.
#[test]
fn a_version_of_the_file_never_changes() {
    let (_folder, state) = written();
    let bytes = fs::read(state.path.join(FILE)).unwrap();
    let golden = format!("{}/src/state/tests/snapshot.v{}", env!("CARGO_MANIFEST_DIR"), VERSION);
    if std::env::var_os("BLESS").is_some() && !Path::new(&golden).exists() {
        fs::write(&golden, &bytes).unwrap();
    }
    let expected = fs::read(&golden).unwrap_or_else(|error| panic!("{golden}: {error}; BLESS=1 writes it"));
    assert!(bytes == expected, "the form of version {VERSION} has changed");
}

#[test]
fn only_a_service_that_is_too_large_is_omitted_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (all, most) = (snapshot(), 600);
    let stored = file::store(folder.path(), (FILE, PREVIOUS, DAMAGED), &context(), &all, most).unwrap();
    assert_eq!((stored.left_out.count, &*stored.left_out.named[0]), (1, "shop/full"));
    let kept = StateFolder::new(folder.path()).load().unwrap().unwrap();
    let names: Vec<_> = kept.remembered.services.iter().map(|view| view.key.name.to_string()).collect();
    assert_eq!(names.len(), all.services.iter().count() - 1);
    assert!(!names.contains(&"shop/full".to_owned()));
    assert!(kept.remembered.progress.is_empty(), "otherwise no watch would deliver it");
}

#[test]
fn a_remembered_table_keeps_its_age_when_written() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    for (stale_since, at) in [(None, 2_000), (Some(Timestamp(1_500)), 1_500)] {
        state.store(&context(), &Snapshot { stale_since, ..snapshot() }).unwrap();
        assert_eq!(state.load().unwrap().unwrap().remembered.at, Timestamp(at));
    }
}

#[test]
fn a_missing_file_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    assert!(StateFolder::new(folder.path()).load().unwrap().is_none());
}

#[track_caller]
fn check_refused(what: &str, damage: impl FnOnce(&mut Vec<u8>), expected: &str) {
    let (_folder, state) = written();
    let path = state.path.join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    damage(&mut bytes);
    fs::write(&path, bytes).unwrap();
    let error = state.load().unwrap_err().to_string();
    let said = error.strip_prefix(&path.display().to_string()).unwrap();
    assert_eq!(said, expected, "{what}");
}

#[test]
fn an_invalid_file_is_named_and_not_used() {
    check_refused("empty", Vec::clear, " is not a snapshot of holdfast");
    check_refused(
        "another file",
        |it| *it = b"[apiserver]\nendpoints = []\n".to_vec(),
        " is not a snapshot of holdfast",
    );
    let rest = " is damaged: some of its records are not as they were written";
    check_refused("cut before the head", |it| it.truncate(16), rest);
}

#[test]
fn a_file_of_another_format_is_named_and_not_used() {
    for (format, writer) in [(VERSION - 1, "an older"), (VERSION + 1, "a newer")] {
        let expected = format!(
            " has format {format} of {writer} holdfast; this one reads format {VERSION}, starts without the file and \
             keeps it as snapshot.v{format}"
        );
        check_refused("another format", |it| it[12..16].copy_from_slice(&format.to_le_bytes()), &expected);
    }
}

#[test]
fn a_folder_in_the_place_of_the_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(FILE)).unwrap();
    let error = StateFolder::new(folder.path()).load().unwrap_err();
    assert!(matches!(error, LoadError::Foreign(_)), "{error}");
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let (_folder, state) = written();
    let before = fs::read(state.path.join(FILE)).unwrap();
    fs::create_dir(state.path.join("snapshot.new")).unwrap();
    let error = state.store(&context(), &snapshot()).unwrap_err();
    assert!(error.to_string().ends_with("snapshot.new: Is a directory (os error 21)"), "{error}");
    assert_eq!(fs::read(state.path.join(FILE)).unwrap(), before);
}

#[tokio::test]
async fn a_table_without_a_sources_first_list_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    let mut early = snapshot();
    early.sources.insert(Source::Kubernetes, false);
    let (snapshots, reader) = watch::channel(Arc::new(early));
    let (keeper, _) =
        SnapshotWriter::new(state.clone(), reader, watch::channel(None).1, None, Arc::default());
    let (stop, stopping) = watch::channel(false);
    let running = tokio::spawn(keeper.run(stopping));
    snapshots.send_modify(|_| ());
    stop.send_replace(true);
    running.await.unwrap();
    assert!(state.load().unwrap().is_none());
}

#[tokio::test]
async fn the_last_change_is_written_when_the_daemon_stops() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    let (snapshots, reader) = watch::channel(Arc::new(Snapshot::default()));
    let (keeper, written) = SnapshotWriter::new(
        state.clone(),
        reader,
        watch::channel(Some("uid".into())).1,
        None,
        Arc::default(),
    );
    let (stop, stopping) = watch::channel(false);
    snapshots.send_replace(Arc::new(snapshot()));
    stop.send_replace(true);
    keeper.run(stopping).await;
    let kept = state.load().unwrap().unwrap();
    assert_eq!(kept.context.cluster.as_deref(), Some("uid"));
    assert_eq!(kept.remembered.services.len(), snapshot().services.iter().count());
    assert_eq!(written.borrow().at, Some(Timestamp(2_000)));
}

/// A file may be a hundred megabytes, and an apiserver reports its progress each minute.
#[tokio::test]
async fn apiserver_progress_alone_is_written_rarely_and_at_the_stop() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    let (snapshots, reader) = watch::channel(Arc::new(snapshot()));
    let (mut keeper, _) =
        SnapshotWriter::new(state.clone(), reader, watch::channel(None).1, None, Arc::default());
    assert!(keeper.write_now().await.is_some());
    let mut later = snapshot();
    later.progress.insert(WatchKind::Slices, "999999".into());
    snapshots.send_replace(Arc::new(later.clone()));
    assert_eq!(keeper.write_now().await, None, "nothing else is new");
    later.counters.changes += 1;
    snapshots.send_replace(Arc::new(later.clone()));
    assert!(keeper.write_now().await.is_some(), "a change is written at once");
    later.progress.insert(WatchKind::Slices, "1000000".into());
    snapshots.send_replace(Arc::new(later));
    keeper.run(watch::channel(true).1).await;
    let kept = state.load().unwrap().unwrap();
    assert_eq!(kept.remembered.progress.get(&WatchKind::Slices).map(AsRef::as_ref), Some("1000000"));
}

/// A new node whose folder of manifests is missing for good, and which boots while no apiserver answers.
#[tokio::test]
async fn a_table_without_an_unreadable_source_is_written_if_none_is_better() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    let mut lacking = snapshot();
    lacking.sources.insert(Source::Config, false);
    let (snapshots, reader) = watch::channel(Arc::new(lacking.clone()));
    let (mut keeper, _) =
        SnapshotWriter::new(state.clone(), reader, watch::channel(None).1, None, Arc::default());
    assert_eq!(keeper.write_now().await, None, "the source may be about to deliver");
    lacking.unreadable.insert(Source::Config);
    snapshots.send_replace(Arc::new(lacking));
    assert!(keeper.write_now().await.is_some());
    assert!(!state.load().unwrap().unwrap().remembered.services.is_empty());
}

/// On an idle node no snapshot is news for a long time.
#[tokio::test(start_paused = true)]
async fn an_identified_cluster_is_written_without_another_change() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::new(folder.path());
    let (snapshots, reader) = watch::channel(Arc::new(Snapshot::default()));
    let (clusters, cluster) = watch::channel(None);
    let (keeper, mut written) = SnapshotWriter::new(state.clone(), reader, cluster, None, Arc::default());
    let (stop, stopping) = watch::channel(false);
    let running = tokio::spawn(keeper.run(stopping));
    snapshots.send_replace(Arc::new(snapshot()));
    written.changed().await.unwrap();
    // Until it has nothing to write. The clock stands while the disk writes.
    pause_async(Duration::from_secs(3_600)).await;
    clusters.send_replace(Some("uid".into()));
    await_event("the cluster is written", written.changed()).await.unwrap();
    assert_eq!(state.load().unwrap().unwrap().context.cluster.as_deref(), Some("uid"));
    stop.send_replace(true);
    running.await.unwrap();
}

#[tokio::test]
async fn a_failing_disk_is_reported_and_retried() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("not-a-folder");
    fs::write(&file, "").unwrap();
    let (_snapshots, reader) = watch::channel(Arc::new(snapshot()));
    let (mut keeper, written) =
        SnapshotWriter::new(StateFolder::new(&file), reader, watch::channel(None).1, None, Arc::default());
    let pause = keeper.write_now().await.expect("it is tried again");
    assert!(pause < Duration::from_secs(5), "the reported state of the disk is recent: {pause:?}");
    assert!(written.borrow().error.is_some());
    fs::remove_file(&file).unwrap();
    keeper.write_now().await;
    assert_eq!((written.borrow().error.clone(), written.borrow().at), (None, Some(Timestamp(2_000))));
}
