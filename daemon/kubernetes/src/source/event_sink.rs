//! Where what was read goes: to the engine, to the task that knows the node, and to the ways to the apiserver.
//!
//! Invariant: a group is handed over whole; a source is synced when every kind of it has handed over its first list,
//! and not before. Nothing waits for ServiceImports where the cluster has none, or does not tell. The Node object is no
//! kind of the table: the first lists wait a moment for its zone, and nothing waits for it after that. A queue that is
//! full holds up the socket.

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

/// How many kinds of a source have not handed over their first list, and whether these are not waited for any longer.
#[derive(Clone, Copy, Debug)]
struct SyncProgress {
    kinds: usize,
    is_given_up: bool,
}

/// What is left to come of a source. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct InitialSync(Arc<watch::Sender<SyncProgress>>);

impl InitialSync {
    pub(super) fn new(kinds: usize) -> Self {
        Self(Arc::new(watch::Sender::new(SyncProgress { kinds, is_given_up: false })))
    }

    /// Counts one kind less; tells whether it was the last one.
    fn complete_kind(&self) -> bool {
        self.0.send_if_modified(|left| {
            left.kinds = left.kinds.saturating_sub(1);
            left.kinds == 0
        })
    }

    /// Waits for what is left no longer; tells whether that ends a wait.
    fn give_up(&self) -> bool {
        self.0.send_if_modified(|left| left.kinds > 0 && !std::mem::replace(&mut left.is_given_up, true))
    }

    /// Waits until every kind has arrived.
    async fn wait_until_complete(&self) {
        // The sender is this very value.
        let _ = self.0.subscribe().wait_for(|left| left.kinds == 0).await;
    }
}

/// Ends the wait for ServiceImports where an apiserver has told everything else and, `most` later, not these.
pub(super) async fn limit_imports_wait(
    (others, imports): (InitialSync, InitialSync),
    most: Duration,
    events: mpsc::Sender<Vec<Event>>,
) {
    others.wait_until_complete().await;
    tokio::time::sleep(most).await;
    if imports.give_up() {
        tracing::warn!("the cluster's ServiceImports have not come, and are not waited for any longer");
        // The engine may be gone.
        let _ = events.send(vec![Event::Absent(Source::ClusterSet)]).await;
    }
}

/// The zone's head start: the first lists wait a moment for it, so that no backend is chosen without it only to
/// be chosen again.
#[derive(Clone, Debug)]
pub(super) struct ZoneWait {
    settled: Arc<watch::Sender<bool>>,
    until: tokio::time::Instant,
}

impl ZoneWait {
    /// A head start of at most `most`; `is_settled`: the zone is not asked for, so nothing waits.
    pub(super) fn new(is_settled: bool, most: Duration) -> Self {
        let until = tokio::time::Instant::now() + most;
        Self { settled: Arc::new(watch::Sender::new(is_settled)), until }
    }

    async fn wait_until_over(&self) {
        let mut settled = self.settled.subscribe();
        // Either way the head start is over.
        let _ = tokio::time::timeout_at(self.until, settled.wait_for(|settled| *settled)).await;
    }
}

/// One kind's way out.
#[derive(Debug)]
pub(super) struct EventSink {
    /// The source of which the kind is.
    pub(super) source: Source,
    pub(super) access: Access,
    pub(super) events: mpsc::Sender<Vec<Event>>,
    pub(super) nodes: mpsc::Sender<NodeReport>,
    /// None for a kind that nothing waits for, and for one that has arrived.
    pub(super) initial_sync: Option<InitialSync>,
    pub(super) zone_wait: ZoneWait,
    /// What the cluster says of its apiservers.
    pub(super) apiservers: Apiservers,
    /// Whether an apiserver tells of the kind.
    pub(super) is_watching: bool,
}

impl EventSink {
    /// Hands a group over.
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

    /// Tells the engine that what is delivered from now on may miss something for a while.
    pub(super) async fn report_interruption(&mut self) -> Result<(), SinkClosed> {
        self.events.send(vec![Event::Interrupted(self.source)]).await.map_err(|_| SinkClosed)
    }

    /// Tells the engine whether an apiserver tells of the kind, where that is news.
    pub(super) async fn report_watching(&mut self, is_heard: bool) -> Result<(), SinkClosed> {
        if std::mem::replace(&mut self.is_watching, is_heard) == is_heard {
            return Ok(());
        }
        let event = if is_heard { Event::Recovered } else { Event::Silent };
        self.events.send(vec![event(self.source)]).await.map_err(|_| SinkClosed)
    }

    /// Tells the engine that all has come that was known when it put this question.
    pub(super) async fn report_answer(&self, question: Uptime) -> Result<(), SinkClosed> {
        self.events.send(vec![Event::Answered(self.source, question)]).await.map_err(|_| SinkClosed)
    }

    /// Notes that the first list has been handed over; the last kind makes the source synced.
    pub(super) async fn complete_initial_list(&mut self) -> Result<(), SinkClosed> {
        match self.initial_sync.take() {
            Some(missing) if missing.complete_kind() => self.report_synced().await,
            _ => Ok(()),
        }
    }

    /// Notes that nothing waits for the source: the cluster does not have it. Its first lists count when they come.
    pub(super) async fn give_up_sync(&self) -> Result<(), SinkClosed> {
        if !self.initial_sync.as_ref().is_some_and(InitialSync::give_up) {
            return Ok(());
        }
        self.events.send(vec![Event::Absent(self.source)]).await.map_err(|_| SinkClosed)
    }

    async fn report_synced(&self) -> Result<(), SinkClosed> {
        tracing::info!(source = %self.source, "the apiserver's objects are complete");
        self.events.send(vec![Event::Synced(self.source)]).await.map_err(|_| SinkClosed)
    }

    /// Waits until the zone is known or its head start is over, if the first list is still to come.
    pub(super) async fn wait_for_zone(&self) {
        if self.is_syncing() {
            self.zone_wait.wait_until_over().await;
        }
    }

    /// Ends the head start: the zone is known, or cannot be known now.
    pub(super) fn end_zone_wait(&self) {
        self.zone_wait.settled.send_replace(true);
    }

    /// Whether the first list is still to come.
    pub(super) const fn is_syncing(&self) -> bool {
        self.initial_sync.is_some()
    }

    /// Learns from a group where apiservers are. Only the group's outcome counts, so an address that moves from slice
    /// to slice is never gone.
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

    /// Reports the node and waits until the engine has the report, so that nothing is programmed for another zone
    /// meanwhile.
    pub(super) async fn report_node(&self, node: Option<NodeDescription>) -> Result<(), SinkClosed> {
        let (applied, heard) = oneshot::channel();
        self.nodes.send(NodeReport { node, applied }).await.map_err(|_| SinkClosed)?;
        heard.await.map_err(|_| SinkClosed)
    }
}
