//! The results of look-ups, for readers.
//!
//! Invariant: only the resolver writes. A reader locks the table for one row at a time. Each resolved service has one
//! row.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_core::keys::ObjectName;
use holdfast_status::views::names::{NameState, NameStatus, QueryResult};

/// The rows of all services, and counts of query results since the start.
#[derive(Debug, Default)]
pub struct NameTable {
    results: [AtomicU64; QueryResult::ALL.len()],
    rows: Mutex<BTreeMap<ObjectName, Arc<NameStatus>>>,
}

impl NameTable {
    /// The row of a configured service; `None`: it does not use DNS.
    pub fn service_row(&self, service: &ObjectName) -> Option<NameStatus> {
        self.lock().get(service).map(|row| NameStatus::clone(row))
    }

    /// Each result and its count.
    pub fn totals(&self) -> impl Iterator<Item = (QueryResult, u64)> {
        QueryResult::ALL.into_iter().zip(self.results.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Each state and its count of names; a name of two services counts twice.
    pub fn states(&self) -> impl Iterator<Item = (NameState, usize)> {
        let rows: Vec<NameState> = self.lock().values().map(|row| row.state.0).collect();
        let count = move |state| rows.iter().filter(|it| **it == state).count();
        NameState::ALL.into_iter().map(move |state| (state, count(state)))
    }

    pub(super) fn count_result(&self, result: QueryResult) {
        let found = QueryResult::ALL.into_iter().zip(&self.results).find(|(it, _)| *it == result);
        found.into_iter().for_each(|(_, count)| _ = count.fetch_add(1, Ordering::Relaxed));
    }

    /// Sets a row; `None` removes it.
    pub(super) fn set_row(&self, service: &ObjectName, row: Option<NameStatus>) {
        match row {
            Some(row) => drop(self.lock().insert(service.clone(), Arc::new(row))),
            None => drop(self.lock().remove(service)),
        }
    }

    /// A table with one row.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_row(service: &ObjectName, row: NameStatus) -> Self {
        let names = Self::default();
        names.set_row(service, Some(row));
        names
    }

    /// Locks the rows. Every statement leaves them consistent.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Arc<NameStatus>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
