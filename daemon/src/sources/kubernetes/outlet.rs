//! Where what was read goes: to the engine, to whoever knows the node, and to the ways to the apiserver.
//!
//! Invariant: a group is handed over whole; the source is synced when every kind has handed over its first list, and not
//! before. A queue that is full holds up the socket. Deliberately absent: what was delivered before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use holdfast_core::event::Event;
use holdfast_core::keys::Source;
use tokio::sync::{mpsc, oneshot};

use super::object::Told;
use super::pace::Quota;
use crate::apiserver::Access;
use crate::node::Zone;

/// Nobody listens any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

/// The kinds whose first list has not been handed over.
#[derive(Clone, Debug)]
pub(super) struct Missing(Arc<AtomicUsize>);

impl Missing {
    pub(super) fn new(kinds: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(kinds)))
    }

    /// One less; whether it was the last one.
    fn arrived(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// One kind's way out.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) access: Access,
    pub(super) events: mpsc::Sender<Vec<Event>>,
    pub(super) zones: mpsc::Sender<Zone>,
    pub(super) missing: Option<Missing>,
    pub(super) quota: Quota,
    pub(super) started: Instant,
}

impl Outlet {
    /// Hands a group over.
    pub(super) async fn deliver(&mut self, told: Vec<Told>) -> Result<(), Closed> {
        let mut group = Vec::with_capacity(told.len());
        for told in told {
            self.learn(&told);
            match told {
                Told::Event(event) => {
                    self.say(&event);
                    group.push(event);
                }
                Told::Zone(zone) => self.tell_zone(zone).await?,
            }
        }
        if group.is_empty() { Ok(()) } else { self.events.send(group).await.map_err(|_| Closed) }
    }

    /// What is told from now on may miss something for a while.
    pub(super) async fn interrupted(&mut self) -> Result<(), Closed> {
        self.events.send(vec![Event::Interrupted(Source::Kubernetes)]).await.map_err(|_| Closed)
    }

    /// The first list has been handed over, or there is none to wait for.
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

    /// Whether the first list is still to come.
    pub(super) const fn is_awaited(&self) -> bool {
        self.missing.is_some()
    }

    fn learn(&self, told: &Told) {
        let addresses = told.apiservers();
        if !addresses.is_empty() {
            self.access.learn(&addresses);
        }
    }

    /// Waits until the engine has it, so that nothing is programmed for another zone meanwhile.
    async fn tell_zone(&self, name: Option<Arc<str>>) -> Result<(), Closed> {
        let (told, heard) = oneshot::channel();
        self.zones.send(Zone { name, told }).await.map_err(|_| Closed)?;
        heard.await.map_err(|_| Closed)
    }

    fn say(&mut self, event: &Event) {
        let Event::Rejected(rejection) = event else { return };
        let (object, reason) = (&rejection.object, &*rejection.reason);
        match self.quota.say(self.started.elapsed()) {
            Some(0) => tracing::warn!(%object, reason, "object not understood, its last good version stays"),
            Some(unsaid) => {
                tracing::warn!(%object, reason, unsaid, "object not understood, its last good version stays");
            }
            None => tracing::debug!(%object, reason, "object not understood, its last good version stays"),
        }
    }
}
