//! How the checks of backends went, as numbers.
//!
//! Invariant: the source alone writes them; a reader never waits for it.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_core::words;

words! {
    /// What came of one check.
    pub enum CheckResult {
        Good = "good",
        Bad = "bad",
        /// It said nothing of the backend, because a file that TLS needs could not be read.
        Unasked = "unasked",
    }
}

words! {
    /// What checks made of a backend.
    pub enum CheckedState {
        Usable = "usable",
        Unusable = "unusable",
    }
}

/// How many checks came to what since the start, and what the backends are now.
#[derive(Debug, Default)]
pub struct Checks {
    results: [AtomicU64; CheckResult::ALL.len()],
    states: [AtomicU64; CheckedState::ALL.len()],
}

impl Checks {
    /// Each result with its count.
    pub fn totals(&self) -> impl Iterator<Item = (CheckResult, u64)> {
        CheckResult::ALL.into_iter().zip(self.results.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Each state with the number of backends in it; one that two services have counts twice.
    pub fn backends(&self) -> impl Iterator<Item = (CheckedState, u64)> {
        CheckedState::ALL.into_iter().zip(self.states.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(crate) fn count(&self, result: CheckResult) {
        let found = CheckResult::ALL.into_iter().zip(&self.results).find(|(it, _)| *it == result);
        found.into_iter().for_each(|(_, count)| _ = count.fetch_add(1, Ordering::Relaxed));
    }

    pub(crate) fn set_backends(&self, usable: usize, unusable: usize) {
        for (state, number) in self.states.iter().zip([usable, unusable]) {
            state.store(number as u64, Ordering::Relaxed);
        }
    }
}
