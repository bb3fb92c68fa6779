//! The thread that writes records down.
//!
//! Invariant: nobody waits for it: what does not fit its queue, or what the disk refuses, is missing in the file, counted, and
//! named there by a gap as soon as something can be written again. A record is on disk within about a second, and at once if
//! it tells of clients that are turned away. Deliberately absent: memory's copy, which has everything.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::files::Files;
use super::history::{History, Kept};
use super::record::{Gap, GapCause};
use super::restore::gap_record;
use super::ring::Line;

/// Records that may wait for the disk: some 8 MB, and more than a second of the fastest changes.
const WAITING_MAX: usize = 8_192;

/// Records of one write.
const BATCH_MAX: usize = 256;

/// How long records may be in a cache only.
const SYNC: Duration = Duration::from_secs(1);

/// After a failure: a full disk is not made better by haste.
const PAUSE_FAILED: Duration = Duration::from_secs(5);

/// A record on its way.
#[derive(Debug)]
pub(super) struct ToDisk {
    pub(super) line: Arc<Line>,
    /// Clients are turned away, or are no longer: nothing later may be known of it if the machine stops now.
    pub(super) urgent: bool,
}

/// Starts it. It ends when the queue's other end is dropped.
pub(super) fn start(
    files: Files,
    seq: u64,
    boot_id: Arc<str>,
    history: Arc<History>,
) -> io::Result<(SyncSender<ToDisk>, JoinHandle<()>)> {
    let (queue, waiting) = sync_channel(WAITING_MAX);
    let writer = Writer { files, seq, boot_id, history, kept: Kept::default(), unsynced: None, resume: None };
    let thread =
        std::thread::Builder::new().name("history".to_owned()).spawn(move || writer.run(&waiting))?;
    Ok((queue, thread))
}

#[derive(Debug)]
struct Writer {
    files: Files,
    /// The number of the last record in the file.
    seq: u64,
    boot_id: Arc<str>,
    history: Arc<History>,
    kept: Kept,
    /// Since when something is in a cache only.
    unsynced: Option<Instant>,
    /// Not before then is anything tried, after a failure.
    resume: Option<Instant>,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<ToDisk>) {
        self.tell();
        loop {
            match waiting.recv_timeout(self.wait()) {
                Ok(first) => {
                    let more = waiting.try_iter().take(BATCH_MAX - 1);
                    let batch: Vec<ToDisk> = std::iter::once(first).chain(more).collect();
                    self.take(&batch);
                }
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => return self.sync(),
            }
            self.tell();
        }
    }

    fn wait(&self) -> Duration {
        self.unsynced.map_or(Duration::MAX, |since| SYNC.saturating_sub(since.elapsed()))
    }

    fn take(&mut self, batch: &[ToDisk]) {
        let written = match self.resume {
            Some(resume) if Instant::now() < resume => Ok(false),
            Some(_) | None => self.append(batch).map(|()| true),
        };
        match written {
            Ok(true) => {
                self.unsynced.get_or_insert_with(Instant::now);
                if batch.iter().any(|it| it.urgent) || self.wait().is_zero() {
                    self.sync();
                }
                if self.resume.is_none_or(|resume| resume < Instant::now()) {
                    self.went_well();
                }
            }
            Ok(false) => self.lose(batch.len()),
            Err(error) => {
                self.lose(batch.len());
                self.failed(&error);
            }
        }
    }

    fn append(&mut self, batch: &[ToDisk]) -> io::Result<()> {
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return Ok(()) };
        let gap = self.gap(&first.line);
        let records = gap.iter().map(|it| &*it.json).chain(batch.iter().map(|it| &*it.line.json));
        let seq = first.line.seq.unwrap_or_default();
        self.files.append(seq, records)?;
        self.seq = last.line.seq.unwrap_or(self.seq);
        Ok(())
    }

    /// What is missing in the file before this record. It takes the last of the missing numbers.
    fn gap(&self, next: &Line) -> Option<Line> {
        let seq = next.seq?.checked_sub(1)?;
        let records = seq.checked_sub(self.seq).filter(|missing| *missing > 0)?;
        let gap = Gap { cause: GapCause::NotWritten, records: Some(records), bytes: None, file: None };
        Line::new(&gap_record(seq, next.time, 0, &self.boot_id, gap))
    }

    fn sync(&mut self) {
        self.unsynced = None;
        if let Err(error) = self.files.sync() {
            self.failed(&error);
        }
    }

    fn lose(&self, records: usize) {
        self.history.note(|recorded| recorded.file.lost += records as u64);
    }

    fn failed(&mut self, error: &io::Error) {
        self.kept.failures += 1;
        self.resume = Some(Instant::now() + PAUSE_FAILED);
        if self.kept.error.is_none() {
            tracing::warn!(%error, "cannot write the history; memory goes on, and a restart would not know the latest");
        }
        self.kept.error = Some(error.to_string().into());
    }

    fn went_well(&mut self) {
        if self.kept.error.take().is_some() {
            self.resume = None;
            let lost = self.history.recorded().file.lost;
            tracing::info!(lost, "the history is written again");
        }
    }

    fn tell(&mut self) {
        self.kept.bytes = self.files.bytes();
        let kept = self.kept.clone();
        self.history.note(|recorded| recorded.file = Kept { lost: recorded.file.lost, ..kept });
    }
}
