//! The state of each watch, for pages and metrics.
//!
//! Invariant: readers and watches never wait for each other. Old data is shown with its age, and is still served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::words;
use tokio::sync::watch;

use super::audit_request::{AuditClient, AuditMode, AuditReport};
use super::resource::Resource;
use crate::apiserver::Encoding;

words! {
    /// The state of a watch.
    pub enum State {
        /// Waits before its next request: the last one failed, or there was none.
        Waiting = "waiting",
        /// Requests the whole list.
        Listing = "listing",
        /// Receives each change.
        Watching = "watching",
        /// No object is known, and the cluster lacks the kind or denies access.
        Absent = "absent",
    }
}

/// The last error and its time.
#[derive(Clone, Debug)]
pub struct LastError {
    pub text: Arc<str>,
    pub at: Instant,
}

#[derive(Clone, Debug)]
pub struct Watch {
    pub what: Resource,
    pub state: State,
    pub since: Instant,
    /// The apiserver that replied last.
    pub endpoint: Option<Arc<str>>,
    /// The encoding of its reply.
    pub encoding: Option<Encoding>,
    /// The version up to which everything is known.
    pub resource_version: Option<Arc<str>>,
    /// When the last byte of a list or watch arrived.
    pub last_received: Option<Instant>,
    /// Known objects.
    pub objects: usize,
    /// Objects with an invalid last version.
    pub bad: usize,
    /// Objects that were unreadable in their encoding and were refetched as JSON.
    pub refetched: u64,
    /// Completed lists.
    pub lists: u64,
    /// Failed lists and watches.
    pub restarts: u64,
    /// Pages of lists that were requested again.
    pub page_retries: u64,
    /// Events that changed something.
    pub events: u64,
    /// Lists that removed everything or more than half, which the log reports.
    pub losses: u64,
    /// Audits against the server.
    pub audits: u64,
    /// Audits that found a change that the watch had missed.
    pub differences: u64,
    pub last_error: Option<LastError>,
}

/// The effect of a missing Node.
fn describe_missing_node(node: &str) -> String {
    format!(
        "the cluster has no Node {node:?} (`name` under [node]), so no endpoint counts as this node's: a Local policy \
         finds none, and hints for zones have no effect"
    )
}

impl Watch {
    pub fn new(what: Resource) -> Self {
        Self {
            what,
            // Whether the cluster has this kind is not known yet.
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

    /// Time since the last byte; `None` before the first.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        self.last_received.map(|received| now.saturating_duration_since(received))
    }

    /// Whether the last attempt failed, and nothing has come since. A new attempt changes nothing until it is answered.
    fn is_unanswered(&self) -> bool {
        let is_after_all = |error: &LastError| self.last_received.is_none_or(|received| received < error.at);
        self.state != State::Watching && self.last_error.as_ref().is_some_and(is_after_all)
    }

    /// Whether each rollout is heard by it.
    const fn is_vital(&self) -> bool {
        matches!(self.what, Resource::Services | Resource::Slices)
    }

    fn is_unanswered_for(&self, least: Duration, now: Instant) -> bool {
        self.is_unanswered() && self.silence(now).is_none_or(|silence| silence >= least)
    }

    /// Why the node's zone is unknown or may be stale.
    pub fn zone_problem(&self, node: &str) -> Option<String> {
        let is_watched = self.state == State::Watching;
        let error = self.last_error.as_ref().filter(|_| !is_watched).map(|error| &*error.text);
        match (self.what, self.objects, error) {
            // The last list had no such Node, which a later error must not hide.
            (Resource::Node, 0, Some(error)) if self.lists > 0 => {
                Some(format!("{}, as it was last heard ({error})", describe_missing_node(node)))
            }
            (Resource::Node, 0, Some(error)) => Some(format!(
                "this node's Node object cannot be read, so hints for zones have no effect ({error})"
            )),
            (Resource::Node, 0, None) if is_watched => Some(describe_missing_node(node)),
            (Resource::Node, _, Some(error)) => {
                Some(format!("this node's Node object is not watched; its last known zone counts ({error})"))
            }
            _ => None,
        }
    }

    /// Shows that a list was requested. An absent kind stays absent until a list of it arrives: each retry would
    /// otherwise look like news and trigger an audit.
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

/// How long Services or EndpointSlices may be unheard beside other kinds. An apiserver that drops one watch is heard
/// again within seconds.
const DEAF_MAX: Duration = Duration::from_secs(60);

/// Whether this node hears of no change of what clients get: no watch works, or that of Services or EndpointSlices has
/// not worked for a minute. A kind that the cluster lacks does not count.
pub fn is_away(watches: &[Watch], now: Instant) -> bool {
    let mut needed = watches.iter().filter(|watch| watch.state != State::Absent).peekable();
    let is_deaf = watches.iter().any(|watch| watch.is_vital() && watch.is_unanswered_for(DEAF_MAX, now));
    is_deaf || needed.peek().is_some() && needed.all(Watch::is_unanswered)
}

/// All watches. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(super) audits: Vec<(Resource, AuditClient)>,
    pub(super) watches: Vec<watch::Receiver<Watch>>,
}

impl View {
    /// Watches with a fixed state.
    #[cfg(any(test, feature = "testing"))]
    pub fn from_watches(watches: Vec<Watch>) -> Self {
        Self {
            audits: Vec::new(),
            watches: watches.into_iter().map(|watch| watch::channel(watch).1).collect(),
        }
    }

    /// Audits every kind that is not absent against the apiserver, or returns a result of the last seconds.
    pub async fn audit(&self, asker: AuditMode) -> Vec<(Resource, AuditReport)> {
        let is_absent = |of: Resource| {
            self.watches.iter().map(|it| it.borrow()).any(|it| it.what == of && it.state == State::Absent)
        };
        let here = self.audits.iter().filter(|(what, _)| !is_absent(*what));
        let audits = here.map(|(what, askers)| async { (*what, askers.request_audit(asker).await) });
        futures_util::future::join_all(audits).await
    }

    /// The current state of the watches; empty without an apiserver.
    pub fn current(&self) -> Vec<Watch> {
        self.watches.iter().map(|watch| watch.borrow().clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A watch whose last byte and whose last error came so many seconds after the start.
    fn watch(state: State, received: Option<u32>, failed: Option<u32>) -> Watch {
        let start = Instant::now();
        let error = |after| LastError { text: "connection refused".into(), at: start + SECOND * after };
        Watch {
            state,
            last_received: received.map(|after| start + SECOND * after),
            last_error: failed.map(error),
            ..Watch::new(Resource::Services)
        }
    }

    /// The own Node's watch is answered where a role lost its right to EndpointSlices.
    #[test]
    fn an_apiserver_is_away_once_services_or_slices_are_unheard_for_a_minute() {
        let node = || Watch { what: Resource::Node, ..watch(State::Watching, Some(1), None) };
        let slices = |state, received| Watch { what: Resource::Slices, ..watch(state, received, Some(2)) };
        let check = |watches: [Watch; 2], after| is_away(&watches, Instant::now() + SECOND * after);
        assert!(check([node(), slices(State::Waiting, Some(1))], 62));
        assert!(check([node(), slices(State::Listing, None)], 62), "it was never heard");
        assert!(!check([node(), slices(State::Waiting, Some(1))], 50), "it may come back at once");
        assert!(!check([node(), slices(State::Watching, Some(1))], 62));
        let node = Watch { what: Resource::Node, ..watch(State::Waiting, Some(1), Some(2)) };
        assert!(!check([node, slices(State::Watching, Some(1))], 62), "only the own Node is unheard");
    }

    #[test]
    fn an_apiserver_is_away_while_no_watch_has_got_an_answer_since_its_last_error() {
        let absent = || watch(State::Absent, None, None);
        let failed = || watch(State::Waiting, Some(1), Some(2));
        let is_away_now = |watches: &[Watch]| is_away(watches, Instant::now() + SECOND * 3);
        assert!(is_away_now(&[failed(), absent()]));
        assert!(is_away_now(&[failed(), watch(State::Listing, None, Some(2))]), "a new attempt hangs");
        assert!(!is_away_now(&[failed(), watch(State::Listing, Some(3), Some(2))]), "its list arrives");
        assert!(!is_away_now(&[failed(), watch(State::Watching, Some(1), Some(2))]));
        assert!(!is_away_now(&[failed(), watch(State::Waiting, None, None)]), "it has not been tried yet");
        assert!(!is_away_now(&[absent()]) && !is_away_now(&[]), "there is nothing to hear");
    }
}
