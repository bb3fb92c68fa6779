//! The last results of health checks of configured backends.
//!
//! Invariant: plain data. It has an excerpt of a backend's reply at most, and no character of that ends a line.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use holdfast_core::words;
use schemars::JsonSchema;
use serde::Serialize;

use crate::rfc3339::Millis;
use crate::schema_types::Code;

words! {
    /// The result of one check.
    pub enum CheckResult {
        Good = "good",
        Bad = "bad",
        /// It proves nothing about the backend, because this node could not run it: a file for TLS was unreadable, or
        /// this node lacked a file descriptor, a port, memory or, for a short time, a route.
        NotRun = "unasked",
    }
}

/// The checked backends of one service.
pub type CheckStatuses = BTreeMap<SocketAddr, CheckStatus>;

/// How one backend is checked, and the last result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Check")]
pub struct CheckStatus {
    /// The kind of check: tcp, http, https, grpc, grpcs, send-expect.
    pub kind: &'static str,
    /// Whether checks allow it new clients.
    pub usable: bool,
    /// The last finished check; null: none has finished yet.
    pub last: Option<LastCheck>,
}

/// One finished check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LastCheck {
    pub result: Code<CheckResult>,
    /// The error; null if there was none.
    pub error: Option<String>,
    /// When it ended.
    pub at: Millis,
    pub took_microseconds: u64,
    /// How many checks in a row had this result, including this one.
    pub in_a_row: u32,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usable = if self.usable { "usable" } else { "unusable" };
        write!(f, "{usable} by {} checks", self.kind)?;
        match &self.last {
            Some(last) => write!(f, ": {last}"),
            None => f.write_str(": none has ended yet"),
        }
    }
}

impl fmt::Display for LastCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { result, error, at, took_microseconds, in_a_row } = self;
        let (whole, tenth) = (took_microseconds / 1_000, took_microseconds % 1_000 / 100);
        write!(f, "{in_a_row} {result} in a row, the last at {at} after {whole}.{tenth} ms")?;
        error.iter().try_for_each(|error| write!(f, ": {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(usable: bool, last: Option<LastCheck>, expected: &str) {
        assert_eq!(CheckStatus { kind: "http", usable, last }.to_string(), expected);
    }

    #[test]
    fn a_check_fits_one_line() {
        let last = |result, error: Option<&str>, took_microseconds, in_a_row| {
            let error = error.map(str::to_owned);
            Some(LastCheck { result: Code(result), error, at: Millis(1_500), took_microseconds, in_a_row })
        };
        check(true, None, "usable by http checks: none has ended yet");
        check(
            true,
            last(CheckResult::Good, None, 349, 12),
            "usable by http checks: 12 good in a row, the last at 1970-01-01T00:00:01.500Z after 0.3 ms",
        );
        check(
            false,
            last(CheckResult::Bad, Some("status 503, healthy are 200"), 2_000_999, 3),
            "unusable by http checks: 3 bad in a row, the last at 1970-01-01T00:00:01.500Z after 2000.9 ms: \
             status 503, healthy are 200",
        );
    }
}
