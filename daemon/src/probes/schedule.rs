//! Whose turn it is to be probed.
//!
//! Invariant: a list of which nobody was asked goes before any list of which somebody was; the others take turns,
//! however many backends each has, and so do the backends of one list. A turn costs the logarithm of what is held.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::hold::{Answer, Hold, Probed};
use holdfast_core::keys::{PortKey, ServiceKey};
use holdfast_core::op::ServiceId;
use holdfast_core::snapshot::{PortView, ServiceView, Snapshot};
use holdfast_core::time::Uptime;
use tokio::time::Instant;

/// A held list.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    service: ServiceKey,
    port: PortKey,
}

/// One backend of a held list, whose turn it is.
#[derive(Debug)]
pub(super) struct Target {
    list: Arc<Name>,
    pub(super) backend: SocketAddr,
}

impl Target {
    pub(super) fn probed(self, answer: Answer) -> Probed {
        let Name { service, port } = &*self.list;
        Probed { service: service.clone(), port: port.clone(), backend: self.backend, answer }
    }
}

/// When a list is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// At once: nobody of it was asked yet. Lists that came together are numbered from the number that is being served
    /// on, so a few that come later do not wait for all of those that came before.
    First(u64),
    /// From then on. A list with much to ask is due again at its last turn, behind all that were due before.
    Again(Instant),
}

#[derive(Debug)]
struct List {
    turn: Turn,
    /// A list that returned and was lost again is a new one.
    begun: Uptime,
    due: BTreeSet<(Instant, SocketAddr)>,
    known: BTreeMap<SocketAddr, Instant>,
}

impl List {
    /// Asks for these backends and no others; what is new is due at once.
    fn follow(&mut self, backends: &BTreeSet<SocketAddr>, now: Instant) {
        let Self { due, known, .. } = self;
        known.retain(|backend, at| backends.contains(backend) || !due.remove(&(*at, *backend)));
        for backend in backends {
            if !self.known.contains_key(backend) {
                self.plan(*backend, now);
            }
        }
    }

    fn plan(&mut self, backend: SocketAddr, at: Instant) {
        self.due.insert((at, backend));
        self.known.insert(backend, at);
    }

    /// The backend that has waited longest.
    fn take_first(&mut self, again: Instant) -> Option<SocketAddr> {
        let (_, backend) = self.due.pop_first()?;
        self.plan(backend, again);
        Some(backend)
    }

    /// Its next turn, if it had one at this time or before.
    fn after(&self, last: Instant) -> Turn {
        Turn::Again(self.due.first().map_or(last, |(at, _)| last.max(*at)))
    }
}

/// All lists that are probed.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    turns: BTreeSet<(Turn, Arc<Name>)>,
    lists: BTreeMap<Arc<Name>, List>,
    /// What was seen of each service last; most do not change from one look to the next.
    seen: BTreeMap<ServiceId, Arc<ServiceView>>,
    /// The number of the list that had its first turn last.
    served: u64,
}

impl Schedule {
    /// Takes over what is held now.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, now: Instant) {
        let gone: Vec<_> = self.seen.keys().filter(|id| !snapshot.held.contains(id)).copied().collect();
        for id in gone {
            if let Some(view) = self.seen.remove(&id) {
                self.forget(&view, None);
            }
        }
        let mut number = self.served;
        for id in snapshot.held.iter() {
            let Some(view) = snapshot.services.get(id.0 as usize) else { continue };
            if self.seen.get(id).is_some_and(|seen| Arc::ptr_eq(seen, view)) {
                continue;
            }
            let before = self.seen.insert(*id, Arc::clone(view));
            if let Some(before) = &before {
                self.forget(before, Some(view));
            }
            let is_news = |list: &(_, _)| !before.as_ref().is_some_and(|before| has(before, view, *list));
            for (port, hold) in held(view).filter(is_news) {
                self.follow_list(name(view, port), port, hold, &mut number, now);
            }
        }
    }

    /// Forgets the lists of a service that are not held any more.
    fn forget(&mut self, before: &ServiceView, now: Option<&ServiceView>) {
        let now = now.filter(|now| now.key == before.key).into_iter().flat_map(held);
        let stay: BTreeSet<_> = now.map(|(port, _)| &port.key).collect();
        for (port, _) in held(before).filter(|(port, _)| !stay.contains(&port.key)) {
            self.remove(&name(before, port));
        }
    }

    fn remove(&mut self, name: &Arc<Name>) -> Option<List> {
        let list = self.lists.remove(name)?;
        self.turns.remove(&(list.turn, Arc::clone(name)));
        Some(list)
    }

    fn follow_list(&mut self, name: Arc<Name>, port: &PortView, hold: &Hold, number: &mut u64, now: Instant) {
        let backends: BTreeSet<SocketAddr> = hold.probes(port.key.transport).collect();
        let before = self.remove(&name).filter(|list| list.begun == hold.begun);
        let mut list = before.unwrap_or_else(|| {
            *number += 1;
            let (due, known) = (BTreeSet::new(), BTreeMap::new());
            List { turn: Turn::First(*number), begun: hold.begun, due, known }
        });
        list.follow(&backends, now);
        if list.due.is_empty() {
            return;
        }
        if let Turn::Again(at) = list.turn {
            list.turn = list.after(at);
        }
        self.insert(name, list);
    }

    fn insert(&mut self, name: Arc<Name>, list: List) {
        self.turns.insert((list.turn, Arc::clone(&name)));
        self.lists.insert(name, list);
    }

    /// When the next turn is, but not before this time.
    pub(super) fn next(&self, earliest: Instant) -> Option<Instant> {
        let (turn, _) = self.turns.first()?;
        Some(match turn {
            Turn::First(_) => earliest,
            Turn::Again(at) => earliest.max(*at),
        })
    }

    /// Whose turn it is. It is asked again at that time.
    pub(super) fn take_first(&mut self, now: Instant, again: Instant) -> Option<Target> {
        let (turn, name) = self.turns.pop_first()?;
        let mut list = self.lists.remove(&name)?;
        if let Turn::First(number) = turn {
            self.served = number;
        }
        let backend = list.take_first(again);
        list.turn = list.after(now);
        self.insert(Arc::clone(&name), list);
        Some(Target { list: name, backend: backend? })
    }
}

/// The ports of which a list is held.
fn held(view: &ServiceView) -> impl Iterator<Item = (&PortView, &Arc<Hold>)> {
    view.ports.iter().filter_map(|port| Some((port, port.hold.as_ref()?)))
}

/// Whether it held this very list already; one of a service's thousands of ports leaves the others alone.
fn has(before: &ServiceView, now: &ServiceView, (port, hold): (&PortView, &Arc<Hold>)) -> bool {
    let found = before.ports.binary_search_by(|other| other.key.cmp(&port.key));
    let other = found.ok().and_then(|index| before.ports.get(index)?.hold.as_ref());
    before.key == now.key && other.is_some_and(|other| Arc::ptr_eq(other, hold))
}

fn name(view: &ServiceView, port: &PortView) -> Arc<Name> {
    Arc::new(Name { service: view.key.clone(), port: port.key.clone() })
}

#[cfg(test)]
mod tests;
