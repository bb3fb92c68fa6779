//! The last check of each backend, for readers.
//!
//! Invariant: only the source writes. A reader locks one row, one service's rows, or the list of services while it
//! copies it. Each checked backend has one row, with at most [`ERROR_CHARACTERS_MAX`] characters of its error.

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

/// The most characters of an error. TLS errors may quote anything in a backend's certificate.
const ERROR_CHARACTERS_MAX: usize = 200;

/// One backend's row.
#[derive(Clone, Debug)]
pub(super) struct CheckRow(Arc<Mutex<CheckStatus>>);

/// One service's rows.
pub(super) type CheckRows = Arc<BTreeMap<SocketAddr, CheckRow>>;

#[derive(Debug, Default)]
pub(super) struct CheckTable(Mutex<BTreeMap<ObjectName, CheckRows>>);

/// Why this node cannot check a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// This node lacks a file, a port or memory, or forbids the connection.
    Node,
    /// This node has no route to the backend.
    Route,
}

/// A backend without new clients because its checks fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableBackend {
    pub service: ObjectName,
    pub backend: SocketAddr,
    pub check: CheckStatus,
}

/// The outcome of one check.
#[derive(Clone, Debug)]
pub(super) struct CheckOutcome {
    pub(super) result: CheckResult,
    /// Why this node could not check, if it could not.
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

    /// Replaces the result.
    pub(super) fn with_result(self, result: CheckResult) -> Self {
        Self { result, ..self }
    }

    /// Whether the backend is healthy; `None`: unknown.
    pub(super) const fn is_well(&self) -> Option<bool> {
        match self.result {
            CheckResult::Good => Some(true),
            CheckResult::Bad => Some(false),
            CheckResult::NotRun => None,
        }
    }

    /// Why it is unhealthy.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

/// Formats an error as one line of bounded length, whatever the backend sent.
fn format_error(error: &CheckError) -> String {
    let mut line = String::new();
    // Writing to a string cannot fail.
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

    /// Changes the kind of check.
    pub(super) fn set_kind(&self, kind: &'static str) {
        lock(&self.0).kind = kind;
    }

    /// Records a check's outcome, and the backend's usability.
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
    /// Replaces a service's rows.
    pub(super) fn set_rows(&self, service: &ObjectName, rows: BTreeMap<SocketAddr, CheckRow>) {
        if rows.is_empty() {
            lock(&self.0).remove(service);
        } else {
            lock(&self.0).insert(service.clone(), Arc::new(rows));
        }
    }

    /// The first `most` unusable backends in order of service, and the count of the others.
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

    /// The services with unusable backends.
    pub(super) fn list_failing_services(&self) -> Vec<ObjectName> {
        let services: Vec<(ObjectName, CheckRows)> =
            lock(&self.0).iter().map(|(name, rows)| (name.clone(), Arc::clone(rows))).collect();
        let fails = |rows: &CheckRows| rows.values().any(|row| !row.current().usable);
        services.into_iter().filter(|(_, rows)| fails(rows)).map(|(name, _)| name).collect()
    }

    /// The checks of a service's backends.
    pub(super) fn service_checks(&self, service: &ObjectName) -> CheckStatuses {
        let rows = lock(&self.0).get(service).map(Arc::clone).unwrap_or_default();
        rows.iter().map(|(backend, row)| (*backend, row.current())).collect()
    }

    /// The check of one backend.
    pub(super) fn backend_check(&self, service: &ObjectName, backend: SocketAddr) -> Option<CheckStatus> {
        let rows = lock(&self.0).get(service).map(Arc::clone)?;
        rows.get(&backend).map(CheckRow::current)
    }
}

/// Locks a mutex. Every statement leaves its value consistent, so a panic of another holder does no harm.
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
    fn a_backends_error_is_short_and_on_one_line() {
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
    fn rows_belong_to_one_service() {
        let seen = CheckTable::default();
        let backend = "192.0.2.1:80".parse().unwrap();
        let row = CheckRow::new("tcp");
        seen.set_rows(&name("web"), BTreeMap::from([(backend, row.clone())]));
        row.record_outcome(outcome(&Err(CheckError::OwnSocket)), false);
        assert!(!seen.service_checks(&name("web"))[&backend].usable, "a shared row shows later outcomes");
        assert_eq!(seen.service_checks(&name("web-")), CheckStatuses::new());
        seen.set_rows(&name("web"), BTreeMap::new());
        assert_eq!(seen.service_checks(&name("web")), CheckStatuses::new());
    }
}
