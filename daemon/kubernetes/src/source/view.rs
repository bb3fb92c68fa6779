//! How each watch is doing, for pages and metrics.
//!
//! Invariant: reading never waits for a watch, and a watch never waits for readers. Old data is shown with its age; it
//! is served all the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::words;
use tokio::sync::watch;

use super::audit_request::{AuditClient, AuditMode, AuditReport};
use super::resource::Resource;
use crate::apiserver::Encoding;

words! {
    /// What a watch is doing.
    pub enum State {
        /// It waits before its next request: the last one went badly, or there was none.
        Waiting = "waiting",
        /// It asks for the whole list.
        Listing = "listing",
        /// It gets each change.
        Watching = "watching",
        /// Nothing of the kind is known, and the cluster does not have it, or does not let it be read.
        Absent = "absent",
    }
}

/// What went wrong last, and when.
#[derive(Clone, Debug)]
pub struct LastError {
    pub text: Arc<str>,
    pub at: Instant,
}

#[derive(Clone, Debug)]
pub struct Watch {
    /// Which objects it watches.
    pub what: Resource,
    /// What it is doing.
    pub state: State,
    pub since: Instant,
    /// Which apiserver answered last.
    pub endpoint: Option<Arc<str>>,
    /// How its answer was encoded.
    pub encoding: Option<Encoding>,
    /// The version up to which everything is known.
    pub resource_version: Option<Arc<str>>,
    /// When the last byte of a list or a watch came.
    pub last_received: Option<Instant>,
    /// Objects that are known.
    pub objects: usize,
    /// Objects with a last version that could not be understood.
    pub bad: usize,
    /// Objects that could not be read as they were encoded, and were asked for alone as JSON.
    pub refetched: u64,
    /// Lists that were completed.
    pub lists: u64,
    /// Lists and watches that went badly.
    pub restarts: u64,
    /// Pages of lists that had to be asked for again.
    pub page_retries: u64,
    /// Events that changed something.
    pub events: u64,
    /// Lists that removed so much at once, all or more than half of what was known, that the log says so.
    pub losses: u64,
    /// Comparisons with what the server has.
    pub audits: u64,
    /// Comparisons that found something which the watch had missed.
    pub differences: u64,
    /// What went wrong last.
    pub last_error: Option<LastError>,
}

/// What it means that the cluster does not know the node.
const NO_NODE: &str = "there is no Node of this name, so no endpoint counts as this node's: a Local policy finds \
                       none, and hints for zones have no effect";

impl Watch {
    pub fn new(what: Resource) -> Self {
        Self {
            what,
            // Whether the cluster has such a kind at all is yet to be seen.
            state: if what.is_optional() { State::Absent } else { State::Waiting },
            since: Instant::now(),
            endpoint: None,
            encoding: None,
            resource_version: None,
            last_received: None,
            objects: 0,
            bad: 0,
            refetched: 0,
            lists: 0,
            restarts: 0,
            page_retries: 0,
            events: 0,
            losses: 0,
            audits: 0,
            differences: 0,
            last_error: None,
        }
    }

    /// How long nothing has come; none if nothing ever did.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        self.last_received.map(|heard| now.saturating_duration_since(heard))
    }

    /// Why the zone of this node is not known, or may have changed unnoticed.
    pub fn zone_problem(&self) -> Option<String> {
        let is_watched = self.state == State::Watching;
        let error = self.last_error.as_ref().filter(|_| !is_watched).map(|error| &*error.text);
        match (self.what, self.objects, error) {
            (Resource::Node, 0, Some(error)) => Some(format!(
                "this node's Node object cannot be read, so hints for zones have no effect ({error})"
            )),
            (Resource::Node, 0, None) if is_watched => Some(NO_NODE.to_owned()),
            (Resource::Node, _, Some(error)) => {
                Some(format!("this node's Node object is not watched; its last known zone counts ({error})"))
            }
            _ => None,
        }
    }

    /// Shows that a list is asked for. A kind that the apiserver has said to be absent stays absent until a list of it
    /// comes: each of the questions from time to time would look like news, and have it compared for a moment.
    pub(super) fn begin_list(&mut self) {
        let is_said = self.state == State::Absent && self.last_error.is_some();
        self.set_state(if is_said { State::Absent } else { State::Listing });
    }

    pub(super) fn set_state(&mut self, state: State) {
        if self.state != state {
            self.state = state;
            self.since = Instant::now();
        }
    }

    pub(super) fn record_error(&mut self, error: &dyn std::fmt::Display) {
        self.last_error = Some(LastError { text: error.to_string().into(), at: Instant::now() });
    }
}

/// All watches. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(super) audits: Vec<(Resource, AuditClient)>,
    pub(super) watches: Vec<watch::Receiver<Watch>>,
}

impl View {
    /// Watches that stay as they are.
    #[cfg(any(test, feature = "testing"))]
    pub fn from_watches(watches: Vec<Watch>) -> Self {
        Self {
            audits: Vec::new(),
            watches: watches.into_iter().map(|watch| watch::channel(watch).1).collect(),
        }
    }

    /// Compares every kind that is not absent with what the apiserver has now, or had within the last seconds.
    pub async fn audit(&self, asker: AuditMode) -> Vec<(Resource, AuditReport)> {
        let is_absent = |of: Resource| {
            self.watches.iter().map(|it| it.borrow()).any(|it| it.what == of && it.state == State::Absent)
        };
        let here = self.audits.iter().filter(|(what, _)| !is_absent(*what));
        let audits = here.map(|(what, askers)| async { (*what, askers.request_audit(asker).await) });
        futures_util::future::join_all(audits).await
    }

    /// How the watches are doing now; there is none if no apiserver is watched.
    pub fn current(&self) -> Vec<Watch> {
        self.watches.iter().map(|watch| watch.borrow().clone()).collect()
    }
}
