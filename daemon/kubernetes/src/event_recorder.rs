//! Writes Events about this node's problems to the cluster: holds, rejected objects, conflicts.
//!
//! Invariant: no other part waits for this one. An Event that comes too fast, or that no apiserver accepts, is counted
//! and dropped; the history has every change. One problem of one object is one Event with a count, also over restarts,
//! because the Event's name is a hash of its content. Ordinary changes and objects outside the cluster are skipped. The
//! recorder reads no Event but its own, for its count.

mod cluster_event;
mod event_writer;
mod rate_limit;
#[cfg(test)]
mod tests;
mod topics;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_core::snapshot::Snapshot;
use holdfast_core::words;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::watch;

use crate::apiserver::Access;
use cluster_event::ClusterEvent;
use rate_limit::RateLimiter;
use topics::TopicTracker;

/// How often to compare snapshots. A shorter problem appears only in the history.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// The most Events in the queue: about a minute's worth. Of a larger burst, the first ones tell as much as all.
const QUEUED_EVENTS_MAX: usize = 64;

/// Counts of Events by outcome, since the start.
#[derive(Debug, Default)]
pub struct EventCounts([AtomicU64; Outcome::ALL.len()]);

words! {
    /// The outcome of an Event.
    pub enum Outcome {
        /// The apiserver accepted it.
        Written = "written",
        /// No apiserver accepted it.
        Failed = "failed",
        /// The queue was full.
        Dropped = "dropped",
    }
}

impl EventCounts {
    /// Each outcome and its count.
    pub fn totals(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    fn count_outcome(&self, outcome: Outcome) {
        if let Some((_, count)) = Outcome::ALL.into_iter().zip(&self.0).find(|(it, _)| *it == outcome) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Records Events until the snapshots' publisher is gone.
pub async fn run(
    snapshots: watch::Receiver<Arc<Snapshot>>,
    access: Access,
    node: Arc<str>,
    counts: Arc<EventCounts>,
) {
    let (queue, waiting) = mpsc::channel(QUEUED_EVENTS_MAX);
    tokio::join!(queue_events(snapshots, queue, &counts), write_events(waiting, &access, &node, &counts));
}

/// Queues new Events without waiting for the writer; with a full queue they are dropped and counted.
async fn queue_events(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    queue: mpsc::Sender<ClusterEvent>,
    counts: &EventCounts,
) {
    let mut seen = TopicTracker::default();
    while snapshots.changed().await.is_ok() {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        let topics = seen.update_topics(&snapshot);
        for topic in &topics {
            match queue.try_reserve() {
                Ok(place) => {
                    if let Some(notice) = topic.to_event(&snapshot) {
                        place.send(notice);
                    }
                }
                Err(TrySendError::Full(()) | TrySendError::Closed(())) => {
                    counts.count_outcome(Outcome::Dropped);
                }
            }
        }
        tokio::time::sleep(SNAPSHOT_INTERVAL).await;
    }
}

async fn write_events(
    mut waiting: mpsc::Receiver<ClusterEvent>,
    access: &Access,
    node: &str,
    counts: &EventCounts,
) {
    let mut pace = RateLimiter::new(Instant::now());
    let mut is_failing = false;
    while let Some(notice) = waiting.recv().await {
        tokio::time::sleep_until(pace.reserve_write(Instant::now()).into()).await;
        match event_writer::write_event(access, &notice, node).await {
            Ok(()) => {
                counts.count_outcome(Outcome::Written);
                is_failing = false;
            }
            Err(error) => {
                counts.count_outcome(Outcome::Failed);
                // Log once until a write succeeds again.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "the cluster does not take Events; they are counted");
                }
            }
        }
    }
}
