//! Schedules the probes of backends.
//!
//! Invariant: a new list has its first turn after a pause, so that the nodes of a cluster do not all begin at once.
//! The namespaces take turns, however many lists each has ([`super::fair_queue`]). Within a namespace, lists without
//! any probe yet go first; the other lists take turns, however many backends each has, and so do the backends of one
//! list. A backend at a just probed address waits, and delays no backend at other addresses; every second turn
//! is for waiting backends. A turn costs the logarithm of all held backends.

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

use super::addresses::{AddressQueues, ArrivalOrder};
use super::fair_queue::{FairQueue, Turn};

/// How many turns in a row may go to backends that must wait for their addresses. Each of these then queues for its
/// address instead of a turn.
const WAITING_AT_ONCE: usize = 64;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ListName {
    service: ServiceKey,
    port: PortKey,
}

/// One backend of a held list; it has the turn.
#[derive(Clone, Debug)]
pub(super) struct Target {
    list: Arc<ListName>,
    pub(super) backend: SocketAddr,
}

impl ListName {
    fn namespace(&self) -> &str {
        self.service.name.namespace()
    }
}

impl Target {
    pub(super) fn into_probed(self, answer: ProbeAnswer) -> ProbeResult {
        let ListName { service, port } = &*self.list;
        ProbeResult { service: service.clone(), port: port.clone(), backend: self.backend, answer }
    }
}

#[derive(Debug)]
struct ProbeList {
    turn: Turn,
    /// The end of the pause of a new list.
    pauses: Option<Instant>,
    /// When the hold began: a list that returned and was lost again is a new one.
    hold_begun: Uptime,
    due: BTreeSet<(Instant, SocketAddr)>,
    due_times: BTreeMap<SocketAddr, Instant>,
    /// The backends that wait for their addresses, each with its place there.
    waiting: BTreeMap<SocketAddr, ArrivalOrder>,
    /// The backends that were probed out of turn, which happens once.
    expedited: BTreeSet<SocketAddr>,
}

impl ProbeList {
    fn new(turn: Turn, begun: Uptime, pauses: Instant) -> Self {
        let due = BTreeSet::new();
        let known = BTreeMap::new();
        let waiting = BTreeMap::new();
        Self {
            turn,
            pauses: Some(pauses),
            hold_begun: begun,
            due,
            due_times: known,
            waiting,
            expedited: BTreeSet::new(),
        }
    }

    /// Plans exactly these backends; a new one is due at once. Returns the backends that no longer wait, with their
    /// places.
    fn follow(&mut self, backends: &BTreeSet<SocketAddr>, now: Instant) -> Vec<(SocketAddr, ArrivalOrder)> {
        let Self { due, due_times: known, waiting, expedited: hurried, .. } = self;
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
            if !self.due_times.contains_key(backend) {
                self.plan(*backend, now);
            }
        }
        left
    }

    /// Plans a backend earlier if it was planned for later, once per backend.
    fn expedite(&mut self, backend: SocketAddr, at: Instant) {
        let Some(planned) = self.due_times.get(&backend).copied() else { return };
        if self.expedited.insert(backend) && self.due.remove(&(planned, backend)) {
            self.plan(backend, planned.min(at));
            self.turn = self.turn.min(Turn::Again(at));
        }
    }

    fn plan(&mut self, backend: SocketAddr, at: Instant) {
        self.due.insert((at, backend));
        self.due_times.insert(backend, at);
    }

    /// The backend that has waited longest.
    fn take_first(&mut self) -> Option<SocketAddr> {
        self.due.pop_first().map(|(_, backend)| backend)
    }

    /// The list's next turn after a turn at `last`; none while all its backends wait for their addresses.
    fn turn_after(&self, last: Instant) -> Option<Turn> {
        self.due.first().map(|(at, _)| Turn::Again(last.max(*at)))
    }

    /// The list's next turn after its plan has changed.
    fn next_turn(&self) -> Option<Turn> {
        match self.turn {
            Turn::Again(at) => self.turn_after(at),
            first @ Turn::First(_) => Some(first),
        }
    }
}

#[derive(Debug, Default)]
struct NamespaceLists {
    all: BTreeMap<Arc<ListName>, ProbeList>,
    /// The number of the list that last had its first turn.
    served: u64,
}

/// The last number of a new list in each namespace.
type Numbers = BTreeMap<String, u64>;

/// All lists that are probed.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// New lists, and the ends of their pauses.
    pausing: BTreeSet<(Instant, Arc<ListName>)>,
    turns: FairQueue<Arc<ListName>>,
    addresses: AddressQueues<Target>,
    namespaces: BTreeMap<String, NamespaceLists>,
    /// The last view of each service; most do not change between scans.
    services: BTreeMap<ServiceId, Arc<ServiceView>>,
    /// Whether the turn is for a waiting backend.
    prefers_waiting: bool,
}

impl Schedule {
    /// Takes the held lists; each new one pauses for as long as `pause` returns.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, now: Instant, pause: &dyn Fn() -> Duration) {
        let gone: Vec<_> = self.services.keys().filter(|id| !snapshot.held.contains(id)).copied().collect();
        for id in gone {
            if let Some(view) = self.services.remove(&id) {
                self.forget(&view, None);
            }
        }
        let mut numbers = Numbers::new();
        for id in snapshot.held.iter() {
            let Some(view) = snapshot.services.get(*id) else { continue };
            if self.services.get(id).is_some_and(|seen| Arc::ptr_eq(seen, view)) {
                continue;
            }
            let before = self.services.insert(*id, Arc::clone(view));
            if let Some(before) = &before {
                self.forget(before, Some(view));
            }
            let is_news =
                |list: &(_, _)| !before.as_ref().is_some_and(|before| had_hold(before, view, *list));
            for (port, hold) in held_ports(view).filter(is_news) {
                let times = (now, now + pause());
                self.follow_list(list_name(view, port), port, hold, &mut numbers, times);
            }
        }
    }

    /// Drops the lists of a service that are no longer held.
    fn forget(&mut self, before: &ServiceView, now: Option<&ServiceView>) {
        let now = now.filter(|now| now.key == before.key).into_iter().flat_map(held_ports);
        let stay: BTreeSet<_> = now.map(|(port, _)| &port.key).collect();
        for (port, _) in held_ports(before).filter(|(port, _)| !stay.contains(&port.key)) {
            let name = list_name(before, port);
            if let Some(list) = self.remove(&name) {
                self.cancel_waits(&name, list.waiting.into_iter());
            }
        }
    }

    fn cancel_waits(&mut self, name: &ListName, waiting: impl Iterator<Item = (SocketAddr, ArrivalOrder)>) {
        waiting
            .for_each(|(backend, place)| self.addresses.cancel_wait(backend.ip(), name.namespace(), place));
    }

    fn remove(&mut self, name: &Arc<ListName>) -> Option<ProbeList> {
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
        name: Arc<ListName>,
        port: &PortView,
        hold: &Hold,
        numbers: &mut Numbers,
        (now, later): (Instant, Instant),
    ) {
        let transport = port.key.transport;
        let backends: BTreeSet<SocketAddr> = hold.probe_targets(transport).collect();
        let before = self.remove(&name);
        let (same, other) = before.map_or((None, None), |list| {
            if list.hold_begun == hold.begun { (Some(list), None) } else { (None, Some(list)) }
        });
        self.cancel_waits(&name, other.into_iter().flat_map(|list| list.waiting));
        let mut list = same.unwrap_or_else(|| {
            let served = || self.namespaces.get(name.namespace()).map_or(0, |lists| lists.served);
            let number = numbers.entry(name.namespace().to_owned()).or_insert_with(served);
            *number += 1;
            ProbeList::new(Turn::First(*number), hold.begun, later)
        });
        let left = list.follow(&backends, now);
        self.cancel_waits(&name, left.into_iter());
        hold.urgent_probe_targets(transport).for_each(|backend| list.expedite(backend, later));
        if list.due_times.is_empty() {
            return;
        }
        let turn = list.next_turn();
        self.insert(name, list, turn);
    }

    fn insert(&mut self, name: Arc<ListName>, mut list: ProbeList, turn: Option<Turn>) {
        list.turn = turn.unwrap_or(list.turn);
        match (list.pauses, turn) {
            (Some(pauses), _) => drop(self.pausing.insert((pauses, Arc::clone(&name)))),
            (None, Some(turn)) => self.turns.insert(name.namespace(), turn, Arc::clone(&name)),
            (None, None) => {}
        }
        self.namespace_lists(&name).all.insert(name, list);
    }

    fn namespace_lists(&mut self, name: &ListName) -> &mut NamespaceLists {
        self.namespaces.entry(name.namespace().to_owned()).or_default()
    }

    /// When the next turn is, but not before `earliest`.
    pub(super) fn next(&self, earliest: Instant) -> Option<Instant> {
        let pausing = self.pausing.first().map(|(at, _)| *at);
        let all = [self.turns.next(earliest), pausing, self.addresses.next(earliest)];
        Some(earliest.max(all.into_iter().flatten().min()?))
    }

    /// The backend that has the turn now, if any. Its next probe is due at `again`.
    pub(super) fn take_first(&mut self, now: Instant, again: Instant) -> Option<Target> {
        self.end_pauses(now);
        // However many backends wait for addresses, the others get every second turn, and no more.
        self.prefers_waiting = !self.prefers_waiting;
        if self.prefers_waiting {
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
            if let Some(list) = self.namespace_lists(&name).all.get_mut(&name) {
                list.pauses = None;
                let turn = list.turn;
                self.turns.insert(name.namespace(), turn, Arc::clone(&name));
            }
        }
    }

    /// The next backend, unless it must wait for its address.
    fn take_turn(&mut self, now: Instant, again: Instant) -> Option<Target> {
        let (turn, name) = self.turns.take(now)?;
        if let Turn::First(number) = turn {
            self.namespace_lists(&name).served = number;
        }
        let mut list = self.remove(&name)?;
        let target = list.take_first().map(|backend| Target { list: Arc::clone(&name), backend });
        let waits = target.as_ref().and_then(|target| {
            let ip = target.backend.ip();
            let place = self.addresses.try_acquire(ip, now, name.namespace(), || target.clone())?;
            Some((target.backend, place))
        });
        match (waits, &target) {
            (Some((backend, place)), _) => drop(list.waiting.insert(backend, place)),
            (None, Some(target)) => list.plan(target.backend, again),
            (None, None) => {}
        }
        let turn = list.turn_after(now);
        list.turn = Turn::Again(now);
        self.insert(name, list, turn);
        target.filter(|_| waits.is_none())
    }

    /// A waiting backend at an address that is free now.
    fn take_waiting(&mut self, now: Instant, again: Instant) -> Option<Target> {
        let target = self.addresses.take_waiting(now)?;
        let mut list = self.remove(&target.list)?;
        list.waiting.remove(&target.backend);
        list.plan(target.backend, again);
        let turn = list.next_turn();
        self.insert(Arc::clone(&target.list), list, turn);
        Some(target)
    }
}

fn held_ports(view: &ServiceView) -> impl Iterator<Item = (&PortView, &Arc<Hold>)> {
    view.ports.iter().filter_map(|port| Some((port, port.hold.as_ref()?)))
}

/// Whether the service held this very list before. So a change to one of its thousands of ports leaves the other
/// lists alone.
fn had_hold(before: &ServiceView, now: &ServiceView, (port, hold): (&PortView, &Arc<Hold>)) -> bool {
    let found = before.ports.binary_search_by(|other| other.key.cmp(&port.key));
    let other = found.ok().and_then(|index| before.ports.get(index)?.hold.as_ref());
    before.key == now.key && other.is_some_and(|other| Arc::ptr_eq(other, hold))
}

fn list_name(view: &ServiceView, port: &PortView) -> Arc<ListName> {
    Arc::new(ListName { service: view.key.clone(), port: port.key.clone() })
}

#[cfg(test)]
mod tests;
