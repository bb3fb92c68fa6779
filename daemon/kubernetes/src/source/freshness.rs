//! Answers the engine's question, before it releases a held list, whether the endpoints are back.
//!
//! Invariant: only a watch or list that began after the question answers it, and only once it has delivered all that
//! the server had. So an answer proves more than a reachable apiserver: a stuck watch looks healthy for a minute.
//! Questions come as snapshots. No watch restarts for one sooner than [`QUERY_INTERVAL_MIN`] after the last answer: a
//! tenant can make lists reach their bounds all the time, on every node.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::Uptime;
use tokio::sync::watch;
use tokio::time::Instant;

/// The least time between an answer and a watch for the next question. It costs the apiserver a handshake and three
/// small requests.
const QUERY_INTERVAL_MIN: Duration = Duration::from_secs(10);

/// The engine's questions to one source.
#[derive(Debug)]
pub(super) struct FreshnessQueries {
    source: Source,
    /// `None` for a kind without endpoints.
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    /// The question that the present watch or list will answer.
    pending: Option<Uptime>,
    answered: Option<Uptime>,
    /// When a watch may next restart for a question.
    next_allowed: Instant,
}

impl FreshnessQueries {
    pub(super) fn new(source: Source, snapshots: Option<watch::Receiver<Arc<Snapshot>>>) -> Self {
        Self { source, snapshots, pending: None, answered: None, next_allowed: Instant::now() }
    }

    /// Records that a watch or list begins; it answers the questions asked so far.
    pub(super) fn begin_request(&mut self) {
        self.pending = None;
        self.pending = self.snapshots.as_ref().and_then(|snapshots| self.newest_query(&snapshots.borrow()));
    }

    /// Whether the present watch will answer a question once it has delivered everything.
    pub(super) const fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Takes the question that is answered now.
    pub(super) fn take_answered(&mut self) -> Option<Uptime> {
        let question = self.pending.take()?;
        (self.answered, self.next_allowed) = (Some(question), Instant::now() + QUERY_INTERVAL_MIN);
        Some(question)
    }

    /// Drops the question, because the server does not report its version.
    pub(super) fn give_up(&mut self) {
        if self.pending.take().is_some() {
            self.next_allowed = Instant::now() + QUERY_INTERVAL_MIN;
        }
    }

    /// Waits for a question that the present watch does not answer.
    pub(super) async fn wait_for_query(&self) {
        tokio::time::sleep_until(self.next_allowed).await;
        let Some(mut snapshots) = self.snapshots.clone() else { return std::future::pending().await };
        if snapshots.wait_for(|snapshot| self.newest_query(snapshot).is_some()).await.is_err() {
            // The engine is gone, which ends the loop.
            std::future::pending::<()>().await;
        }
    }

    fn newest_query(&self, snapshot: &Snapshot) -> Option<Uptime> {
        let known = self.pending.max(self.answered);
        snapshot.queries.get(&self.source).copied().filter(|question| Some(*question) > known)
    }
}
