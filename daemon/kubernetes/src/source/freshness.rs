//! What the engine asks before it lets a held list go: whether the endpoints are back.
//!
//! Invariant: a question is answered by a watch or a list that began after it, and only when that has told all that the
//! server knew. So an answer says more than that some apiserver is there: a watch that stands still looks well for a
//! minute. Questions come as snapshots, and no watch begins for one sooner than [`QUERY_INTERVAL_MIN`] after the last answer: a
//! tenant can have lists reach their bounds all the time, on every node.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::Uptime;
use tokio::sync::watch;
use tokio::time::Instant;

/// The least time between an answer and a watch that begins for the next question. It costs the apiserver a handshake
/// and three small requests.
const QUERY_INTERVAL_MIN: Duration = Duration::from_secs(10);

/// The questions that the engine puts to one source.
#[derive(Debug)]
pub(super) struct FreshnessQueries {
    source: Source,
    /// None for a kind that says nothing of endpoints.
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    /// The question that the watch or list under way is an answer to.
    pending: Option<Uptime>,
    answered: Option<Uptime>,
    /// When the next watch may begin for a question.
    next_allowed: Instant,
}

impl FreshnessQueries {
    pub(super) fn new(source: Source, snapshots: Option<watch::Receiver<Arc<Snapshot>>>) -> Self {
        Self { source, snapshots, pending: None, answered: None, next_allowed: Instant::now() }
    }

    /// Notes that a watch or a list begins: it is an answer to what has been asked by now.
    pub(super) fn begin_request(&mut self) {
        self.pending = None;
        self.pending = self.snapshots.as_ref().and_then(|snapshots| self.newest_query(&snapshots.borrow()));
    }

    /// Whether the watch under way is an answer to a question, once it has told all.
    pub(super) const fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The question that is answered now, if there is one.
    pub(super) fn take_answered(&mut self) -> Option<Uptime> {
        let question = self.pending.take()?;
        (self.answered, self.next_allowed) = (Some(question), Instant::now() + QUERY_INTERVAL_MIN);
        Some(question)
    }

    /// Gives no answer by the watch under way, because the server does not say what it knows.
    pub(super) fn give_up(&mut self) {
        if self.pending.take().is_some() {
            self.next_allowed = Instant::now() + QUERY_INTERVAL_MIN;
        }
    }

    /// Waits for a question that the watch under way does not answer.
    pub(super) async fn wait_for_query(&self) {
        tokio::time::sleep_until(self.next_allowed).await;
        let Some(mut snapshots) = self.snapshots.clone() else { return std::future::pending().await };
        if snapshots.wait_for(|snapshot| self.newest_query(snapshot).is_some()).await.is_err() {
            // The engine is gone, and the loop ends by that.
            std::future::pending::<()>().await;
        }
    }

    fn newest_query(&self, snapshot: &Snapshot) -> Option<Uptime> {
        let known = self.pending.max(self.answered);
        snapshot.queries.get(&self.source).copied().filter(|question| Some(*question) > known)
    }
}
