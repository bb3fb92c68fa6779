//! The API's two listeners, TCP and the unix socket, each with limits that its clients share.
//!
//! Invariant: the listeners share no permits, so clients that fill one take nothing from the other. On the socket some
//! permits of each kind are reserved for root, because members of the socket's group may fill the rest.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client_requests::{Peer, RequestSenders};
use super::limits;
use holdfast_agent::engine::query::EngineBusy;
use holdfast_agent::readings::Readings;
use holdfast_evidence::event_watcher::EventStatus;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerKind {
    /// TCP on loopback, with its bound port.
    Tcp(u16),
    /// The unix socket, which no web page can reach.
    Unix,
}

/// A listener with its permits.
#[derive(Debug)]
pub(super) struct AdminListener {
    pub(super) kind: ListenerKind,
    pub(super) connections: PermitPool,
    pub(super) watchers: PermitPool,
    pub(super) diagnoses: PermitPool,
    engine_queries: PermitPool,
}

impl AdminListener {
    pub(super) fn new(kind: ListenerKind) -> Self {
        let places = |all| match kind {
            ListenerKind::Tcp(_) => PermitPool::new(all, 0),
            ListenerKind::Unix => PermitPool::new(all, limits::ROOT_PERMITS),
        };
        Self {
            kind,
            connections: places(limits::CONNECTIONS_MAX),
            watchers: places(limits::WATCHERS_MAX),
            diagnoses: places(limits::DIAGNOSES_MAX),
            engine_queries: places(limits::QUERIES_MAX),
        }
    }
}

/// Permits of one kind: some for all clients, and some for root alone.
#[derive(Debug)]
pub(super) struct PermitPool {
    shared: Arc<Semaphore>,
    root_only: Arc<Semaphore>,
}

pub(super) type Permit = OwnedSemaphorePermit;

impl PermitPool {
    fn new(everybodys: usize, roots: usize) -> Self {
        Self { shared: Arc::new(Semaphore::new(everybodys)), root_only: Arc::new(Semaphore::new(roots)) }
    }

    /// Takes a permit, if one is free for this client.
    pub(super) fn try_acquire(&self, peer: Option<Peer>) -> Option<Permit> {
        let take = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        take(&self.shared).or_else(|| if is_root(peer) { take(&self.root_only) } else { None })
    }

    /// Waits in line for a permit; gives up after `QUERY_WAIT_MAX`.
    async fn acquire_in_time(&self, peer: Option<Peer>) -> Option<Permit> {
        if let Some(place) = self.try_acquire(peer) {
            return Some(place);
        }
        let places = if is_root(peer) { &self.root_only } else { &self.shared };
        let turn = Arc::clone(places).acquire_owned();
        tokio::time::timeout(limits::QUERY_WAIT_MAX, turn).await.ok()?.ok()
    }
}

fn is_root(peer: Option<Peer>) -> bool {
    peer.is_some_and(|peer| peer.uid == 0)
}

/// The data and actions for requests at either listener.
#[derive(Clone, Debug)]
pub(super) struct ServerContext {
    pub(super) readings: Arc<Readings>,
    pub(super) events: EventStatus,
    pub(super) actions: Arc<RequestSenders>,
}

/// A request: its client, its listener, and its data and actions.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    pub(super) readings: Arc<Readings>,
    pub(super) events: EventStatus,
    pub(super) actions: Arc<RequestSenders>,
    pub(super) listener: Arc<AdminListener>,
    /// `None` over TCP, which does not identify the peer.
    pub(super) peer: Option<Peer>,
}

impl RequestContext {
    /// Waits for a permit of this listener to query the engine. Each listener has its own, so neither can use up the
    /// engine.
    pub(super) async fn acquire_query_permit(&self) -> Result<Permit, EngineBusy> {
        self.listener.engine_queries.acquire_in_time(self.peer).await.ok_or(EngineBusy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn by(uid: u32) -> Option<Peer> {
        Some(Peer { uid, pid: None })
    }

    #[test]
    fn root_gets_a_permit_when_the_group_has_filled_the_socket() {
        let places = AdminListener::new(ListenerKind::Unix).watchers;
        let taken: Vec<_> = std::iter::from_fn(|| places.try_acquire(by(1000))).collect();
        assert_eq!(taken.len(), limits::WATCHERS_MAX);
        let roots: Vec<_> = std::iter::from_fn(|| places.try_acquire(by(0))).collect();
        assert_eq!(roots.len(), limits::ROOT_PERMITS);
        drop(taken);
        assert!(places.try_acquire(by(1000)).is_some(), "a place that was left is free again");
    }

    #[test]
    fn no_tcp_client_counts_as_root() {
        let places = AdminListener::new(ListenerKind::Tcp(1)).connections;
        let taken: Vec<_> = std::iter::from_fn(|| places.try_acquire(None)).collect();
        assert_eq!(taken.len(), limits::CONNECTIONS_MAX);
        assert!(places.try_acquire(by(0)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_query_gets_a_permit_or_fails_in_time() {
        let places = AdminListener::new(ListenerKind::Tcp(1)).engine_queries;
        let mut taken: Vec<_> = std::iter::from_fn(|| places.try_acquire(None)).collect();
        assert!(places.acquire_in_time(None).await.is_none());
        let (turn, ()) = tokio::join!(places.acquire_in_time(None), async { drop(taken.pop()) });
        assert!(turn.is_some());
    }
}
