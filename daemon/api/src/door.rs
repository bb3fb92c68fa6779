//! The API's two doors, TCP and the Unix socket, each with the places that its clients share.
//!
//! Invariant: the doors share no places, so clients that fill one door take nothing from the other. On the socket some
//! places of each kind are reserved for root, because members of the socket's group may fill the rest.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits;
use super::wishes::{Acts, Peer};
use holdfast_agent::engine::query::EngineBusy;
use holdfast_agent::readings::Readings;
use holdfast_evidence::event_watcher::EventStatus;

/// The kind of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// TCP on loopback, with the port that was bound.
    Tcp(u16),
    /// The unix socket, which no web page can reach.
    Unix,
}

/// A door with its places.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) way: Way,
    pub(super) connections: Places,
    pub(super) watchers: Places,
    pub(super) diagnoses: Places,
    questions: Places,
}

impl Door {
    pub(super) fn new(way: Way) -> Self {
        let places = |all| match way {
            Way::Tcp(_) => Places::new(all, 0),
            Way::Unix => Places::new(all, limits::FOR_ROOT),
        };
        Self {
            way,
            connections: places(limits::CONNECTIONS_MAX),
            watchers: places(limits::WATCHERS_MAX),
            diagnoses: places(limits::DIAGNOSES_MAX),
            questions: places(limits::QUESTIONS_MAX),
        }
    }
}

/// Places of one kind: some for all clients, and some for root alone.
#[derive(Debug)]
pub(super) struct Places {
    everybodys: Arc<Semaphore>,
    roots: Arc<Semaphore>,
}

/// A place, taken until it is dropped.
pub(super) type Permit = OwnedSemaphorePermit;

impl Places {
    fn new(everybodys: usize, roots: usize) -> Self {
        Self { everybodys: Arc::new(Semaphore::new(everybodys)), roots: Arc::new(Semaphore::new(roots)) }
    }

    /// Takes a place, if one is free that the client may have.
    pub(super) fn take(&self, peer: Option<Peer>) -> Option<Permit> {
        let of = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        of(&self.everybodys).or_else(|| if is_root(peer) { of(&self.roots) } else { None })
    }

    /// Waits in line for a place; gives up after `QUESTION_WAIT_MAX`.
    async fn wait(&self, peer: Option<Peer>) -> Option<Permit> {
        if let Some(place) = self.take(peer) {
            return Some(place);
        }
        let places = if is_root(peer) { &self.roots } else { &self.everybodys };
        let turn = Arc::clone(places).acquire_owned();
        tokio::time::timeout(limits::QUESTION_WAIT_MAX, turn).await.ok()?.ok()
    }
}

fn is_root(peer: Option<Peer>) -> bool {
    peer.is_some_and(|peer| peer.uid == 0)
}

/// What requests at either door can read and start.
#[derive(Clone, Debug)]
pub(super) struct Inside {
    pub(super) readings: Arc<Readings>,
    pub(super) events: EventStatus,
    pub(super) acts: Arc<Acts>,
}

/// A request: its client, its door, and what it can read and start.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) readings: Arc<Readings>,
    pub(super) events: EventStatus,
    pub(super) acts: Arc<Acts>,
    pub(super) door: Arc<Door>,
    /// `None` over TCP, which does not identify the peer.
    pub(super) peer: Option<Peer>,
}

impl Visit {
    /// Waits for one of this door's turns to ask the engine. Each door has turns of its own, so neither can use up the
    /// engine.
    pub(super) async fn turn(&self) -> Result<Permit, EngineBusy> {
        self.door.questions.wait(self.peer).await.ok_or(EngineBusy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn by(uid: u32) -> Option<Peer> {
        Some(Peer { uid, pid: None })
    }

    #[test]
    fn root_gets_in_when_the_group_has_filled_the_socket() {
        let places = Door::new(Way::Unix).watchers;
        let taken: Vec<_> = std::iter::from_fn(|| places.take(by(1000))).collect();
        assert_eq!(taken.len(), limits::WATCHERS_MAX);
        let roots: Vec<_> = std::iter::from_fn(|| places.take(by(0))).collect();
        assert_eq!(roots.len(), limits::FOR_ROOT);
        drop(taken);
        assert!(places.take(by(1000)).is_some(), "a place that was left is free again");
    }

    #[test]
    fn nobody_is_root_by_tcp() {
        let places = Door::new(Way::Tcp(1)).connections;
        let taken: Vec<_> = std::iter::from_fn(|| places.take(None)).collect();
        assert_eq!(taken.len(), limits::CONNECTIONS_MAX);
        assert!(places.take(by(0)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_turn_gets_it_or_is_told_in_time() {
        let places = Door::new(Way::Tcp(1)).questions;
        let mut taken: Vec<_> = std::iter::from_fn(|| places.take(None)).collect();
        assert!(places.wait(None).await.is_none());
        let (turn, ()) = tokio::join!(places.wait(None), async { drop(taken.pop()) });
        assert!(turn.is_some());
    }
}
