//! Writes the table down whenever it has changed.
//!
//! Invariant: a change is on disk within a second, unless to write everything takes longer than a twentieth of a
//! second; then the pause between two writes grows with that time, so that the disk and a core are left for other work.
//! A node on which nothing happens but that the apiserver says how far it has come writes a thousandth of the time at
//! most. Only a whole table is written: one in which a source has not delivered yet would replace a better one. What
//! lacks a source that cannot be read is written where nothing better was read from the file.
//! With each write goes back to the kernel what the daemon has freed since the last one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::event::WatchKind;
use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::release_free_memory;
use tokio::sync::watch;

use super::{Damage, OmittedServices, SnapshotContext, StateFolder, StoreOutcome};
use crate::recorder::{History, boot_id};
use holdfast_host::logging::messages::{self, say};
use holdfast_kubernetes::source::UntabledView;

/// The least time between two writes: a burst of changes is one write.
const GAP: Duration = Duration::from_secs(1);

/// The pause after a write is this many times as long as the write took, so that writing takes at most such a share of
/// the time.
const PAUSE_FACTOR: u32 = 20;

/// The same after which a write may follow that only says how far the apiserver has come, which it tells each minute. A
/// daemon that crashed goes on from an older version, or lists once; one that is stopped writes the newest.
const PROGRESS_PAUSE_FACTOR: u32 = 1_000;

/// An apiserver forgets what is older than some minutes, so that older files are of no more use.
const PROGRESS_GAP_MAX: Duration = Duration::from_secs(15 * 60);

/// The longest pause; a crash forgets at most this much of a very large table.
const GAP_MAX: Duration = Duration::from_secs(60);

/// The pause after a failure, so that what readers are told of the disk is no older. Where a try takes long, the pause
/// grows with it as after a write.
const GAP_FAILED: Duration = Duration::from_secs(1);

/// How the last write went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotWrite {
    /// When the file was last written, as its own contents say.
    pub at: Option<Timestamp>,
    /// The size of the file.
    pub bytes: u64,
    /// The services that the file does not have.
    pub left_out: OmittedServices,
    /// What of the file was not whole when this process began.
    pub damage: Option<Arc<Damage>>,
    /// Why the last try failed.
    pub error: Option<Arc<str>>,
}

/// Watches snapshots and writes them down.
#[derive(Debug)]
pub struct SnapshotWriter {
    folder: StateFolder,
    boot: Arc<str>,
    cluster: watch::Receiver<Option<Arc<str>>>,
    odd: Option<UntabledView>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    last_write: watch::Sender<SnapshotWrite>,
    history: Arc<History>,
    file: Option<FileState>,
}

/// What is in the file, and until when it does for a table that says the same.
#[derive(Clone, Debug)]
struct FileState {
    content: Content,
    current_until: Instant,
}

/// What makes two snapshots worth two files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    changes: u64,
    progress: BTreeMap<WatchKind, Arc<str>>,
    /// The services say less than the sources have told, so a restart lists everything.
    is_behind: bool,
    zone: Option<Arc<str>>,
    cluster: Option<Arc<str>>,
    proxy_name: Option<Arc<str>>,
}

impl FileState {
    /// Whether the file need not be written anew for a table that says this.
    fn is_current_for(&self, content: &Content, now: Instant) -> bool {
        let Content { progress, is_behind: behind, .. } = content.clone();
        let same = Content { progress, is_behind: behind, ..self.content.clone() } == *content;
        let is_caught_up = self.content.is_behind && !content.is_behind;
        same && !is_caught_up && (self.content.progress == content.progress || now < self.current_until)
    }
}

impl SnapshotWriter {
    /// A keeper, and where it tells how it goes.
    pub fn new(
        folder: StateFolder,
        snapshots: watch::Receiver<Arc<Snapshot>>,
        cluster: watch::Receiver<Option<Arc<str>>>,
        odd: Option<UntabledView>,
        history: Arc<History>,
    ) -> (Self, watch::Receiver<SnapshotWrite>) {
        let (written, reader) = watch::channel(SnapshotWrite::default());
        let boot = boot_id();
        (Self { folder, boot, cluster, odd, snapshots, last_write: written, history, file: None }, reader)
    }

    /// The keeper, with what was wrong with the file at the start, for readers.
    #[must_use]
    pub fn with_damage(self, damage: Option<Arc<Damage>>) -> Self {
        self.last_write.send_modify(|written| written.damage = damage);
        self
    }

    /// Writes until `stop` says so, and once more then.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                changed = self.snapshots.changed() => if changed.is_err() { break },
                Ok(()) = self.cluster.changed() => {}
            }
            let Some(pause) = self.write_now().await else { continue };
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = tokio::time::sleep(pause) => self.snapshots.mark_changed(),
            }
        }
        // What comes next begins with this file.
        self.file.iter_mut().for_each(|known| known.current_until = Instant::now());
        self.write_now().await;
    }

    /// Writes what has changed; returns how long to wait after that. `None`: there was nothing to write.
    pub(super) async fn write_now(&mut self) -> Option<Duration> {
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
        let content = self.content(&snapshot);
        let whole = snapshot.is_readable_synced() || snapshot.stale_since.is_some();
        let does = |known: &FileState| known.is_current_for(&content, Instant::now());
        if !whole || !snapshot.programmed || snapshot.filling || self.file.as_ref().is_some_and(does) {
            return None;
        }
        let context = SnapshotContext {
            boot: Arc::clone(&self.boot),
            cluster: content.cluster.clone(),
            zone: content.zone.clone(),
            proxy_name: content.proxy_name.clone(),
            // The oddities are read after the table, so that they are not older. What changes them changes the table's
            // version too.
            oddities: self.odd.as_ref().map(UntabledView::current).unwrap_or_default(),
            numbers_below: self.history.status().below,
        };
        let folder = self.folder.clone();
        let at = snapshot.published;
        let begun = Instant::now();
        let stored = tokio::task::spawn_blocking(move || {
            let stored = folder.store(&context, &snapshot);
            // The table that was written may be the last reader of much that has changed since.
            drop(snapshot);
            release_free_memory();
            stored
        });
        let stored = stored.await;
        Some(match stored {
            Ok(Ok(StoreOutcome { bytes, left_out })) => {
                let took = begun.elapsed();
                let does_until = Instant::now() + (took * PROGRESS_PAUSE_FACTOR).min(PROGRESS_GAP_MAX);
                self.file = Some(FileState { content, current_until: does_until });
                let damage = self.last_write.borrow().damage.clone();
                self.publish_write(SnapshotWrite { at: Some(at), bytes, left_out, damage, error: None });
                (took * PAUSE_FACTOR).clamp(GAP, GAP_MAX)
            }
            Ok(Err(error)) => self.record_failure(&error.to_string(), begun.elapsed()),
            Err(error) => self.record_failure(&error.to_string(), begun.elapsed()),
        })
    }

    fn content(&self, snapshot: &Snapshot) -> Content {
        Content {
            changes: snapshot.counters.changes,
            progress: snapshot.progress.clone(),
            is_behind: snapshot.behind,
            zone: snapshot.node.zone.clone(),
            cluster: self.cluster.borrow().clone(),
            proxy_name: snapshot.settings.service_proxy_name.clone(),
        }
    }

    fn record_failure(&self, error: &str, took: Duration) -> Duration {
        let before = self.last_write.borrow().clone();
        self.publish_write(SnapshotWrite { error: Some(error.into()), ..before });
        (took * PAUSE_FACTOR).clamp(GAP_FAILED, GAP_MAX)
    }

    /// Publishes how the last write went, and logs it only where that differs from the one before.
    fn publish_write(&self, now: SnapshotWrite) {
        let error = now.error.clone();
        let left_out = now.left_out.clone();
        let before = self.last_write.send_replace(now);
        match (&before.error, &error) {
            (None, Some(error)) => {
                say!(warn, messages::SNAPSHOT_NOT_WRITTEN, %error);
            }
            (Some(_), None) => tracing::info!("the snapshot is written again"),
            _ => {}
        }
        if before.left_out != left_out && left_out.count > 0 {
            let services = left_out.count;
            let named = left_out.named.join(", ");
            tracing::warn!(
                services,
                named,
                "too large to be written down; a restart would begin without them"
            );
        }
    }
}
