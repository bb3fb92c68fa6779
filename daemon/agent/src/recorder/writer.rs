//! The thread that writes records to the files.
//!
//! Invariant: no other part waits until a record is written; the recorder waits only for numbers, a second at most.
//! Records that do not fit the queue, or that the disk refuses, are missing in the file and counted, and a gap names
//! them there as soon as a write succeeds, at the latest at the end. A record is on disk within about a second, and
//! at once if it is about denied clients.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use holdfast_status::record::{Gap, GapCause};

use super::files::SegmentFiles;
use super::frames;
use super::history::{FileHealth, History};
use super::numbers::{NumberFile, NumberMark, Reserve};
use super::restore::gap_record;
use super::ring::Line;
use holdfast_host::headroom::Reservation;
use holdfast_host::logging::messages::{self, say};

/// The most records that may wait for the disk: some 8 MB, and more than a second of the fastest changes.
const WAITING_MAX: usize = 8_192;

/// The most bytes of all waiting records; the record of a service with many ports may take ten times the usual
/// kilobyte.
pub(super) const WAITING_BYTES_MAX: usize = 16 << 20;

/// The most records of one write.
const BATCH_MAX: usize = 256;

/// How long records may stay in a cache.
const SYNC: Duration = Duration::from_secs(1);

/// The pause after a failure. A retry is one small write, and readers' view of the disk is at most this old.
const PAUSE_FAILED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct QueuedRecord {
    pub(super) line: Arc<Line>,
    /// Whether clients are denied from now on, or no longer. The record is then synced at once, because it would be
    /// lost if the machine stopped now.
    pub(super) urgent: bool,
    /// The record's part of [`WAITING_BYTES_MAX`].
    pub(super) _reservation: Option<Arc<Reservation>>,
}

#[derive(Debug)]
pub(super) struct WriterFiles {
    pub(super) files: SegmentFiles,
    pub(super) numbers: NumberFile,
    pub(super) reserve: Arc<Reserve>,
}

/// Starts the thread; `seq` is the number of the last record in the file. The thread ends when the queue is dropped.
pub(super) fn start(
    WriterFiles { files, numbers, reserve }: WriterFiles,
    seq: u64,
    boot_id: Arc<str>,
    history: Arc<History>,
) -> io::Result<(SyncSender<QueuedRecord>, JoinHandle<()>)> {
    let (queue, waiting) = sync_channel(WAITING_MAX);
    let kept = FileHealth::default();
    let unsynced = None;
    let resume = None;
    let retry = None;
    let lost_to = seq;
    let writer = Writer {
        files,
        numbers,
        reserve,
        seq,
        lost_to,
        boot_id,
        history,
        file_health: kept,
        unsynced,
        resume,
        retry,
    };
    let thread =
        std::thread::Builder::new().name("history".to_owned()).spawn(move || writer.run(&waiting))?;
    Ok((queue, thread))
}

#[derive(Debug)]
struct Writer {
    files: SegmentFiles,
    numbers: NumberFile,
    reserve: Arc<Reserve>,
    /// The number of the last record in the file.
    seq: u64,
    /// The number of the last record that the disk did not take.
    lost_to: u64,
    boot_id: Arc<str>,
    history: Arc<History>,
    file_health: FileHealth,
    /// Since when some records are only in a cache.
    unsynced: Option<Instant>,
    /// The end of the pause after a failure.
    resume: Option<Instant>,
    /// The end of the pause after a failed reservation of numbers.
    retry: Option<Instant>,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<QueuedRecord>) {
        self.publish_health();
        loop {
            match waiting.recv_timeout(self.wait_time()) {
                Ok(first) => {
                    let more = waiting.try_iter().take(BATCH_MAX - 1);
                    let batch: Vec<QueuedRecord> = std::iter::once(first).chain(more).collect();
                    self.reserve_numbers();
                    self.write_batch(&batch);
                }
                Err(RecvTimeoutError::Timeout) if self.file_health.error.is_some() => self.retry_write(),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
            self.publish_health();
        }
    }

    /// How long to wait for a record: until the next sync is due, or a retry.
    fn wait_time(&self) -> Duration {
        let unsynced = self.unsynced.map(|since| SYNC.saturating_sub(since.elapsed()));
        let failed = self.resume.filter(|_| self.file_health.error.is_some());
        let failed = failed.map(|resume| resume.saturating_duration_since(Instant::now()));
        unsynced.into_iter().chain(failed).min().unwrap_or(Duration::MAX)
    }

    /// Retries a failed write although no new record came, with a gap for the missing records.
    fn retry_write(&mut self) {
        if self.resume.is_some_and(|resume| Instant::now() < resume) {
            return self.sync();
        }
        let written = match self.lost_to > self.seq {
            true => self.write_gap(self.lost_to),
            false => self.files.sync(),
        };
        match written {
            Ok(()) => {
                self.sync();
                if self.resume.is_none_or(|resume| resume < Instant::now()) {
                    self.record_success();
                }
            }
            Err(error) => self.record_failure(&error),
        }
    }

    /// Writes a gap for all records up to this number that are missing in the file.
    fn write_gap(&mut self, last: u64) -> io::Result<()> {
        let Some(missing) = last.checked_sub(self.seq).filter(|missing| *missing > 0) else { return Ok(()) };
        let gap = Gap { records: Some(missing), ..Gap::new(GapCause::NotWritten) };
        let record = gap_record(last, holdfast_host::clock::now(), 0, &self.boot_id, gap);
        let line = Line::new(&record);
        self.files.append(last, line.iter().map(|it| &*it.json))?;
        self.seq = last;
        Ok(())
    }

    fn highest_number(&self) -> u64 {
        self.history.status().seq.max(self.seq)
    }

    /// Reserves more numbers before the others are used up.
    fn reserve_numbers(&mut self) {
        let given = self.highest_number();
        if !self.reserve.is_short(given) || self.retry.is_some_and(|retry| Instant::now() < retry) {
            return;
        }
        let reserved = self.numbers.reserve(given);
        match &reserved {
            Ok(below) => {
                self.retry = None;
                self.history.update_status(|recorded| recorded.below = *below);
            }
            Err(error) => {
                if self.retry.is_none() {
                    tracing::warn!(%error, "cannot write the file of used record numbers");
                }
                self.retry = Some(Instant::now() + PAUSE_FAILED);
            }
        }
        self.reserve.set(reserved.ok());
    }

    /// Writes a gap for the missing records, because this is the last chance, and marks all numbers so far as used.
    fn finish(mut self) {
        let last = self.highest_number();
        if let Err(error) = self.write_gap(last) {
            self.record_failure(&error);
        }
        self.sync();
        let below = last.saturating_add(1);
        if let Err(error) = self.numbers.write_mark(NumberMark { below, is_exact: true }) {
            tracing::warn!(%error, "cannot write the file of used record numbers");
        }
        self.publish_health();
    }

    fn write_batch(&mut self, batch: &[QueuedRecord]) {
        let written = match self.resume {
            Some(resume) if Instant::now() < resume => Ok(false),
            Some(_) | None => self.append(batch).map(|()| true),
        };
        match written {
            Ok(true) => {
                self.unsynced.get_or_insert_with(Instant::now);
                if batch.iter().any(|it| it.urgent) || self.wait_time().is_zero() {
                    self.sync();
                }
                if self.resume.is_none_or(|resume| resume < Instant::now()) {
                    self.record_success();
                }
            }
            Ok(false) => self.record_losses(batch),
            Err(error) => {
                self.record_losses(batch);
                self.record_failure(&error);
            }
        }
    }

    fn append(&mut self, batch: &[QueuedRecord]) -> io::Result<()> {
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return Ok(()) };
        let gap = self.missing_gap(&first.line);
        let instead: Vec<Option<Line>> = batch.iter().map(|it| self.replacement_gap(&it.line)).collect();
        let lines = batch.iter().zip(&instead).map(|(it, instead)| instead.as_ref().unwrap_or(&it.line));
        let records = gap.iter().chain(lines).map(|it| &*it.json);
        let begin = gap.as_ref().unwrap_or(&*first.line);
        self.files.append(begin.seq.unwrap_or_default(), records)?;
        self.seq = last.line.seq.unwrap_or(self.seq);
        Ok(())
    }

    /// A record too long for the file becomes a gap there, so that it takes no other with it.
    fn replacement_gap(&self, line: &Line) -> Option<Line> {
        let seq = line.seq.filter(|_| !frames::fits(&line.json))?;
        self.record_loss(1);
        tracing::warn!(
            seq,
            bytes = line.json.len(),
            "a record is too long for the history's file and becomes a gap there"
        );
        let gap = Gap { records: Some(1), ..Gap::new(GapCause::NotWritten) };
        Line::new(&gap_record(seq, line.time, 0, &self.boot_id, gap)).ok()
    }

    /// A gap for the records missing before this one. It takes the last of the missing numbers.
    fn missing_gap(&self, next: &Line) -> Option<Line> {
        let seq = next.seq?.checked_sub(1)?;
        let records = seq.checked_sub(self.seq).filter(|missing| *missing > 0)?;
        let gap = Gap { records: Some(records), ..Gap::new(GapCause::NotWritten) };
        Line::new(&gap_record(seq, next.time, 0, &self.boot_id, gap)).ok()
    }

    fn sync(&mut self) {
        self.unsynced = None;
        if let Err(error) = self.files.sync() {
            self.record_failure(&error);
        }
    }

    fn record_losses(&mut self, batch: &[QueuedRecord]) {
        self.record_loss(batch.len());
        let last = batch.iter().rev().find_map(|it| it.line.seq);
        self.lost_to = self.lost_to.max(last.unwrap_or_default());
    }

    fn record_loss(&self, records: usize) {
        self.history.update_status(|recorded| recorded.file.lost += records as u64);
    }

    fn record_failure(&mut self, error: &io::Error) {
        self.file_health.failures += 1;
        self.resume = Some(Instant::now() + PAUSE_FAILED);
        if self.file_health.error.is_none() {
            say!(warn, messages::HISTORY_NOT_WRITTEN, %error);
            self.file_health.failing_since = Some(holdfast_host::clock::now().seconds());
        }
        self.file_health.error = Some(error.to_string().into());
    }

    fn record_success(&mut self) {
        if self.file_health.error.take().is_some() {
            self.resume = None;
            self.file_health.failing_since = None;
            let lost = self.history.status().file.lost;
            say!(notice, messages::HISTORY_WRITTEN_AGAIN, lost);
        }
    }

    fn publish_health(&mut self) {
        self.file_health.bytes = self.files.bytes();
        let kept = self.file_health.clone();
        self.history
            .update_status(|recorded| recorded.file = FileHealth { lost: recorded.file.lost, ..kept });
    }
}
