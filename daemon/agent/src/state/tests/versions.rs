//! A file of another format: the version that wrote it finds it again, whatever this one does meanwhile.

use holdfast_fixtures::frozen::frozen_text;

use super::*;

/// The manifests of that version may lack a field that this one knows.
#[test]
fn each_released_snapshot_is_read_as_the_table_that_it_was() {
    let (_folder, state) = written();
    let now = fs::read(state.path.join(FILE)).unwrap();
    let manifests = frozen_text("everything.yaml", MANIFESTS.as_bytes());
    for (file, manifests) in frozen_text("everything.snapshot", &now).iter().zip(&manifests) {
        assert_eq!(file.version, manifests.version);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), file.bytes()).unwrap();
        let kept = StateFolder::new(folder.path()).load();
        let kept = kept.unwrap_or_else(|error| panic!("{}: {error}", file.version)).unwrap();
        assert_eq!((&kept.context, &kept.damage), (&context(), &None), "{}", file.version);
        check_table(kept, &snapshot_from(&manifests.text()));
    }
}

/// Gives a file the format of another version.
fn set_format(state: &StateFolder, name: &str, format: u32) -> Vec<u8> {
    let path = state.path.join(name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[12..16].copy_from_slice(&format.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    bytes
}

/// A folder after an upgrade to a newer format, which replaced both files.
fn upgraded() -> (tempfile::TempDir, StateFolder, Vec<u8>) {
    let (folder, state) = written();
    state.store(&context(), &snapshot()).unwrap();
    set_format(&state, PREVIOUS, VERSION + 1);
    let newer = set_format(&state, FILE, VERSION + 1);
    (folder, state, newer)
}

/// The name of a newer version's file, once this version has found it.
fn newer_name() -> String {
    format!("snapshot.v{}", VERSION + 1)
}

/// A writer over this folder, and the sender of its tables.
fn writer(
    state: &StateFolder,
) -> (watch::Sender<Arc<Snapshot>>, SnapshotWriter, watch::Receiver<SnapshotWrite>) {
    let (snapshots, reader) = watch::channel(Arc::new(snapshot()));
    let (writer, written) =
        SnapshotWriter::new(state.clone(), reader, watch::channel(None).1, None, Arc::default());
    (snapshots, writer, written)
}

/// A table without the objects of a source that cannot be read.
fn partial() -> Snapshot {
    let mut partial = snapshot();
    partial.sources.insert(Source::Config, false);
    partial.unreadable.insert(Source::Config);
    partial
}

#[test]
fn a_file_of_another_format_stays_under_a_name_of_its_own_over_any_number_of_writes() {
    let (_folder, state, newer) = upgraded();
    for start in 1..=3 {
        let loaded = state.load();
        assert_eq!(loaded.is_err(), start == 1, "start {start}");
        state.store(&context(), &snapshot()).unwrap();
        state.store(&context(), &snapshot()).unwrap();
        assert!(fs::read(state.path.join(newer_name())).unwrap() == newer, "start {start}");
    }
    assert!(!state.path.join(DAMAGED).exists(), "it is whole");
}

#[test]
fn a_file_of_another_format_never_replaces_the_previous_one() {
    let (_folder, state) = written();
    state.store(&context(), &snapshot()).unwrap();
    set_format(&state, FILE, VERSION + 1);
    let before = fs::read(state.path.join(PREVIOUS)).unwrap();
    state.load().unwrap();
    state.store(&context(), &snapshot()).unwrap();
    assert!(fs::read(state.path.join(PREVIOUS)).unwrap() == before);
}

/// The writer of the newer format kept the last file of this one.
#[test]
fn after_a_downgrade_the_last_file_of_the_own_format_is_used() {
    let (_folder, state) = written();
    let own = fs::read(state.path.join(FILE)).unwrap();
    let (_newer_folder, newer, _) = upgraded();
    fs::write(newer.path.join(format!("snapshot.v{VERSION}")), own).unwrap();
    let kept = newer.load().unwrap().unwrap();
    assert_eq!(kept.remembered.services.len(), snapshot().services.iter().count());
    assert!(kept.remembered.progress.is_empty(), "the watches start again");
    let error = &kept.damage.unwrap().error;
    assert!(error.contains("of a newer holdfast"), "{error}");
}

/// Damage is no downgrade: what was removed long ago must not come back by it.
#[test]
fn a_damaged_file_is_not_repaired_from_a_file_kept_at_an_upgrade() {
    let (_folder, state) = written();
    let own = fs::read(state.path.join(FILE)).unwrap();
    fs::write(state.path.join(format!("snapshot.v{VERSION}")), own).unwrap();
    fs::write(state.path.join(FILE), b"").unwrap();
    assert!(state.load().is_err());
}

/// After a downgrade, while a source cannot be read. The newer version would find less than it had written.
#[tokio::test]
async fn a_partial_table_does_not_replace_a_file_that_another_version_reads() {
    let (_folder, state, newer) = upgraded();
    assert!(state.load().is_err());
    let (snapshots, mut writer, written) = writer(&state);
    for stale_since in [None, Some(Timestamp(1_500))] {
        snapshots.send_replace(Arc::new(Snapshot { stale_since, ..partial() }));
        assert!(writer.write_now().await.is_some(), "it is tried again");
        let error = written.borrow().error.clone().unwrap();
        let end = "; a table without the objects of every source does not replace it";
        assert!(error.contains("of a newer holdfast") && error.ends_with(end), "{error}");
        assert!(fs::read(state.path.join(FILE)).unwrap() == newer);
    }
    snapshots.send_replace(Arc::new(snapshot()));
    assert!(writer.write_now().await.is_some());
    assert_eq!(written.borrow().error, None);
    assert_eq!(state.load().unwrap().unwrap().damage, None);
    assert!(fs::read(state.path.join(newer_name())).unwrap() == newer);
    // From now on the file is this version's own.
    let mut later = partial();
    later.counters.changes += 1;
    snapshots.send_replace(Arc::new(later));
    assert!(writer.write_now().await.is_some());
    assert_eq!(written.borrow().error, None);
}

/// Whoever stops the daemon then goes back to the newer version.
#[tokio::test]
async fn a_stop_before_every_source_has_delivered_leaves_the_other_versions_file() {
    let (_folder, state, newer) = upgraded();
    assert!(state.load().is_err());
    let (snapshots, writer, _) = writer(&state);
    snapshots.send_replace(Arc::new(partial()));
    let (_stop, stopping) = watch::channel(true);
    writer.run(stopping).await;
    assert!(fs::read(state.path.join(FILE)).unwrap() == newer);
}
