//! The DNS results for backends of the configuration's services.
//!
//! Invariant: plain data. Names have printable letters only, and no text of a server is repeated.

use std::fmt;
use std::net::SocketAddr;

use holdfast_core::words;
use schemars::JsonSchema;
use serde::Serialize;

use crate::rfc3339::Millis;
use crate::schema_types::Code;

words! {
    /// The result of one query to one server.
    pub enum QueryResult {
        Answered = "answered",
        /// The name does not exist, or lacks such a record.
        Empty = "empty",
        /// The server could not or would not reply.
        Failed = "failed",
        /// No reply came in time.
        Silent = "silent",
        /// The reply is unreadable.
        Unreadable = "unreadable",
        Unreachable = "unreachable",
        /// This node could not send, for lack of a file descriptor, a port or memory.
        NotSent = "unasked",
    }
}

words! {
    pub enum NameState {
        /// It has no answer yet; the former backends stay.
        Pending = "unasked",
        /// The last answer has backends.
        Resolved = "resolved",
        /// The last answer has none.
        Empty = "empty",
        /// Its zone declares the service unavailable.
        Withdrawn = "withdrawn",
        /// The last lookup failed; the former backends stay.
        Failing = "trouble",
    }
}

/// The state of the name behind a service's backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResolvedName")]
pub struct NameStatus {
    /// The name, and the type of its records.
    pub name: String,
    pub state: Code<NameState>,
    /// The last answer; null: none since the start.
    pub answer: Option<LastNameAnswer>,
    /// Why the lookup fails; null if it succeeds.
    pub trouble: Option<NameTrouble>,
}

/// The last answer about a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "NameAnswer")]
pub struct LastNameAnswer {
    pub server: SocketAddr,
    pub at: Millis,
    /// For how many seconds it is valid; then the daemon asks again.
    pub ttl_seconds: u64,
    pub backends: usize,
    /// Which records of it are left out, and why; null: none.
    pub left_out: Option<String>,
}

/// Why a lookup fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "NameTrouble")]
pub struct NameTrouble {
    pub since: Millis,
    /// The server of the last query.
    pub server: SocketAddr,
    pub why: String,
}

impl fmt::Display for NameStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match &self.answer {
            Some(answer) => write!(f, "{answer}")?,
            None => f.write_str("not answered yet, so backends are those that were known before")?,
        }
        self.trouble.iter().try_for_each(|trouble| write!(f, "; {trouble}"))
    }
}

impl fmt::Display for LastNameAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, at, ttl_seconds, backends, left_out } = self;
        match backends {
            0 => f.write_str("no backend")?,
            1 => f.write_str("1 backend")?,
            more => write!(f, "{more} backends")?,
        }
        write!(f, " by {server} at {at}, TTL {ttl_seconds} s")?;
        left_out.iter().try_for_each(|left_out| write!(f, "; {left_out}"))
    }
}

impl fmt::Display for NameTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { since, server, why } = self;
        write!(f, "not resolved since {since}, and the backends known before stay: {server}: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 53)), 53);

    #[track_caller]
    fn check(answer: Option<(usize, Option<&str>)>, trouble: Option<&str>, expected: &str) {
        let answer = answer.map(|(backends, left_out)| {
            let left_out = left_out.map(str::to_owned);
            LastNameAnswer { server: SERVER, at: Millis(1_500), ttl_seconds: 30, backends, left_out }
        });
        let trouble =
            trouble.map(|why| NameTrouble { since: Millis(2_000), server: SERVER, why: why.to_owned() });
        let name = "_web._tcp.example.com (SRV)".to_owned();
        let seen = NameStatus { name, state: Code(NameState::Resolved), answer, trouble };
        assert_eq!(seen.to_string(), expected);
    }

    #[test]
    fn a_name_fits_one_line() {
        check(
            Some((2, None)),
            None,
            "_web._tcp.example.com (SRV): 2 backends by 192.0.2.53:53 at 1970-01-01T00:00:01.500Z, TTL 30 s",
        );
        check(
            Some((1, Some("127.0.0.1 is left out"))),
            Some("it is silent"),
            "_web._tcp.example.com (SRV): 1 backend by 192.0.2.53:53 at 1970-01-01T00:00:01.500Z, TTL 30 s; \
             127.0.0.1 is left out; not resolved since 1970-01-01T00:00:02.000Z, and the backends known before stay: \
             192.0.2.53:53: it is silent",
        );
        check(
            None,
            None,
            "_web._tcp.example.com (SRV): not answered yet, so backends are those that were known before",
        );
    }
}
