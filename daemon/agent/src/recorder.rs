//! The recorder: gives every change a number, a record with its cause, a log line, and a place in memory and on disk.
//!
//! Invariant: every visible change has exactly one record, and a gap marks each missing one; only a start that
//! restores the former state goes to watchers alone. A number is used only once, even if the daemon restarts while a
//! disk is full or after it was killed. The engine never waits: changes come over a bounded queue, and those that do
//! not fit are counted. Readers, watchers and the disk may be as slow as they like.

mod change_record;
mod compaction;
mod compare;
mod files;
mod frames;
mod history;
mod log;
mod numbers;
mod restore;
mod ring;
mod segment;
mod watchers;
mod writer;

#[cfg(any(test, feature = "testing"))]
pub mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use holdfast_core::snapshot::{Snapshot, Verdict};
use holdfast_status::record::{Gap, GapCause, Record};
use tokio::sync::{mpsc, watch};

use files::{Disk, SegmentFiles};
use holdfast_host::headroom::Headroom;
use holdfast_host::logging::messages::{self, say};
use numbers::{NumberFile, NumberMark, Reserve};
use writer::{QueuedRecord, WriterFiles};

pub use change_record::{RULES, TimedChange};
pub use history::latest_records;
pub use history::{FileHealth, History, RecordQuery, RecordingStatus};
pub use ring::{Fill, Line};
pub use watchers::{Watch, WatchEvent};

/// The folder of the records, in the state folder.
pub const FOLDER: &str = "history";

/// The most changes recorded before the next check for lost ones.
const AT_ONCE_MAX: usize = 256;

/// Turns changes into records.
#[derive(Debug)]
pub struct Recorder {
    changes: mpsc::Receiver<TimedChange>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    history: Arc<History>,
    folder: Option<PathBuf>,
    disk: Disk,
    boot_id: Arc<str>,
    seq: u64,
    /// The mark of used numbers in the snapshot on disk.
    remembered: Option<NumberMark>,
    reserve: Arc<Reserve>,
    lost: u64,
    queue: Option<SyncSender<QueuedRecord>>,
    disk_headroom: Headroom,
    writer: Option<JoinHandle<()>>,
}

impl Recorder {
    /// A recorder, and the readers' view of it. `snapshots` report how many changes did not fit the queue; without a
    /// folder nothing is written.
    pub fn new(
        changes: mpsc::Receiver<TimedChange>,
        snapshots: watch::Receiver<Arc<Snapshot>>,
        folder: Option<&Path>,
    ) -> (Self, Arc<History>) {
        let history = Arc::new(History::default());
        let recorder = Self {
            changes,
            snapshots,
            history: Arc::clone(&history),
            folder: folder.map(Path::to_owned),
            disk: Disk::default(),
            boot_id: boot_id(),
            seq: 0,
            remembered: None,
            reserve: Arc::new(Reserve::new(None)),
            lost: 0,
            queue: None,
            disk_headroom: Headroom::new(writer::WAITING_BYTES_MAX),
            writer: None,
        };
        (recorder, history)
    }

    /// Adds the snapshot's [`RecordingStatus::below`], for a folder that has lost its file of numbers.
    #[must_use]
    pub fn with_remembered(mut self, below: u64) -> Self {
        self.remembered = (below > 0).then_some(NumberMark { below, is_exact: false });
        self
    }

    /// Records changes until the engine stops, and returns once the disk has all records.
    pub async fn run(mut self) {
        self.restore_history();
        let mut taken = Vec::with_capacity(AT_ONCE_MAX);
        let mut snapshots = self.snapshots.clone();
        loop {
            tokio::select! {
                biased;
                count = self.changes.recv_many(&mut taken, AT_ONCE_MAX) => {
                    taken.drain(..).for_each(|timed| self.record(&timed));
                    if count == 0 {
                        break;
                    }
                }
                Ok(()) = snapshots.changed() => {}
            }
            let lost = snapshots.borrow_and_update().counters.changes_dropped;
            self.record_loss(lost);
        }
        self.finish();
    }

    /// Continues a former process's history.
    fn restore_history(&mut self) {
        let Some(folder) = self.folder.clone() else { return };
        let (mut numbers, mark) = NumberFile::open(&folder);
        let mark = mark.or(self.remembered);
        let history = Arc::clone(&self.history);
        let restored = match restore::restore(&folder, &self.boot_id, mark, &mut |line| {
            history.restore_line(&line);
        }) {
            Ok(restored) => restored,
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "cannot read the history from before the restart; a new one begins");
                let seq = mark.map_or(0, |mark| mark.below.saturating_sub(1));
                restore::RestoredHistory { seq, ..restore::RestoredHistory::default() }
            }
        };
        self.seq = restored.seq;
        let below = numbers.reserve(self.seq).inspect_err(|error| {
            tracing::warn!(%error, "cannot write the file of used record numbers");
        });
        let below = below.ok();
        self.reserve = Arc::new(Reserve::new(below));
        self.history.update_status(|recorded| {
            (recorded.seq, recorded.gaps) = (restored.seq, restored.gaps);
            recorded.below = below.unwrap_or_default();
        });
        let files = SegmentFiles::new(&folder, self.disk, restored.segments, restored.is_spoilt);
        let disks = WriterFiles { files, numbers, reserve: Arc::clone(&self.reserve) };
        let started = writer::start(disks, self.seq, Arc::clone(&self.boot_id), Arc::clone(&self.history));
        match started {
            Ok((queue, writer)) => (self.queue, self.writer) = (Some(queue), Some(writer)),
            Err(error) => {
                tracing::error!(%error, "cannot write the history to disk until a restart; it continues in memory");
                self.reserve.set(None);
            }
        }
        if let Some(torn) = restored.torn_gap {
            self.record_gap(torn);
        }
    }

    fn record(&mut self, timed: &TimedChange) {
        let is_kept = self.should_record(timed);
        if !is_kept && self.history.watchers() == 0 {
            return;
        }
        let mut record = timed.record(&self.boot_id, is_kept);
        if !is_kept {
            build_line(&record).iter().for_each(|line| self.history.notify_watchers(line));
            return;
        }
        record.seq = Some(self.next_number());
        self.store_record(&record);
        self.history.update_status(|recorded| recorded.records += 1);
        log::write(&timed.change, &record);
    }

    /// Whether to record the change. A restored state is recorded only if the last record is of a refused write.
    fn should_record(&self, timed: &TimedChange) -> bool {
        let change = &timed.change;
        change.visible
            && (!timed.matches_remembered()
                || self.history.ends_with(&change.service.name, change_record::REFUSED_BY_THE_MAPS))
    }

    /// Records a gap for changes that did not fit the queue.
    fn record_loss(&mut self, lost: u64) {
        let fresh = lost.saturating_sub(self.lost);
        if fresh == 0 {
            return;
        }
        self.lost = lost;
        say!(warn, messages::CHANGES_MISSING, changes = fresh);
        self.history.update_status(|recorded| recorded.lost += fresh);
        self.record_gap(Gap { records: Some(fresh), ..Gap::new(GapCause::QueueFull) });
    }

    fn next_number(&mut self) -> u64 {
        self.seq = self.seq.saturating_add(1);
        self.reserve.wait_for(self.seq);
        self.seq
    }

    fn record_gap(&mut self, gap: Gap) {
        let seq = self.next_number();
        let time = holdfast_host::clock::now();
        self.store_record(&restore::gap_record(seq, time, 0, &self.boot_id, gap));
        self.history.update_status(|recorded| recorded.gaps += 1);
    }

    fn store_record(&mut self, record: &Record) {
        let Some(line) = build_line(record) else {
            return self.history.update_status(|recorded| recorded.lost += 1);
        };
        self.history.push(&line);
        let seq = self.seq;
        let urgent = is_urgent(record);
        // The missing numbers show the writer which records did not fit.
        let sent = self.queue.as_ref().map(|queue| {
            let room = self.disk_headroom.reserve(line.bytes());
            room.is_some() && queue.try_send(QueuedRecord { line, urgent, _reservation: room }).is_ok()
        });
        self.history.update_status(|recorded| {
            recorded.seq = seq;
            recorded.file.lost += u64::from(sent == Some(false));
        });
    }

    fn finish(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(
                "the thread that writes the history panicked; the latest records may be missing on disk"
            );
        }
        self.history.close();
    }
}

fn build_line(record: &Record) -> Option<Arc<Line>> {
    let line = Line::new(record).inspect_err(|error| {
        let seq = record.seq;
        let service = &record.service;
        tracing::error!(seq, service, %error, "cannot write a change as JSON; the history lacks it");
    });
    line.ok().map(Arc::new)
}

/// Whether a verdict changed to or from one other than serving: the programs start or stop denying clients.
fn is_urgent(record: &Record) -> bool {
    let met = record
        .transitions
        .iter()
        .filter(|it| it.before.as_ref().map(|it| &it.verdict) != it.after.as_ref().map(|it| &it.verdict));
    met.flat_map(|it| it.before.iter().chain(&it.after)).any(|met| met.verdict != Verdict::Serving.as_str())
}

/// The identity of this boot; empty if the kernel does not report it.
pub fn boot_id() -> Arc<str> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}
