//! A row of the table: a client, the address that it dials, and the expected result.
//!
//! Invariant: a row is judged only by what the client and the server report.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Proxy, address_of};
use crate::bed::ask::{Outcome, Question};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// The element for this family.
    pub fn of<T>(self, [v4, v6]: [T; 2]) -> T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }

    pub(super) fn is(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// The source address that a backend sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenSource {
    Client,
    /// Any address of the node.
    Node,
    /// Either of both.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One of these backends replies.
    Answered(BTreeSet<&'static str>, SeenSource),
    Refused,
    Silent,
    /// The packet follows the routes to no backend: silence, or an ICMP error.
    Lost,
}

/// Addresses of the node under test.
const NODE: [&str; 11] = [
    // Addresses of a control plane, if there is one.
    "10.15.0.9",
    "10.0.0.5",
    "10.0.0.55",
    "10.244.1.1",
    "10.244.2.1",
    "fd00:a::5",
    "fd00:a::55",
    "fd00:244:1::1",
    "fd00:244:2::1",
    // Addresses of its tunnel device.
    "10.244.200.1",
    "fd00:244:200::1",
];

pub(super) fn is_node(ip: IpAddr) -> bool {
    NODE.iter().any(|own| own.parse() == Ok(ip))
}

impl Expected {
    /// Parses `a|c as node`, `refused`, `silent` or `lost`.
    fn parse(text: &'static str) -> Option<Self> {
        match text {
            "refused" => return Some(Self::Refused),
            "silent" => return Some(Self::Silent),
            "lost" => return Some(Self::Lost),
            _ => {}
        }
        let (by, seen) = text.split_once(" as ")?;
        let seen = match seen {
            "client" => SeenSource::Client,
            "node" => SeenSource::Node,
            "any" => SeenSource::Any,
            _ => return None,
        };
        Some(Self::Answered(by.split('|').collect(), seen))
    }

    fn agrees(&self, client: &str, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Self::Answered(names, whom), Outcome::Answered { by, seen }) => {
                names.contains(by.as_str()) && whom.is(client, seen.ip())
            }
            // A process of the node gets an error at once for a datagram that goes nowhere.
            (Self::Refused, Outcome::Refused | Outcome::Denied)
            | (Self::Silent, Outcome::Silent | Outcome::Denied)
            | (Self::Lost, Outcome::Silent | Outcome::Unreachable) => true,
            _ => false,
        }
    }
}

impl SeenSource {
    fn is(self, client: &str, seen: IpAddr) -> bool {
        // A process of the node has the node's addresses.
        let is_client = address_of(client, Family::is(seen)).map_or_else(|| is_node(seen), |own| own == seen);
        match self {
            Self::Client => is_client,
            Self::Node => is_node(seen),
            Self::Any => is_client || is_node(seen),
        }
    }
}

/// A client, the address that it dials, and the expected result.
#[derive(Clone, Debug)]
pub struct Row {
    pub client: &'static str,
    pub service: &'static str,
    pub address: &'static str,
    theirs: Expected,
    /// The result with holdfast if it differs, and the word for the reason.
    ours: Option<(Expected, &'static str)>,
}

impl Row {
    /// Columns are separated by two or more blanks: client, service, address, kube-proxy's result; then holdfast's
    /// result and the reason, if it differs.
    pub(super) fn parse(line: &'static str) -> Option<Self> {
        let words: Vec<&str> = line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        let [client, service, address, theirs, rest @ ..] = words.as_slice() else { return None };
        let ours = match rest {
            [] => None,
            [ours, why] => Some((Expected::parse(ours)?, *why)),
            _ => return None,
        };
        Some(Self { client, service, address, theirs: Expected::parse(theirs)?, ours })
    }

    pub fn expected(&self, proxy: Proxy) -> &Expected {
        match (&self.ours, proxy) {
            (Some((ours, _)), Proxy::Holdfast) => ours,
            _ => &self.theirs,
        }
    }

    /// The reason why holdfast differs.
    pub fn why(&self) -> Option<&'static str> {
        self.ours.as_ref().map(|(_, why)| *why)
    }

    /// A line for an unexpected outcome.
    pub(super) fn judge(&self, proxy: Proxy, question: &Question, outcome: &Outcome) -> Option<String> {
        let expected = self.expected(proxy);
        (!expected.agrees(self.client, outcome)).then(|| {
            let Self { client, service, address, .. } = self;
            let (transport, to) = (question.transport, question.to);
            format!("{client} {service} {address} ({transport:?} {to}): {outcome:?}, not {expected:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(by: &str, seen: &str) -> Outcome {
        Outcome::Answered { by: by.to_owned(), seen: seen.parse().unwrap() }
    }

    #[test]
    fn an_outcome_is_judged_by_server_and_seen_source() {
        let row = Row::parse("outside  here  node  a|c as node  a as client  kept").unwrap();
        let (theirs, ours) = (row.expected(Proxy::KubeProxy), row.expected(Proxy::Holdfast));
        assert!(theirs.agrees("outside", &answered("c", "10.244.1.1:5")));
        assert!(!theirs.agrees("outside", &answered("r", "10.244.1.1:5")), "another backend");
        assert!(!theirs.agrees("outside", &answered("a", "10.20.0.2:5")), "the client's own address");
        assert!(ours.agrees("outside", &answered("a", "[fd00:20::2]:5")));
        assert!(!ours.agrees("outside", &answered("a", "10.20.0.3:5")), "the address of another client");
        assert!(!ours.agrees("outside", &Outcome::Silent) && !theirs.agrees("outside", &Outcome::Refused));
        assert_eq!(row.why(), Some("kept"));
    }

    #[test]
    fn a_line_without_a_row_parses_to_none() {
        for line in
            ["", "outside  here  node", "outside  here  node  a as nobody", "a  b  c  refused  silent"]
        {
            assert!(Row::parse(line).is_none(), "{line:?}");
        }
    }
}
