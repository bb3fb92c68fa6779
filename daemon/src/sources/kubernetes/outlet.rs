//! Where what was read goes: to the engine, to the task that knows the node, and to the ways to the apiserver.
//!
//! Invariant: a group is handed over whole; the source is synced when every kind of the table has handed over its first
//! list, and not before. The Node object is no kind of the table: the first lists wait a moment for its zone, and
//! nothing waits for it after that. A queue that is full holds up the socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::keys::Source;
use tokio::sync::{mpsc, oneshot, watch};

use super::apiservers::Apiservers;
use super::object::Message;
use crate::apiserver::Access;
use crate::node::{Described, NodeReport};

/// The receiver is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

/// The kinds that have not handed over their first list.
#[derive(Clone, Debug)]
pub(super) struct Missing(Arc<AtomicUsize>);

impl Missing {
    pub(super) fn new(kinds: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(kinds)))
    }

    /// Counts one kind less; tells whether it was the last one.
    fn arrived(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The zone's head start: the first lists wait a moment for it, so that no backend is chosen without it only to
/// be chosen again.
#[derive(Clone, Debug)]
pub(super) struct HeadStart {
    settled: Arc<watch::Sender<bool>>,
    until: tokio::time::Instant,
}

impl HeadStart {
    /// A head start of at most `most`; `is_settled`: the zone is not asked for, so nothing waits.
    pub(super) fn new(is_settled: bool, most: Duration) -> Self {
        let until = tokio::time::Instant::now() + most;
        Self { settled: Arc::new(watch::Sender::new(is_settled)), until }
    }

    async fn over(&self) {
        let mut settled = self.settled.subscribe();
        // Either way the head start is over.
        let _ = tokio::time::timeout_at(self.until, settled.wait_for(|settled| *settled)).await;
    }
}

/// One kind's way out.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) access: Access,
    pub(super) events: mpsc::Sender<Vec<Event>>,
    pub(super) nodes: mpsc::Sender<NodeReport>,
    /// None for a kind that nothing waits for, and for one that has arrived.
    pub(super) missing: Option<Missing>,
    pub(super) head_start: HeadStart,
    /// What the cluster says of its apiservers.
    pub(super) apiservers: Apiservers,
}

impl Outlet {
    /// Hands a group over.
    pub(super) async fn deliver(&mut self, messages: Vec<Message>) -> Result<(), Closed> {
        self.learn(&messages);
        let mut group = Vec::with_capacity(messages.len());
        for message in messages {
            match message {
                Message::Event(event) => group.push(event),
                Message::Node(node) => self.tell_of_node(Some(node)).await?,
            }
        }
        if group.is_empty() { Ok(()) } else { self.events.send(group).await.map_err(|_| Closed) }
    }

    /// Tells the engine that what is delivered from now on may miss something for a while.
    pub(super) async fn interrupted(&mut self) -> Result<(), Closed> {
        self.events.send(vec![Event::Interrupted(Source::Kubernetes)]).await.map_err(|_| Closed)
    }

    /// Notes that the first list has been handed over, or that none has to be waited for; the last kind makes the
    /// source synced.
    pub(super) async fn arrived(&mut self) -> Result<(), Closed> {
        match self.missing.take() {
            Some(missing) if missing.arrived() => {
                tracing::info!("the apiserver's objects are complete");
                let group = vec![Event::Synced(Source::Kubernetes)];
                self.events.send(group).await.map_err(|_| Closed)
            }
            _ => Ok(()),
        }
    }

    /// Waits until the zone is known or its head start is over, if the first list is still to come.
    pub(super) async fn wait_for_zone(&self) {
        if self.is_awaited() {
            self.head_start.over().await;
        }
    }

    /// Ends the head start: the zone is known, or cannot be known now.
    pub(super) fn zone_is_known(&self) {
        self.head_start.settled.send_replace(true);
    }

    /// Whether the first list is still to come.
    pub(super) const fn is_awaited(&self) -> bool {
        self.missing.is_some()
    }

    /// Learns from a group where apiservers are. Only the group's outcome counts, so an address that moves from slice
    /// to slice is never gone.
    fn learn(&mut self, messages: &[Message]) {
        let mut is_news = false;
        for message in messages {
            if let Message::Event(event) = message {
                is_news |= self.apiservers.take(event);
            }
        }
        if is_news {
            self.access.learn(&self.apiservers.listed());
        }
    }

    /// Reports the node and waits until the engine has the report, so that nothing is programmed for another zone
    /// meanwhile.
    pub(super) async fn tell_of_node(&self, node: Option<Described>) -> Result<(), Closed> {
        let (applied, heard) = oneshot::channel();
        self.nodes.send(NodeReport { node, applied }).await.map_err(|_| Closed)?;
        heard.await.map_err(|_| Closed)
    }
}
