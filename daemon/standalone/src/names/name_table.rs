//! What came of the questions, for readers.
//!
//! Invariant: the source alone writes. A reader holds it up for one look at one row, never for longer, and there is one
//! row for each service that is resolved.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_core::keys::ObjectName;
use holdfast_status::views::names::{NameState, NameStatus, QueryResult};

/// The rows of all services, and how many questions came to what since the start.
#[derive(Debug, Default)]
pub struct NameTable {
    results: [AtomicU64; QueryResult::ALL.len()],
    rows: Mutex<BTreeMap<ObjectName, Arc<NameStatus>>>,
}

impl NameTable {
    /// What is known of the name of a service of the configuration; none: it has backends of its own.
    pub fn service_row(&self, service: &ObjectName) -> Option<NameStatus> {
        self.lock().get(service).map(|row| NameStatus::clone(row))
    }

    /// Each result with its count.
    pub fn totals(&self) -> impl Iterator<Item = (QueryResult, u64)> {
        QueryResult::ALL.into_iter().zip(self.results.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Each state with the number of names in it; a name that two services have counts twice.
    pub fn states(&self) -> impl Iterator<Item = (NameState, usize)> {
        let rows: Vec<NameState> = self.lock().values().map(|row| row.state.0).collect();
        let count = move |state| rows.iter().filter(|it| **it == state).count();
        NameState::ALL.into_iter().map(move |state| (state, count(state)))
    }

    pub(super) fn count_result(&self, result: QueryResult) {
        let found = QueryResult::ALL.into_iter().zip(&self.results).find(|(it, _)| *it == result);
        found.into_iter().for_each(|(_, count)| _ = count.fetch_add(1, Ordering::Relaxed));
    }

    /// Shows a row from now on; none: the service is resolved no more.
    pub(super) fn set_row(&self, service: &ObjectName, row: Option<NameStatus>) {
        match row {
            Some(row) => drop(self.lock().insert(service.clone(), Arc::new(row))),
            None => drop(self.lock().remove(service)),
        }
    }

    /// Those of one service.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_row(service: &ObjectName, row: NameStatus) -> Self {
        let names = Self::default();
        names.set_row(service, Some(row));
        names
    }

    /// What is under the lock is whole between any two statements.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Arc<NameStatus>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
