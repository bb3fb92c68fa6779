//! How the checks of backends went, as numbers, and what each backend's last one came to.
//!
//! Invariant: the source alone writes; a reader waits for it, or it for a reader, no longer than a row is copied.

#[cfg(any(test, feature = "testing"))]
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(any(test, feature = "testing"))]
use std::time::Duration;

use holdfast_core::keys::ObjectName;
use holdfast_core::words;
#[cfg(any(test, feature = "testing"))]
use holdfast_status::rfc3339::Millis;
use holdfast_status::views::checks::{CheckResult, CheckSeen, ChecksSeen};

#[cfg(any(test, feature = "testing"))]
use super::check::CheckFailed;
#[cfg(any(test, feature = "testing"))]
use super::seen::{Outcome, Row};
use super::seen::{Seen, UnusableBackend};

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
    doubted: AtomicU64,
    pub(super) seen: Seen,
}

impl Checks {
    /// How each checked backend of a service of the configuration is, and what its last check came to.
    pub fn of(&self, service: &ObjectName) -> ChecksSeen {
        self.seen.of(service)
    }

    /// Each result with its count.
    pub fn totals(&self) -> impl Iterator<Item = (CheckResult, u64)> {
        CheckResult::ALL.into_iter().zip(self.results.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Each state with the number of backends in it; one that two services have counts twice.
    pub fn backends(&self) -> impl Iterator<Item = (CheckedState, u64)> {
        CheckedState::ALL.into_iter().zip(self.states.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The first backends that their checks made unusable, and how many more there are.
    pub fn unusable(&self, most: usize) -> (Vec<UnusableBackend>, usize) {
        self.seen.unusable(most)
    }

    /// The same of one of its backends; none: it is not checked.
    pub fn of_backend(&self, service: &ObjectName, backend: SocketAddr) -> Option<CheckSeen> {
        self.seen.of_backend(service, backend)
    }

    pub fn count(&self, result: CheckResult) {
        let found = CheckResult::ALL.into_iter().zip(&self.results).find(|(it, _)| *it == result);
        found.into_iter().for_each(|(_, count)| _ = count.fetch_add(1, Ordering::Relaxed));
    }

    /// How often a backend was checked out of turn because it had refused clients.
    pub fn doubted(&self) -> u64 {
        self.doubted.load(Ordering::Relaxed)
    }

    pub fn add_doubted(&self, backends: u64) {
        self.doubted.fetch_add(backends, Ordering::Relaxed);
    }

    pub fn set_backends(&self, usable: usize, unusable: usize) {
        for (state, number) in self.states.iter().zip([usable, unusable]) {
            state.store(number as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Checks {
    /// Those of one backend, which answered its last check with something else than HTTP.
    pub fn of_one_that_is_not_http(
        service: &ObjectName,
        backend: SocketAddr,
        said: &str,
        at: Millis,
    ) -> Self {
        let (checks, row) = (Self::default(), Row::new("http"));
        let failed = Err(CheckFailed::NotHttp(said.to_owned()));
        row.note(Outcome::new(&failed, at, Duration::from_micros(12_345)), false);
        checks.seen.put(service, BTreeMap::from([(backend, row)]));
        checks
    }
}
