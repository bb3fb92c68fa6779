//! The requests that a server received: the first ones in order, and the count of each verb and kind.
//!
//! Invariant: counts are complete; only the first requests are stored, up to a bound.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use super::fault::{RequestFilter, Verb};
use super::{Kind, lock};

/// How many requests are stored; later ones are only counted, so that an endless client fills no memory.
const REQUESTS_KEPT_MAX: usize = 10_000;

/// One received request.
#[derive(Clone, Debug)]
pub struct Request {
    /// When its headers were read.
    pub at: Instant,
    /// The number of its connection, from 1.
    pub connection: u64,
    /// Its verb.
    pub verb: Verb,
    /// Its kind.
    pub kind: Kind,
    /// Path and query, as sent.
    pub target: String,
    /// All headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The client's certificate, if it presented one.
    pub certificate: Option<Vec<u8>>,
}

impl Request {
    /// A header's value; empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The requests that one server received.
#[derive(Debug, Default)]
pub(super) struct Journal {
    inner: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    requests: Vec<Request>,
    counts: BTreeMap<(Verb, Kind), u64>,
    connections: u64,
}

impl Journal {
    /// Counts an accepted connection and returns its number, from 1.
    pub(super) fn connection(&self) -> u64 {
        let mut inner = lock(&self.inner);
        inner.connections += 1;
        inner.connections
    }

    pub(super) fn note(&self, request: &Request) {
        let mut inner = lock(&self.inner);
        *inner.counts.entry((request.verb, request.kind)).or_default() += 1;
        if inner.requests.len() < REQUESTS_KEPT_MAX {
            inner.requests.push(request.clone());
        }
    }

    pub(super) fn connections(&self) -> u64 {
        lock(&self.inner).connections
    }

    pub(super) fn request_count(&self, filter: RequestFilter) -> u64 {
        let inner = lock(&self.inner);
        inner
            .counts
            .iter()
            .filter(|((verb, kind), _)| filter.fits(*verb, *kind))
            .map(|(_, count)| count)
            .sum()
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        lock(&self.inner).requests.clone()
    }

    pub(super) fn clear(&self) {
        *lock(&self.inner) = Entries::default();
    }
}
