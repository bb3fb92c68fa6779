//! The lines about backends that fail: holdfast's own health checks of them, or the connections of clients.
//!
//! Invariant: a failed check is reported, and is no fault of the daemon.

use holdfast_status::datapath::BackendFailure;
use serde::{Deserialize, Serialize};

/// A backend that gets no new clients because its health checks fail.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct FailingCheck {
    service: String,
    backend: String,
    check: Check,
}

#[derive(Debug, Deserialize, Serialize)]
struct Check {
    kind: String,
    last: Option<LastCheck>,
}

#[derive(Debug, Deserialize, Serialize)]
struct LastCheck {
    result: String,
    error: Option<String>,
    at: String,
    in_a_row: u32,
}

/// A backend that failed clients lately, although new ones get it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct FailingBackend {
    service: String,
    backend: String,
    frontend: String,
    protocol: String,
    how: String,
    at: Option<String>,
}

impl FailingBackend {
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    pub(super) fn describe_state(&self) -> String {
        let Self { service, backend, frontend, protocol, how, at } = self;
        let known = BackendFailure::ALL.into_iter().find(|it| it.as_str() == how);
        let what = match (known, backend.parse()) {
            (Some(failure), Ok(backend)) => failure.describe_backend(backend),
            _ => format!("{backend} {how} clients"),
        };
        let last =
            at.as_ref().map(|at| format!(", the last one at {}", whole_seconds(at))).unwrap_or_default();
        format!("{service}: {what} of {frontend}/{protocol}{last}")
    }
}

/// A time without its fraction: the programs' clock has none.
fn whole_seconds(at: &str) -> String {
    at.split_once('.').map_or_else(|| at.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}

impl FailingCheck {
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    pub(super) fn describe_state(&self) -> String {
        let Self { service, backend, check: Check { kind, last } } = self;
        let last = last.as_ref().map_or_else(String::new, |LastCheck { error, at, in_a_row, .. }| {
            let why = error.as_deref().unwrap_or("the reason is unknown");
            let row = if *in_a_row > 1 { format!("{in_a_row} in a row, ") } else { String::new() };
            format!(", {row}the last at {at}: {why}")
        });
        format!("{service}: {backend} fails {kind} checks{last}")
    }
}
