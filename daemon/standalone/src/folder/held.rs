//! What was read and is not delivered yet, because an object in it may be on its way from one file to another.
//!
//! Invariant: pure. A reading that only adds or changes objects is not held, and none is held for longer than
//! [`HELD_MAX`].

use tokio::time::Instant;

use super::{Files, HELD_MAX, QUIET};
use holdfast_objects::manifests::FolderLook;

/// Readings that wait, taken together.
#[derive(Debug)]
pub(crate) struct Held<F: Files> {
    waiting: Option<Waiting<F::Contents>>,
}

#[derive(Debug)]
struct Waiting<C> {
    reading: FolderLook<C>,
    until: Instant,
    end: Instant,
}

impl<F: Files> Default for Held<F> {
    fn default() -> Self {
        Self { waiting: None }
    }
}

impl<F: Files> Held<F> {
    /// Takes a reading in, and gives all that may be delivered of the folder now.
    pub(crate) fn pass(
        &mut self,
        reading: FolderLook<F::Contents>,
        folder: &F,
        now: Instant,
    ) -> Option<FolderLook<F::Contents>> {
        let fresh = Waiting { until: now + QUIET, end: now + HELD_MAX, reading };
        let waiting = match self.waiting.take() {
            Some(waiting) => waiting.then(fresh),
            None => fresh,
        };
        if waiting.until <= now || !folder.is_between(&waiting.reading) {
            return Some(waiting.reading);
        }
        self.waiting = Some(waiting);
        None
    }

    /// When the folder should be looked at again although nothing is noticed.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|waiting| waiting.until)
    }
}

impl<C> Waiting<C> {
    /// Adds a later reading. A look that finds nothing more does not make the wait longer.
    fn then(self, later: Self) -> Self {
        let until = if later.reading.files.is_empty() { self.until } else { later.until.min(self.end) };
        Self { until, end: self.end, reading: self.reading.then(later.reading) }
    }
}
