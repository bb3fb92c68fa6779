//! The records in memory for readers, and the new ones as they come.
//!
//! Invariant: the recorder waits for a reader at most as long as copying a bounded list of pointers takes. Readers
//! never read the file; only the next start does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_status::record::Record;
use holdfast_status::rfc3339::Millis;

use super::ring::{self, Fill, Line, Rings};
use super::watchers::{Watch, Watchers};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingStatus {
    /// The number of the latest record; 0 if there was none.
    pub seq: u64,
    /// The lowest number that is certainly unused, by the disk's file of numbers; 0 if unknown.
    pub below: u64,
    /// Records made since the start, without gaps.
    pub records: u64,
    /// Gaps since the start, including those found in the file.
    pub gaps: u64,
    /// Changes without a record, because too many came at once or one could not be serialized.
    pub lost: u64,
    pub file: FileHealth,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileHealth {
    /// The bytes of all segments together.
    pub bytes: u64,
    /// Records that the file lacks, because a write failed.
    pub lost: u64,
    /// Writes that failed since the start.
    pub failures: u64,
    /// Why the last write failed; `None` once a write succeeds again.
    pub error: Option<Arc<str>>,
    /// Since when writes fail.
    pub failing_since: Option<Timestamp>,
}

/// Selects records. `None` restricts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordQuery {
    /// Records of this service, and all gaps, because a gap may stand for records of it.
    pub service: Option<ObjectName>,
    /// Records from this time on.
    pub since: Option<Millis>,
    /// Records up to this time.
    pub until: Option<Millis>,
    /// Records in which this reason decided or reached clients; a gap has only the reason `gap`.
    pub reason: Option<String>,
    /// Records with a higher number.
    pub after: Option<u64>,
    /// The most records: the latest ones; with `after`, the first ones.
    pub limit: Option<usize>,
}

impl RecordQuery {
    fn matches(&self, line: &Line) -> bool {
        self.since.is_none_or(|since| line.time >= since)
            && self.until.is_none_or(|until| line.time <= until)
            && self.after.is_none_or(|after| line.seq.is_some_and(|seq| seq > after))
            && self.reason.as_deref().is_none_or(|reason| line.reasons.iter().any(|it| it == reason))
    }
}

/// The records, for readers.
#[derive(Debug)]
pub struct History {
    rings: Mutex<Rings>,
    status: Mutex<RecordingStatus>,
    watchers: Watchers,
}

impl Default for History {
    fn default() -> Self {
        Self {
            rings: Mutex::new(Rings::new(ring::BYTES_MAX)),
            status: Mutex::default(),
            watchers: Watchers::default(),
        }
    }
}

/// The latest `most` of these records, oldest first.
pub fn latest_records(newest_first: impl Iterator<Item = Record>, most: usize) -> Vec<Record> {
    let mut records: Vec<Record> = newest_first.take(most).collect();
    records.reverse();
    records
}

impl History {
    pub fn select(&self, wanted: &RecordQuery) -> Vec<Arc<Line>> {
        let lines = self.rings().lines(wanted.service.as_ref());
        let mut lines: Vec<_> = lines.into_iter().filter(|line| wanted.matches(line)).collect();
        match (wanted.limit, wanted.after) {
            (Some(limit), Some(_)) => lines.truncate(limit),
            (Some(limit), None) => drop(lines.drain(..lines.len().saturating_sub(limit))),
            (None, _) => {}
        }
        lines
    }

    /// The latest `most` records of a service, oldest first.
    pub fn service_records(&self, name: &ObjectName, most: usize) -> Vec<Record> {
        let wanted = RecordQuery { service: Some(name.clone()), ..RecordQuery::default() };
        latest_records(self.select(&wanted).iter().rev().filter_map(|line| line.record()), most)
    }

    /// Whether the last record of a service has this reason.
    pub(super) fn ends_with(&self, name: &ObjectName, reason: &str) -> bool {
        let rings = self.rings();
        rings.last(name).is_some_and(|line| line.reasons.iter().any(|it| it == reason))
    }

    /// Watches new records: of one service with all gaps, or of all services. Events without a change for clients are
    /// included.
    pub fn watch(&self, service: Option<ObjectName>) -> Watch {
        self.watchers.add_watcher(service)
    }

    pub fn watchers(&self) -> usize {
        self.watchers.count()
    }

    pub fn status(&self) -> RecordingStatus {
        lock(&self.status).clone()
    }

    /// The memory in use.
    pub fn fill(&self) -> Fill {
        self.rings().fill()
    }

    /// Stores a line and notifies the watchers.
    pub(super) fn push(&self, line: &Arc<Line>) {
        self.restore_line(line);
        self.notify_watchers(line);
    }

    /// Stores a line of a former process.
    pub(super) fn restore_line(&self, line: &Arc<Line>) {
        self.rings().push(Arc::clone(line));
    }

    /// Notifies only the watchers.
    pub(super) fn notify_watchers(&self, line: &Arc<Line>) {
        self.watchers.notify(line);
    }

    pub(super) fn close(&self) {
        self.watchers.close();
    }

    pub fn update_status(&self, note: impl FnOnce(&mut RecordingStatus)) {
        note(&mut lock(&self.status));
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        lock(&self.rings)
    }
}

/// Locks, even after a panic elsewhere, which leaves whole lines behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
