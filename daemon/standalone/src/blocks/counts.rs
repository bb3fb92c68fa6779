//! Counts of check results, and each backend's last check.
//!
//! Invariant: only the source writes; readers and the source wait for each other only while a row is copied.

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
use holdfast_status::views::checks::{CheckResult, CheckStatus, CheckStatuses};

#[cfg(any(test, feature = "testing"))]
use super::check::CheckError;
#[cfg(any(test, feature = "testing"))]
use super::check_table::{CheckOutcome, CheckRow};
use super::check_table::{CheckTable, UnusableBackend};

words! {
    /// A backend's usability by its checks.
    pub enum CheckedState {
        Usable = "usable",
        Unusable = "unusable",
    }
}

/// Counts of results since the start, and of usable and unusable backends.
#[derive(Debug, Default)]
pub struct CheckStats {
    results: [AtomicU64; CheckResult::ALL.len()],
    states: [AtomicU64; CheckedState::ALL.len()],
    refusal_rechecks: AtomicU64,
    pub(super) table: CheckTable,
}

impl CheckStats {
    /// The last checks of a configured service's backends.
    pub fn service_checks(&self, service: &ObjectName) -> CheckStatuses {
        self.table.service_checks(service)
    }

    /// Each result and its count.
    pub fn totals(&self) -> impl Iterator<Item = (CheckResult, u64)> {
        CheckResult::ALL.into_iter().zip(self.results.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Each state and its count of backends; a backend of two services counts twice.
    pub fn backends(&self) -> impl Iterator<Item = (CheckedState, u64)> {
        CheckedState::ALL.into_iter().zip(self.states.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The first `most` unusable backends, and the count of the others.
    pub fn unusable(&self, most: usize) -> (Vec<UnusableBackend>, usize) {
        self.table.unusable(most)
    }

    /// Whether the checks of any backend fail.
    pub fn has_unusable(&self) -> bool {
        !self.table.list_failing_services().is_empty()
    }

    /// The services with backends whose checks fail.
    pub fn failing_services(&self) -> Vec<ObjectName> {
        self.table.list_failing_services()
    }

    /// The last check of one backend; `None`: it is not checked.
    pub fn backend_check(&self, service: &ObjectName, backend: SocketAddr) -> Option<CheckStatus> {
        self.table.backend_check(service, backend)
    }

    pub fn count_result(&self, result: CheckResult) {
        let found = CheckResult::ALL.into_iter().zip(&self.results).find(|(it, _)| *it == result);
        found.into_iter().for_each(|(_, count)| _ = count.fetch_add(1, Ordering::Relaxed));
    }

    /// How many checks ran out of turn because a backend had refused clients.
    pub fn refusal_rechecks(&self) -> u64 {
        self.refusal_rechecks.load(Ordering::Relaxed)
    }

    pub fn add_refusal_rechecks(&self, backends: u64) {
        self.refusal_rechecks.fetch_add(backends, Ordering::Relaxed);
    }

    pub fn set_backends(&self, usable: usize, unusable: usize) {
        for (state, number) in self.states.iter().zip([usable, unusable]) {
            state.store(number as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl CheckStats {
    /// One backend that last sent a reply other than HTTP.
    pub fn with_non_http_backend(service: &ObjectName, backend: SocketAddr, said: &str, at: Millis) -> Self {
        let (checks, row) = (Self::default(), CheckRow::new("http"));
        let failed = Err(CheckError::NotHttp(said.to_owned()));
        row.record_outcome(CheckOutcome::new(&failed, at, Duration::from_micros(12_345)), false);
        checks.table.set_rows(service, BTreeMap::from([(backend, row)]));
        checks
    }
}
