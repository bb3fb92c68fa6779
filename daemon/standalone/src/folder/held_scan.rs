//! Holds a scan while one of its objects may be moving between files.
//!
//! Invariant: pure. A scan that only adds or changes objects is not held, and none is held longer than [`HOLD_MAX`].

use tokio::time::Instant;

use super::{FileFormat, HOLD_MAX, MOVE_WINDOW};
use holdfast_objects::manifests::FolderScan;

/// Held scans, merged.
#[derive(Debug)]
pub(crate) struct HeldScan<F: FileFormat> {
    waiting: Option<WaitingScan<F::Contents>>,
}

#[derive(Debug)]
struct WaitingScan<C> {
    reading: FolderScan<C>,
    until: Instant,
    end: Instant,
}

impl<F: FileFormat> Default for HeldScan<F> {
    fn default() -> Self {
        Self { waiting: None }
    }
}

impl<F: FileFormat> HeldScan<F> {
    /// Merges a scan, and returns what may be delivered now.
    pub(crate) fn release_scan(
        &mut self,
        reading: FolderScan<F::Contents>,
        folder: &F,
        now: Instant,
    ) -> Option<FolderScan<F::Contents>> {
        let fresh = WaitingScan { until: now + MOVE_WINDOW, end: now + HOLD_MAX, reading };
        let waiting = match self.waiting.take() {
            Some(waiting) => waiting.merge_later(fresh),
            None => fresh,
        };
        if waiting.until <= now || !folder.is_object_moving(&waiting.reading) {
            return Some(waiting.reading);
        }
        self.waiting = Some(waiting);
        None
    }

    /// When to scan again even without an event.
    pub(crate) fn next_scan(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|waiting| waiting.until)
    }
}

impl<C> WaitingScan<C> {
    /// Merges a later scan. An empty one does not extend the wait.
    fn merge_later(self, later: Self) -> Self {
        let until = if later.reading.files.is_empty() { self.until } else { later.until.min(self.end) };
        Self { until, end: self.end, reading: self.reading.merge_later(later.reading) }
    }
}
