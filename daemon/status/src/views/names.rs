//! What name servers say of the backends of the configuration's services.
//!
//! Invariant: plain data. Names are of letters that can be shown, and a server's words are not repeated.

use std::fmt;
use std::net::SocketAddr;

use holdfast_core::words;
use schemars::JsonSchema;
use serde::Serialize;

use crate::rfc3339::Millis;
use crate::schema_types::Code;

words! {
    /// What came of one question to one server.
    pub enum QueryResult {
        /// With records.
        Answered = "answered",
        /// There is no such name, or it has no such record.
        Empty = "empty",
        /// The server could not or would not say.
        Failed = "failed",
        /// Nothing came in time.
        Silent = "silent",
        /// What came cannot be read.
        Unreadable = "unreadable",
        /// The server could not be reached.
        Unreachable = "unreachable",
        /// This node could not ask, for want of a file, a port or memory.
        NotSent = "unasked",
    }
}

words! {
    /// How a name is.
    pub enum NameState {
        /// It was not answered yet; what was known before counts.
        Pending = "unasked",
        /// It was answered last with backends.
        Resolved = "resolved",
        /// It was answered last without any.
        Empty = "empty",
        /// Its zone says that the service is not available.
        Withdrawn = "withdrawn",
        /// It could not be resolved last; what was known before counts.
        Failing = "trouble",
    }
}

/// What is known of the name that a service's backends are asked by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResolvedName")]
pub struct NameStatus {
    /// The name, and what is asked of it.
    pub name: String,
    pub state: Code<NameState>,
    /// The last answer; null: there was none since the start.
    pub answer: Option<LastNameAnswer>,
    /// Why it cannot be resolved; null if it can.
    pub trouble: Option<NameTrouble>,
}

/// The last answer about a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "NameAnswer")]
pub struct LastNameAnswer {
    pub server: SocketAddr,
    pub at: Millis,
    /// For how many seconds it counts; then the name is asked for again.
    pub ttl_seconds: u64,
    pub backends: usize,
    /// What of it does not count, and why; null: all of it does.
    pub left_out: Option<String>,
}

/// Why a name cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "NameTrouble")]
pub struct NameTrouble {
    pub since: Millis,
    /// The server that was asked last.
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
    fn a_name_is_told_in_one_line() {
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
