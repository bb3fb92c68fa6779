//! What the last check of each backend came to, for readers.
//!
//! Invariant: the source alone writes. A reader holds it up for one look at one backend's row, or at one service's list
//! of rows, or while the list of services is copied, never for longer. There is one row for each backend that is
//! checked, and what a backend answered is in it as far as [`ERROR_CHARACTERS_MAX`] characters.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::keys::ObjectName;
use holdfast_status::printable::Printable;
use holdfast_status::rfc3339::Millis;
use holdfast_status::schema_types::Code;
use holdfast_status::views::checks::{CheckResult, CheckStatus, CheckStatuses, LastCheck};

use super::check::CheckError;

/// The most of an error that is kept. Errors of TLS may name whatever is in a backend's certificate.
const ERROR_CHARACTERS_MAX: usize = 200;

/// The row of one backend.
#[derive(Clone, Debug)]
pub(super) struct CheckRow(Arc<Mutex<CheckStatus>>);

/// The rows of one service.
pub(super) type CheckRows = Arc<BTreeMap<SocketAddr, CheckRow>>;

/// The rows of all services.
#[derive(Debug, Default)]
pub(super) struct CheckTable(Mutex<BTreeMap<ObjectName, CheckRows>>);

/// What keeps this node from asking a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It lacks a file, a port or memory, or forbids the connection.
    Node,
    /// It has no route to the backend.
    Route,
}

/// A backend that gets no new clients because its checks fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableBackend {
    pub service: ObjectName,
    pub backend: SocketAddr,
    pub check: CheckStatus,
}

/// What came of one check.
#[derive(Clone, Debug)]
pub(super) struct CheckOutcome {
    pub(super) result: CheckResult,
    /// What kept this node from asking, if anything did.
    pub(super) obstacle: Option<Obstacle>,
    error: Option<String>,
    at: Millis,
    took: Duration,
}

impl CheckOutcome {
    pub(super) fn new(outcome: &Result<(), CheckError>, at: Millis, took: Duration) -> Self {
        let (result, obstacle) = match outcome {
            Ok(()) => (CheckResult::Good, None),
            Err(CheckError::NotAsked) => (CheckResult::NotRun, None),
            Err(CheckError::Unable(_)) => (CheckResult::NotRun, Some(Obstacle::Node)),
            Err(CheckError::NoRoute(_)) => (CheckResult::NotRun, Some(Obstacle::Route)),
            Err(_) => (CheckResult::Bad, None),
        };
        Self { result, obstacle, error: outcome.as_ref().err().map(format_error), at, took }
    }

    /// The same with another result.
    pub(super) fn with_result(self, result: CheckResult) -> Self {
        Self { result, ..self }
    }

    /// Whether the backend is well; `None`: the check did not say.
    pub(super) const fn is_well(&self) -> Option<bool> {
        match self.result {
            CheckResult::Good => Some(true),
            CheckResult::Bad => Some(false),
            CheckResult::NotRun => None,
        }
    }

    /// Why it is not well.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

/// An error on one line of bounded length, whatever a backend put into it.
fn format_error(error: &CheckError) -> String {
    let mut line = String::new();
    // A string takes whatever is written to it.
    let _ = write!(line, "{}", Printable(error));
    match line.char_indices().nth(ERROR_CHARACTERS_MAX) {
        Some((end, _)) => line.get(..end).unwrap_or_default().to_owned() + " …",
        None => line,
    }
}

impl CheckRow {
    pub(super) fn new(kind: &'static str) -> Self {
        Self(Arc::new(Mutex::new(CheckStatus { kind, usable: true, last: None })))
    }

    /// Notes that another kind of check is made from now on.
    pub(super) fn set_kind(&self, kind: &'static str) {
        lock(&self.0).kind = kind;
    }

    /// Notes what came of a check, and what the backend is by it.
    pub(super) fn record_outcome(&self, outcome: CheckOutcome, usable: bool) {
        let CheckOutcome { result, error, at, took, .. } = outcome;
        let mut seen = lock(&self.0);
        let before = seen.last.as_ref().filter(|last| last.result.0 == result);
        let in_a_row = before.map_or(1, |last| last.in_a_row.saturating_add(1));
        let took_microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        seen.last = Some(LastCheck { result: Code(result), error, at, took_microseconds, in_a_row });
        seen.usable = usable;
    }

    fn current(&self) -> CheckStatus {
        lock(&self.0).clone()
    }
}

impl CheckTable {
    /// Shows these rows for a service from now on.
    pub(super) fn set_rows(&self, service: &ObjectName, rows: BTreeMap<SocketAddr, CheckRow>) {
        if rows.is_empty() {
            lock(&self.0).remove(service);
        } else {
            lock(&self.0).insert(service.clone(), Arc::new(rows));
        }
    }

    /// The first backends that their checks made unusable, in the order of their services, and how many more there are.
    pub(super) fn unusable(&self, most: usize) -> (Vec<UnusableBackend>, usize) {
        let services: Vec<(ObjectName, CheckRows)> =
            lock(&self.0).iter().map(|(name, rows)| (name.clone(), Arc::clone(rows))).collect();
        let (mut named, mut more) = (Vec::new(), 0);
        for (service, rows) in services {
            for (backend, row) in rows.iter() {
                let check = row.current();
                match (check.usable, named.len() < most) {
                    (true, _) => {}
                    (false, true) => {
                        named.push(UnusableBackend { service: service.clone(), backend: *backend, check });
                    }
                    (false, false) => more += 1,
                }
            }
        }
        (named, more)
    }

    /// What is known of each checked backend of a service.
    pub(super) fn service_checks(&self, service: &ObjectName) -> CheckStatuses {
        let rows = lock(&self.0).get(service).map(Arc::clone).unwrap_or_default();
        rows.iter().map(|(backend, row)| (*backend, row.current())).collect()
    }

    /// The same of one of its backends.
    pub(super) fn backend_check(&self, service: &ObjectName, backend: SocketAddr) -> Option<CheckStatus> {
        let rows = lock(&self.0).get(service).map(Arc::clone)?;
        rows.get(&backend).map(CheckRow::current)
    }
}

/// What is under a lock is whole between any two statements, so a panic of another holder has broken nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io;

    use holdfast_status::printable::is_unprintable;

    use super::*;

    fn name(text: &str) -> ObjectName {
        ObjectName::new("static", text).unwrap()
    }

    fn outcome(result: &Result<(), CheckError>) -> CheckOutcome {
        CheckOutcome::new(result, Millis(1_000), Duration::from_micros(250))
    }

    #[test]
    fn results_in_a_row_are_counted_from_the_last_other_one() {
        let row = CheckRow::new("tcp");
        let results = [true, true, false, false, false, true];
        let counted = results.map(|good| {
            let result = if good { Ok(()) } else { Err(CheckError::Closed) };
            row.record_outcome(outcome(&result), good);
            row.current().last.unwrap().in_a_row
        });
        assert_eq!(counted, [1, 2, 1, 2, 3, 1]);
    }

    #[test]
    fn what_a_backend_says_is_short_and_on_one_line() {
        let hostile = "\x1b[2J\u{202e}\n\0".repeat(10_000);
        for error in [
            CheckError::NotWhole(hostile.clone()),
            CheckError::NotHttp(hostile.clone()),
            CheckError::Tls(io::Error::other(hostile)),
        ] {
            let told = format_error(&error);
            assert!(told.chars().count() <= ERROR_CHARACTERS_MAX + 2, "{told}");
            assert!(!told.chars().any(is_unprintable), "{told}");
        }
        assert_eq!(format_error(&CheckError::Closed), CheckError::Closed.to_string());
    }

    #[test]
    fn rows_are_those_of_the_service_alone() {
        let seen = CheckTable::default();
        let backend = "192.0.2.1:80".parse().unwrap();
        let row = CheckRow::new("tcp");
        seen.set_rows(&name("web"), BTreeMap::from([(backend, row.clone())]));
        row.record_outcome(outcome(&Err(CheckError::OwnSocket)), false);
        assert!(
            !seen.service_checks(&name("web"))[&backend].usable,
            "a row is shown as it is, not as it was put in"
        );
        assert_eq!(seen.service_checks(&name("web-")), CheckStatuses::new());
        seen.set_rows(&name("web"), BTreeMap::new());
        assert_eq!(seen.service_checks(&name("web")), CheckStatuses::new());
    }
}
