//! Delivers what was read: to the engine, to the task that tracks the node, and to [`Access`].
//!
//! Invariant: a group is delivered whole; a source is synced once each of its kinds has delivered its first list.
//! Nothing waits for ServiceImports where the cluster has none or does not reply. The Node is no kind of the table:
//! only the first lists wait a moment for its zone. A full queue stops reading from the socket.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::keys::Source;
use holdfast_core::time::Uptime;
use tokio::sync::{mpsc, oneshot, watch};

use super::apiservers::Apiservers;
use super::object::SinkMessage;
use crate::apiserver::Access;
use crate::own_node::{NodeDescription, NodeReport};

/// The receiver is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct SinkClosed;

/// How many kinds have not delivered their first list, and whether the start still waits for them.
#[derive(Clone, Copy, Debug)]
struct SyncProgress {
    kinds: usize,
    is_given_up: bool,
}

/// The pending first lists of a source. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct InitialSync(Arc<watch::Sender<SyncProgress>>);

impl InitialSync {
    pub(super) fn new(kinds: usize) -> Self {
        Self(Arc::new(watch::Sender::new(SyncProgress { kinds, is_given_up: false })))
    }

    /// Counts one kind as complete; returns whether it was the last.
    fn complete_kind(&self) -> bool {
        self.0.send_if_modified(|left| {
            left.kinds = left.kinds.saturating_sub(1);
            left.kinds == 0
        })
    }

    /// Stops waiting for the pending kinds; returns whether that ends a wait.
    fn give_up(&self) -> bool {
        self.0.send_if_modified(|left| left.kinds > 0 && !std::mem::replace(&mut left.is_given_up, true))
    }

    /// Waits until every kind has delivered its first list.
    async fn wait_until_complete(&self) {
        // `self` holds the sender.
        let _ = self.0.subscribe().wait_for(|left| left.kinds == 0).await;
    }
}

/// Ends the wait for ServiceImports `most` after everything else has arrived.
pub(super) async fn limit_imports_wait(
    (others, imports): (InitialSync, InitialSync),
    most: Duration,
    events: mpsc::Sender<Vec<Event>>,
) {
    others.wait_until_complete().await;
    tokio::time::sleep(most).await;
    if imports.give_up() {
        tracing::warn!("no list of ServiceImports arrived in time; starting without them");
        // The engine may be gone.
        let _ = events.send(vec![Event::Absent(Source::ClusterSet)]).await;
    }
}

/// Delays the first lists for the zone, so that no backend is chosen without it and chosen again.
#[derive(Clone, Debug)]
pub(super) struct ZoneWait {
    settled: Arc<watch::Sender<bool>>,
    until: tokio::time::Instant,
}

impl ZoneWait {
    /// A wait of at most `most`; `is_settled`: the zone is not needed, so nothing waits.
    pub(super) fn new(is_settled: bool, most: Duration) -> Self {
        let until = tokio::time::Instant::now() + most;
        Self { settled: Arc::new(watch::Sender::new(is_settled)), until }
    }

    async fn wait_until_over(&self) {
        let mut settled = self.settled.subscribe();
        // Either way the wait is over.
        let _ = tokio::time::timeout_at(self.until, settled.wait_for(|settled| *settled)).await;
    }
}

/// Delivers one kind's messages.
#[derive(Debug)]
pub(super) struct EventSink {
    /// The kind's source.
    pub(super) source: Source,
    pub(super) access: Access,
    pub(super) events: mpsc::Sender<Vec<Event>>,
    pub(super) nodes: mpsc::Sender<NodeReport>,
    /// `None` for a kind that no start waits for, and once it has arrived.
    pub(super) initial_sync: Option<InitialSync>,
    pub(super) zone_wait: ZoneWait,
    /// The apiservers that the cluster lists.
    pub(super) apiservers: Apiservers,
    /// Whether the kind's changes arrive.
    pub(super) is_watching: bool,
}

impl EventSink {
    /// Delivers a group.
    pub(super) async fn deliver(&mut self, messages: Vec<SinkMessage>) -> Result<(), SinkClosed> {
        self.learn_apiservers(&messages);
        let mut group = Vec::with_capacity(messages.len());
        for message in messages {
            match message {
                SinkMessage::Event(event) => group.push(event),
                SinkMessage::Node(node) => self.report_node(Some(node)).await?,
            }
        }
        if group.is_empty() { Ok(()) } else { self.events.send(group).await.map_err(|_| SinkClosed) }
    }

    /// Reports that events may be missing for a while.
    pub(super) async fn report_interruption(&mut self) -> Result<(), SinkClosed> {
        self.events.send(vec![Event::Interrupted(self.source)]).await.map_err(|_| SinkClosed)
    }

    /// Reports a change of whether the kind's changes arrive.
    pub(super) async fn report_watching(&mut self, is_heard: bool) -> Result<(), SinkClosed> {
        if std::mem::replace(&mut self.is_watching, is_heard) == is_heard {
            return Ok(());
        }
        let event = if is_heard { Event::Recovered } else { Event::Silent };
        self.events.send(vec![event(self.source)]).await.map_err(|_| SinkClosed)
    }

    /// Reports that everything known at the time of this question has been delivered.
    pub(super) async fn report_answer(&self, question: Uptime) -> Result<(), SinkClosed> {
        self.events.send(vec![Event::Answered(self.source, question)]).await.map_err(|_| SinkClosed)
    }

    /// Counts the first list as delivered; the last kind makes the source synced.
    pub(super) async fn complete_initial_list(&mut self) -> Result<(), SinkClosed> {
        match self.initial_sync.take() {
            Some(missing) if missing.complete_kind() => self.report_synced().await,
            _ => Ok(()),
        }
    }

    /// Reports that the cluster lacks the source, so that nothing waits. Its first lists still count when they arrive.
    pub(super) async fn give_up_sync(&self) -> Result<(), SinkClosed> {
        if !self.initial_sync.as_ref().is_some_and(InitialSync::give_up) {
            return Ok(());
        }
        self.events.send(vec![Event::Absent(self.source)]).await.map_err(|_| SinkClosed)
    }

    async fn report_synced(&self) -> Result<(), SinkClosed> {
        tracing::info!(source = %self.source, "every object of the apiserver has been read");
        self.events.send(vec![Event::Synced(self.source)]).await.map_err(|_| SinkClosed)
    }

    /// Waits until the zone is known or its wait is over, if the first list is pending.
    pub(super) async fn wait_for_zone(&self) {
        if self.is_syncing() {
            self.zone_wait.wait_until_over().await;
        }
    }

    /// Ends the wait: the zone is known, or cannot be known now.
    pub(super) fn end_zone_wait(&self) {
        self.zone_wait.settled.send_replace(true);
    }

    /// Whether the first list is pending.
    pub(super) const fn is_syncing(&self) -> bool {
        self.initial_sync.is_some()
    }

    /// Learns apiserver addresses from a group. Only the group's result counts, so an address that moves between slices
    /// is never gone.
    fn learn_apiservers(&mut self, messages: &[SinkMessage]) {
        let mut is_news = false;
        for message in messages {
            if let SinkMessage::Event(event) = message {
                is_news |= self.apiservers.apply_event(event);
            }
        }
        if is_news {
            self.access.learn_endpoints(&self.apiservers.listed_endpoints());
        }
    }

    /// Reports the node and waits until the engine has queued it, so that nothing is programmed for another zone
    /// meanwhile.
    pub(super) async fn report_node(&self, node: Option<NodeDescription>) -> Result<(), SinkClosed> {
        let (applied, confirmation) = oneshot::channel();
        self.nodes.send(NodeReport { node, applied }).await.map_err(|_| SinkClosed)?;
        confirmation.await.map_err(|_| SinkClosed)
    }
}
