//! Which backend is probed next.
//!
//! Invariant: a new list has its first turn after a pause, so that the nodes of a cluster do not all begin at once. The
//! namespaces take turns, however many lists each has ([`super::turns`]). Within a namespace, lists of which no backend
//! was asked yet go first; the lists after them take turns, however many backends each has, and so do the backends of
//! one list. A backend of which the address was asked just now waits, and holds up no backend at other addresses; every
//! second turn is for backends that wait. A turn costs the logarithm of what is held.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::hold::{Hold, ProbeAnswer, ProbeResult};
use holdfast_core::keys::{PortKey, ServiceKey};
use holdfast_core::op::ServiceId;
use holdfast_core::snapshot::{PortView, ServiceView, Snapshot};
use holdfast_core::time::Uptime;
use tokio::time::Instant;

use super::addresses::{Addresses, Arrival};
use super::turns::{Turn, Turns};

/// How many turns in a row may come to backends that have to wait for their addresses. Each of these no longer stands
/// in line for a turn, but for its address.
const WAITING_AT_ONCE: usize = 64;

/// A held list.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    service: ServiceKey,
    port: PortKey,
}

/// One backend of a held list that has its turn.
#[derive(Clone, Debug)]
pub(super) struct Target {
    list: Arc<Name>,
    pub(super) backend: SocketAddr,
}

impl Name {
    fn namespace(&self) -> &str {
        self.service.name.namespace()
    }
}

impl Target {
    pub(super) fn probed(self, answer: ProbeAnswer) -> ProbeResult {
        let Name { service, port } = &*self.list;
        ProbeResult { service: service.clone(), port: port.clone(), backend: self.backend, answer }
    }
}

#[derive(Debug)]
struct List {
    turn: Turn,
    /// Until then the list takes no turns, because it is new.
    pauses: Option<Instant>,
    /// When the hold began: a list that returned and was lost again is a new one.
    begun: Uptime,
    due: BTreeSet<(Instant, SocketAddr)>,
    known: BTreeMap<SocketAddr, Instant>,
    /// The backends that wait for their addresses, each at its place there.
    waiting: BTreeMap<SocketAddr, Arrival>,
    /// The backends that were asked out of turn: once is enough.
    hurried: BTreeSet<SocketAddr>,
}

impl List {
    fn new(turn: Turn, begun: Uptime, pauses: Instant) -> Self {
        let due = BTreeSet::new();
        let known = BTreeMap::new();
        let waiting = BTreeMap::new();
        Self { turn, pauses: Some(pauses), begun, due, known, waiting, hurried: BTreeSet::new() }
    }

    /// Plans these backends and no others; a new one is due at once. Gives the backends that wait no more, with their
    /// places.
    fn follow(&mut self, backends: &BTreeSet<SocketAddr>, now: Instant) -> Vec<(SocketAddr, Arrival)> {
        let Self { due, known, waiting, hurried, .. } = self;
        let stays = |backend: &SocketAddr| backends.contains(backend);
        known.retain(|backend, at| {
            stays(backend) || {
                due.remove(&(*at, *backend));
                false
            }
        });
        hurried.retain(stays);
        let left = waiting.iter().filter(|(backend, _)| !stays(backend)).map(|(it, place)| (*it, *place));
        let left: Vec<_> = left.collect();
        waiting.retain(|backend, _| stays(backend));
        for backend in backends {
            if !self.known.contains_key(backend) {
                self.plan(*backend, now);
            }
        }
        left
    }

    /// Plans a backend for this time, if it was planned for later. It does so once for each backend.
    fn hurry(&mut self, backend: SocketAddr, at: Instant) {
        let Some(planned) = self.known.get(&backend).copied() else { return };
        if self.hurried.insert(backend) && self.due.remove(&(planned, backend)) {
            self.plan(backend, planned.min(at));
            self.turn = self.turn.min(Turn::Again(at));
        }
    }

    fn plan(&mut self, backend: SocketAddr, at: Instant) {
        self.due.insert((at, backend));
        self.known.insert(backend, at);
    }

    /// The backend that has waited longest.
    fn take_first(&mut self) -> Option<SocketAddr> {
        self.due.pop_first().map(|(_, backend)| backend)
    }

    /// The list's next turn, if it had one at this time or before; none while all its backends wait for their
    /// addresses.
    fn after(&self, last: Instant) -> Option<Turn> {
        self.due.first().map(|(at, _)| Turn::Again(last.max(*at)))
    }

    /// The list's next turn after its plan has changed.
    fn goes_on(&self) -> Option<Turn> {
        match self.turn {
            Turn::Again(at) => self.after(at),
            first @ Turn::First(_) => Some(first),
        }
    }
}

/// The lists of one namespace.
#[derive(Debug, Default)]
struct Lists {
    all: BTreeMap<Arc<Name>, List>,
    /// The number of the list that had its first turn last.
    served: u64,
}

/// The number that was given last to a new list of each namespace.
type Numbers = BTreeMap<String, u64>;

/// All lists that are probed.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// New lists, and until when they pause.
    pausing: BTreeSet<(Instant, Arc<Name>)>,
    turns: Turns<Arc<Name>>,
    addresses: Addresses<Target>,
    namespaces: BTreeMap<String, Lists>,
    /// What was seen of each service last; most do not change from one look to the next.
    seen: BTreeMap<ServiceId, Arc<ServiceView>>,
    /// Whether the turn is for a backend that has waited for its address.
    is_for_waiting: bool,
}

impl Schedule {
    /// Takes over what is held now; each new list pauses for as long as `pause` says.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, now: Instant, pause: &dyn Fn() -> Duration) {
        let gone: Vec<_> = self.seen.keys().filter(|id| !snapshot.held.contains(id)).copied().collect();
        for id in gone {
            if let Some(view) = self.seen.remove(&id) {
                self.forget(&view, None);
            }
        }
        let mut numbers = Numbers::new();
        for id in snapshot.held.iter() {
            let Some(view) = snapshot.services.get(*id) else { continue };
            if self.seen.get(id).is_some_and(|seen| Arc::ptr_eq(seen, view)) {
                continue;
            }
            let before = self.seen.insert(*id, Arc::clone(view));
            if let Some(before) = &before {
                self.forget(before, Some(view));
            }
            let is_news = |list: &(_, _)| !before.as_ref().is_some_and(|before| has(before, view, *list));
            for (port, hold) in held(view).filter(is_news) {
                let times = (now, now + pause());
                self.follow_list(name(view, port), port, hold, &mut numbers, times);
            }
        }
    }

    /// Forgets the lists of a service that are not held any more.
    fn forget(&mut self, before: &ServiceView, now: Option<&ServiceView>) {
        let now = now.filter(|now| now.key == before.key).into_iter().flat_map(held);
        let stay: BTreeSet<_> = now.map(|(port, _)| &port.key).collect();
        for (port, _) in held(before).filter(|(port, _)| !stay.contains(&port.key)) {
            let name = name(before, port);
            if let Some(list) = self.remove(&name) {
                self.leave(&name, list.waiting.into_iter());
            }
        }
    }

    fn leave(&mut self, name: &Name, waiting: impl Iterator<Item = (SocketAddr, Arrival)>) {
        waiting.for_each(|(backend, place)| self.addresses.leave(backend.ip(), name.namespace(), place));
    }

    fn remove(&mut self, name: &Arc<Name>) -> Option<List> {
        let lists = self.namespaces.get_mut(name.namespace())?;
        let list = lists.all.remove(name)?;
        if lists.all.is_empty() {
            self.namespaces.remove(name.namespace());
        }
        self.turns.remove(name.namespace(), list.turn, Arc::clone(name));
        if let Some(pauses) = list.pauses {
            self.pausing.remove(&(pauses, Arc::clone(name)));
        }
        Some(list)
    }

    fn follow_list(
        &mut self,
        name: Arc<Name>,
        port: &PortView,
        hold: &Hold,
        numbers: &mut Numbers,
        (now, later): (Instant, Instant),
    ) {
        let transport = port.key.transport;
        let backends: BTreeSet<SocketAddr> = hold.probe_targets(transport).collect();
        let before = self.remove(&name);
        let (same, other) = before.map_or((None, None), |list| {
            if list.begun == hold.begun { (Some(list), None) } else { (None, Some(list)) }
        });
        self.leave(&name, other.into_iter().flat_map(|list| list.waiting));
        let mut list = same.unwrap_or_else(|| {
            let served = || self.namespaces.get(name.namespace()).map_or(0, |lists| lists.served);
            let number = numbers.entry(name.namespace().to_owned()).or_insert_with(served);
            *number += 1;
            List::new(Turn::First(*number), hold.begun, later)
        });
        let left = list.follow(&backends, now);
        self.leave(&name, left.into_iter());
        hold.urgent_probe_targets(transport).for_each(|backend| list.hurry(backend, later));
        if list.known.is_empty() {
            return;
        }
        let turn = list.goes_on();
        self.insert(name, list, turn);
    }

    fn insert(&mut self, name: Arc<Name>, mut list: List, turn: Option<Turn>) {
        list.turn = turn.unwrap_or(list.turn);
        match (list.pauses, turn) {
            (Some(pauses), _) => drop(self.pausing.insert((pauses, Arc::clone(&name)))),
            (None, Some(turn)) => self.turns.insert(name.namespace(), turn, Arc::clone(&name)),
            (None, None) => {}
        }
        self.lists_of(&name).all.insert(name, list);
    }

    fn lists_of(&mut self, name: &Name) -> &mut Lists {
        self.namespaces.entry(name.namespace().to_owned()).or_default()
    }

    /// When the next turn is, but not before this time.
    pub(super) fn next(&self, earliest: Instant) -> Option<Instant> {
        let pausing = self.pausing.first().map(|(at, _)| *at);
        let all = [self.turns.next(earliest), pausing, self.addresses.next(earliest)];
        Some(earliest.max(all.into_iter().flatten().min()?))
    }

    /// The backend that has its turn now, if any. It is asked again at the time `again`.
    pub(super) fn take_first(&mut self, now: Instant, again: Instant) -> Option<Target> {
        self.end_pauses(now);
        // However many backends wait for addresses, those that need not wait get every second turn, and no more.
        self.is_for_waiting = !self.is_for_waiting;
        if self.is_for_waiting {
            return self.take_waiting(now, again).or_else(|| self.take_turns(now, again));
        }
        self.take_turns(now, again).or_else(|| self.take_waiting(now, again))
    }

    fn take_turns(&mut self, now: Instant, again: Instant) -> Option<Target> {
        (0..WAITING_AT_ONCE).find_map(|_| self.take_turn(now, again))
    }

    fn end_pauses(&mut self, now: Instant) {
        while let Some((at, name)) = self.pausing.first().filter(|(at, _)| *at <= now).cloned() {
            self.pausing.remove(&(at, Arc::clone(&name)));
            if let Some(list) = self.lists_of(&name).all.get_mut(&name) {
                list.pauses = None;
                let turn = list.turn;
                self.turns.insert(name.namespace(), turn, Arc::clone(&name));
            }
        }
    }

    /// The next backend, unless it has to wait for its address.
    fn take_turn(&mut self, now: Instant, again: Instant) -> Option<Target> {
        let (turn, name) = self.turns.take(now)?;
        if let Turn::First(number) = turn {
            self.lists_of(&name).served = number;
        }
        let mut list = self.remove(&name)?;
        let target = list.take_first().map(|backend| Target { list: Arc::clone(&name), backend });
        let waits = target.as_ref().and_then(|target| {
            let ip = target.backend.ip();
            let place = self.addresses.take(ip, now, name.namespace(), || target.clone())?;
            Some((target.backend, place))
        });
        match (waits, &target) {
            (Some((backend, place)), _) => drop(list.waiting.insert(backend, place)),
            (None, Some(target)) => list.plan(target.backend, again),
            (None, None) => {}
        }
        let turn = list.after(now);
        list.turn = Turn::Again(now);
        self.insert(name, list, turn);
        target.filter(|_| waits.is_none())
    }

    /// A backend that has waited for its address and has it now.
    fn take_waiting(&mut self, now: Instant, again: Instant) -> Option<Target> {
        let target = self.addresses.take_waiting(now)?;
        let mut list = self.remove(&target.list)?;
        list.waiting.remove(&target.backend);
        list.plan(target.backend, again);
        let turn = list.goes_on();
        self.insert(Arc::clone(&target.list), list, turn);
        Some(target)
    }
}

/// The ports of which a list is held.
fn held(view: &ServiceView) -> impl Iterator<Item = (&PortView, &Arc<Hold>)> {
    view.ports.iter().filter_map(|port| Some((port, port.hold.as_ref()?)))
}

/// Whether the service held this very list before. So a change of one of its thousands of ports leaves the other lists
/// alone.
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
