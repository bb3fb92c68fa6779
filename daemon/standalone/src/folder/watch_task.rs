//! The task that waits for folder changes and sends them.
//!
//! Invariant: scans run on a blocking thread, one at a time, for at most half of the time. A scan that hangs is
//! reported and awaited. A folder at rest is scanned as soon as a file in it is complete.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use holdfast_core::snapshot::Snapshot;
use holdfast_host::logging::messages::NOTICE;
use inotify::EventOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};

use super::folder_events::{InotifyQueue, PendingChanges, ScanDue};
use super::held_scan::HeldScan;
use super::scan::{FolderScanner, UnsettledFiles};
use super::{FileFormat, HANG_TIMEOUT, MOVE_WINDOW, POLL_INTERVAL, SETTLE_TIME, START_WAIT_MAX};

/// The reason shown for a file that was still open when the first list had to go out.
const STILL_WRITTEN: &str = "is being written; it is read as soon as it is closed";

/// The folder's state; it moves to the blocking thread for each scan.
#[derive(Debug)]
pub(super) struct FolderState<F: FileFormat> {
    scan: FolderScanner<F>,
    folder: F,
    changes: PendingChanges,
    held_scan: HeldScan<F>,
}

#[derive(Debug)]
pub(super) struct FolderWatcher<F: FileFormat> {
    path: PathBuf,
    state: FolderState<F>,
    notices: Option<InotifyQueue>,
    /// A pause as long as the last scan ends here; a complete file waits until then.
    idle_after: Instant,
    /// How long a scan may take until it is logged.
    hangs_after: Duration,
    /// The table's requests for redelivery, and how many of them are answered.
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    answered_asks: u64,
}

/// The reason shown for a folder on a file system that does not respond.
const HANGS: &str = "does not answer, so its last contents stay; does its file system hang?";

/// A kind of scan: initial, later, or a test's.
pub(super) type ScanFn<F> = fn(&mut FolderState<F>) -> (Vec<<F as FileFormat>::News>, UnsettledFiles);

/// The watcher after a scan, the news, and the unsettled files.
type ScanResult<F> = (FolderWatcher<F>, Vec<<F as FileFormat>::News>, UnsettledFiles);

/// The most events to drain before a scan, so that a folder that keeps changing is still scanned.
const DRAINED_MAX: usize = 4096;

impl<F: FileFormat> FolderWatcher<F> {
    pub(super) fn new(path: PathBuf, snapshots: Option<watch::Receiver<Arc<Snapshot>>>) -> Self {
        let state = FolderState {
            scan: FolderScanner::new(path.clone()),
            folder: F::for_folder(&path),
            changes: PendingChanges::new(F::ENDINGS),
            held_scan: HeldScan::default(),
        };
        let notices = InotifyQueue::new().inspect_err(|error| warn_polling(&path, error)).ok();
        Self {
            path,
            state,
            notices,
            idle_after: Instant::now(),
            hangs_after: HANG_TIMEOUT,
            snapshots,
            answered_asks: 0,
        }
    }

    /// Runs until the receiver is gone.
    pub(super) async fn run(self, events: mpsc::Sender<Vec<F::News>>) -> Result<(), JoinError> {
        let mut watching = self.send_initial(&events).await?;
        while !events.is_closed() {
            let (after, mut group, unsettled) =
                watching.scan_or_report(FolderState::scan_changes, &events).await?;
            watching = after;
            group.extend(watching.requested_redelivery());
            send_group(&events, group).await;
            watching
                .wait_for_change(if unsettled.needs_rescan() { SETTLE_TIME } else { POLL_INTERVAL })
                .await;
        }
        Ok(())
    }

    /// Sends the whole folder as one group, once it is readable and no file is being written.
    async fn send_initial(self, events: &mpsc::Sender<Vec<F::News>>) -> Result<Self, JoinError> {
        let deadline = Instant::now() + START_WAIT_MAX;
        let (mut watching, mut group, mut unsettled) =
            self.scan_or_report(FolderState::scan_initial, events).await?;
        while unsettled.is_blind || (!unsettled.files.is_empty() && Instant::now() < deadline) {
            if unsettled.is_blind {
                // Without a listing there is no first list, but the reason must be reported.
                send_group(events, std::mem::take(&mut group)).await;
            }
            watching.wait_for_change(SETTLE_TIME).await;
            let (after, more, now_unsettled) =
                watching.scan_or_report(FolderState::scan_initial, events).await?;
            (watching, unsettled) = (after, now_unsettled);
            group.extend(more);
        }
        group.extend(watching.state.folder.reject_files(&unsettled.files, STILL_WRITTEN));
        group.push(F::complete_news());
        send_group(events, group).await;
        Ok(watching)
    }

    /// Redelivers the folder if the table has requested it since the last scan.
    fn requested_redelivery(&mut self) -> Vec<F::News> {
        let asks = |it: &watch::Receiver<Arc<Snapshot>>| it.borrow().relist_requests.get(&F::SOURCE).copied();
        let now = self.snapshots.as_ref().and_then(asks).unwrap_or_default();
        let was = std::mem::replace(&mut self.answered_asks, now);
        if now > was { self.state.folder.redeliver_all() } else { Vec::new() }
    }

    /// Scans, and reports a scan that hangs.
    async fn scan_or_report(
        self,
        scan: ScanFn<F>,
        events: &mpsc::Sender<Vec<F::News>>,
    ) -> Result<ScanResult<F>, JoinError> {
        let path = self.path.clone();
        let limit = self.hangs_after;
        let mut task = self.spawn_scan(scan);
        if let Ok(result) = timeout(limit, &mut task).await {
            return result;
        }
        tracing::error!(folder = %path.display(), "the folder of {} {HANGS}", F::NAMED);
        let path = path.to_string_lossy();
        send_group(events, vec![F::hang_news(&path, HANGS)]).await;
        let result = task.await?;
        tracing::info!(target: NOTICE, folder = %path, "the folder of {} answers again", F::NAMED);
        send_group(events, result.0.state.folder.recovery_news()).await;
        Ok(result)
    }

    fn spawn_scan(mut self, scan: ScanFn<F>) -> JoinHandle<ScanResult<F>> {
        spawn_blocking(move || {
            let begun = Instant::now();
            if let Some(notices) = &mut self.notices {
                // The path may lead to another folder now, or to none; the scan reports the latter.
                let is_replaced = notices.watch(&self.path).unwrap_or_default();
                if is_replaced {
                    self.state.changes.clear_writing();
                }
            }
            let (events, unsettled) = scan(&mut self.state);
            self.idle_after = Instant::now() + begun.elapsed();
            (self, events, unsettled)
        })
    }

    /// Waits for an event that needs a scan, or for the timeout.
    async fn wait_for_change(&mut self, wait: Duration) {
        let mut due = Instant::now() + wait;
        due = self.state.held_scan.next_scan().map_or(due, |until| due.min(until));
        while let Ok(event) = timeout_at(due, next_event(&self.path, &mut self.notices)).await {
            let now = Instant::now();
            match self.state.changes.record_event(event.mask, event.name.as_deref()) {
                ScanDue::No => {}
                ScanDue::Soon => due = due.min(now + MOVE_WINDOW),
                ScanDue::Now => due = due.min(self.idle_after),
            }
            // A timer would fire a millisecond late.
            if due <= now {
                break;
            }
        }
        self.drain_events();
    }

    /// Takes all queued events, so that one scan covers them.
    fn drain_events(&mut self) {
        for _ in 0..DRAINED_MAX {
            let Some(event) = next_event(&self.path, &mut self.notices).now_or_never() else { return };
            let _scan_follows = self.state.changes.record_event(event.mask, event.name.as_deref());
        }
    }
}

impl<F: FileFormat> FolderState<F> {
    fn scan_changes(&mut self) -> (Vec<F::News>, UnsettledFiles) {
        let (reading, unsettled) = self.scan.scan_folder(&mut self.changes);
        let ready = self.held_scan.release_scan(reading, &self.folder, Instant::now());
        (ready.map(|reading| self.folder.take_scan(reading)).unwrap_or_default(), unsettled)
    }

    /// Scans without a hold: the first list waits for complete files anyway.
    fn scan_initial(&mut self) -> (Vec<F::News>, UnsettledFiles) {
        let (reading, unsettled) = self.scan.scan_folder(&mut self.changes);
        (self.folder.take_scan(reading), unsettled)
    }
}

/// Sends a group unless it is empty. If the receiver is gone, the task ends at its next turn.
async fn send_group<N>(events: &mpsc::Sender<Vec<N>>, group: Vec<N>) {
    if !group.is_empty() {
        let _ends_the_task = events.send(group).await;
    }
}

/// Waits for an inotify event; for ever without inotify, because the poll alone then finds changes.
async fn next_event(path: &Path, notices: &mut Option<InotifyQueue>) -> EventOwned {
    if let Some(queue) = notices {
        match queue.next_event().await {
            Ok(event) => return event,
            Err(error) => warn_polling(path, &error),
        }
        *notices = None;
    }
    std::future::pending().await
}

fn warn_polling(path: &Path, error: &std::io::Error) {
    tracing::warn!(folder = %path.display(), %error, "cannot watch the folder for changes; polling it every few seconds instead");
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc as std_mpsc};

    use holdfast_core::event::Event;
    use holdfast_objects::manifests::Folder;

    use super::*;

    /// The next scan waits here until the other end is dropped.
    static GATE: Mutex<Option<std_mpsc::Receiver<()>>> = Mutex::new(None);

    fn hang(known: &mut FolderState<Folder>) -> (Vec<Event>, UnsettledFiles) {
        let gate = GATE.lock().unwrap().take().unwrap();
        gate.recv().unwrap_err();
        known.scan_changes()
    }

    fn show(events: &[Event]) -> Vec<String> {
        let show = |event: &Event| match event {
            Event::Rejected(it) => format!("{}: {}", it.object, it.reason),
            Event::RejectionEnded(key) => format!("{key} is well"),
            other => format!("{other:?}"),
        };
        events.iter().map(show).collect()
    }

    #[tokio::test]
    async fn a_folder_that_hangs_is_reported_and_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let mut watching = FolderWatcher::<Folder>::new(folder.path().to_owned(), None);
        watching.hangs_after = Duration::from_millis(50);
        let (events, mut told) = mpsc::channel(8);
        let (hung, gate) = std_mpsc::channel();
        *GATE.lock().unwrap() = Some(gate);
        let looking = tokio::spawn(async move { watching.scan_or_report(hang, &events).await });
        let said = show(&told.recv().await.unwrap());
        assert_eq!(said, [format!("file {path}: {HANGS}")]);
        // Other tasks of this thread continue meanwhile.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!looking.is_finished());
        drop(hung);
        assert_eq!(show(&told.recv().await.unwrap()), [format!("file {path} is well")]);
        let (after, group, _) = looking.await.unwrap().unwrap();
        assert_eq!((show(&group).len(), after.path.as_path()), (0, folder.path()));
    }
}
