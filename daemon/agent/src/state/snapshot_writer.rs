//! Writes the table to disk whenever it has changed.
//!
//! Invariant: a change is on disk within a second, unless a full write takes longer than a twentieth of a second;
//! then the pause between writes grows with that time, which leaves the disk and a core for other work. On a node
//! where only the apiserver's progress changes, writes take at most a thousandth of the time. Only a complete table
//! is written: one without a source's first list would replace a better one. A table that lacks an unreadable source
//! is written if the file had nothing better. A file that this daemon could not read may have something better.
//! After each write the daemon returns its freed memory to the kernel.

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
use holdfast_host::logging::messages::{self, NOTICE, say};
use holdfast_kubernetes::source::UntabledView;

/// The least time between two writes: a burst of changes is one write.
const GAP: Duration = Duration::from_secs(1);

/// The pause after a write, as a multiple of its duration. It bounds the share of time spent writing.
const PAUSE_FACTOR: u32 = 20;

/// The same for a write that only records the apiserver's progress, which comes each minute. A daemon that crashed
/// resumes from an older version, or lists once; a stopped one writes the newest.
const PROGRESS_PAUSE_FACTOR: u32 = 1_000;

/// An apiserver forgets versions older than some minutes, so older files are useless.
const PROGRESS_GAP_MAX: Duration = Duration::from_secs(15 * 60);

/// The longest pause; a crash loses at most this much of a very large table's changes.
const GAP_MAX: Duration = Duration::from_secs(60);

/// The pause after a failure, so that readers' view of the disk is no older. If a try takes long, the pause grows
/// with it as after a write.
const GAP_FAILED: Duration = Duration::from_secs(1);

/// Why a partial table is not written, behind the reason why the file cannot be read.
const NOT_REPLACED: &str = "; a table without the objects of every source does not replace it";

/// The outcome of the last write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotWrite {
    /// When the file was last written, by its own contents.
    pub at: Option<Timestamp>,
    /// The size of the file.
    pub bytes: u64,
    /// The services that the file lacks.
    pub left_out: OmittedServices,
    /// The damage of the file when this process began.
    pub damage: Option<Arc<Damage>>,
    /// Why the last try failed.
    pub error: Option<Arc<str>>,
    /// Since when every try has failed.
    pub failing_since: Option<Timestamp>,
}

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

/// The content of the file, and until when it suffices for an equal table.
#[derive(Clone, Debug)]
struct FileState {
    content: Content,
    current_until: Instant,
}

/// The parts that decide whether two snapshots need two files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    changes: u64,
    progress: BTreeMap<WatchKind, Arc<str>>,
    /// Whether the services lag behind the sources, so that a restart must list everything.
    is_behind: bool,
    zone: Option<Arc<str>>,
    cluster: Option<Arc<str>>,
    proxy_name: Option<Arc<str>>,
}

impl FileState {
    /// Whether the file is good enough for a table with this content.
    fn is_current_for(&self, content: &Content, now: Instant) -> bool {
        let Content { progress, is_behind: behind, .. } = content.clone();
        let same = Content { progress, is_behind: behind, ..self.content.clone() } == *content;
        let is_caught_up = self.content.is_behind && !content.is_behind;
        same && !is_caught_up && (self.content.progress == content.progress || now < self.current_until)
    }
}

impl SnapshotWriter {
    /// A writer, and the channel of its outcomes.
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

    /// Adds the damage of the file at the start, for readers.
    #[must_use]
    pub fn with_damage(self, damage: Option<Arc<Damage>>) -> Self {
        self.last_write.send_modify(|written| written.damage = damage);
        self
    }

    /// Writes until `stop`, and once more then.
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
        // The next process begins with this file.
        self.file.iter_mut().for_each(|known| known.current_until = Instant::now());
        self.write_now().await;
    }

    /// Writes the changes; returns how long to wait after that, or `None` if there was nothing to write.
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
            // The untabled objects are read after the table, so that they are not older. A change to them changes the
            // table's version too.
            oddities: self.odd.as_ref().map(UntabledView::current).unwrap_or_default(),
            numbers_below: self.history.status().below,
        };
        let folder = self.folder.clone();
        let (at, is_synced) = (snapshot.published, snapshot.is_synced());
        let begun = Instant::now();
        let stored = tokio::task::spawn_blocking(move || {
            let unread = folder.find_unread().filter(|_| !is_synced);
            let stored = match unread {
                Some(unread) => Err(format!("{unread}{NOT_REPLACED}")),
                None => folder.store(&context, &snapshot).map_err(|error| error.to_string()),
            };
            // The written table may hold the last references to data that has changed since.
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
                self.publish_write(SnapshotWrite {
                    at: Some(at),
                    bytes,
                    left_out,
                    damage,
                    ..SnapshotWrite::default()
                });
                (took * PAUSE_FACTOR).clamp(GAP, GAP_MAX)
            }
            Ok(Err(error)) => self.record_failure(&error, begun.elapsed()),
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
        let failing_since = before.failing_since.or_else(|| Some(holdfast_host::clock::now().seconds()));
        self.publish_write(SnapshotWrite { error: Some(error.into()), failing_since, ..before });
        (took * PAUSE_FACTOR).clamp(GAP_FAILED, GAP_MAX)
    }

    /// Publishes the outcome of the last write, and logs it only if it differs from the previous one.
    fn publish_write(&self, now: SnapshotWrite) {
        let error = now.error.clone();
        let left_out = now.left_out.clone();
        let before = self.last_write.send_replace(now);
        match (&before.error, &error) {
            (None, Some(error)) => {
                say!(warn, messages::SNAPSHOT_NOT_WRITTEN, %error);
            }
            (Some(_), None) => tracing::info!(target: NOTICE, "the snapshot is written again"),
            _ => {}
        }
        if before.left_out != left_out && left_out.count > 0 {
            let services = left_out.count;
            let named = left_out.named.join(", ");
            tracing::warn!(
                services,
                named,
                "services are too large for the snapshot; a restart would begin without them"
            );
        }
    }
}
