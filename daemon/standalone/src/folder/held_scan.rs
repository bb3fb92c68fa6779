//! What was read and is not delivered yet, because an object in it may be on its way from one file to another.
//!
//! Invariant: pure. A reading that only adds or changes objects is not held, and none is held for longer than
//! [`HOLD_MAX`].

use tokio::time::Instant;

use super::{FileFormat, HOLD_MAX, MOVE_WINDOW};
use holdfast_objects::manifests::FolderScan;

/// Readings that wait, taken together.
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
    /// Takes a reading in, and gives all that may be delivered of the folder now.
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

    /// When the folder should be looked at again although nothing is noticed.
    pub(crate) fn next_scan(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|waiting| waiting.until)
    }
}

impl<C> WaitingScan<C> {
    /// Adds a later reading. A look that finds nothing more does not make the wait longer.
    fn merge_later(self, later: Self) -> Self {
        let until = if later.reading.files.is_empty() { self.until } else { later.until.min(self.end) };
        Self { until, end: self.end, reading: self.reading.merge_later(later.reading) }
    }
}
