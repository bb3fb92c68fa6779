//! Services for which the maps have no room, in the order in which they are tried again when room comes free.
//!
//! Invariant: namespaces take turns, and within one the oldest service comes first; so one tenant's thousands do not
//! keep another one's only service waiting. As many services are tried as there is freed room for, and each is tried in
//! the end, because the retries of failed services include these. Services that are served and would have a table if
//! there were room wait by themselves, so that they take no turn of those; of them only those are tried that would find
//! room, and the others go on waiting without a word. So do services that may ask for no more frontends
//! ([`super::asked`]).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use super::World;
use super::place::NoPlace;
use super::plan::PlanError;
use crate::keys::ServiceKey;
use crate::limits;
use crate::op::ServiceId;
use crate::service::Service;
use crate::work;

pub(super) type Turn = (i64, ServiceKey, ServiceId);

/// The services without room in the maps.
#[derive(Debug, Default)]
pub(super) struct Starved {
    namespaces: BTreeMap<Arc<str>, BTreeSet<Turn>>,
    turns: BTreeMap<ServiceId, Turn>,
    /// The namespace that had the last turn.
    last: Option<Arc<str>>,
    /// Room in the maps that came free since a service was tried.
    freed: usize,
}

impl Starved {
    /// Notes that room in the maps came free.
    pub(super) fn free(&mut self, room: usize) {
        self.freed = if self.turns.is_empty() { 0 } else { self.freed.saturating_add(room) };
    }

    /// Whether room came free since this was asked.
    pub(super) const fn take_freed(&mut self) -> bool {
        core::mem::replace(&mut self.freed, 0) > 0
    }

    /// How many namespaces have services here.
    pub(super) fn namespaces(&self) -> usize {
        self.namespaces.len()
    }

    pub(super) fn put(&mut self, turn: Turn) {
        self.remove(turn.2);
        let namespace = turn.1.name.namespace();
        match self.namespaces.get_mut(namespace) {
            Some(queue) => drop(queue.insert(turn.clone())),
            None => drop(self.namespaces.insert(namespace.into(), BTreeSet::from([turn.clone()]))),
        }
        self.turns.insert(turn.2, turn);
    }

    pub(super) fn remove(&mut self, id: ServiceId) {
        let Some(turn) = self.turns.remove(&id) else { return };
        let namespace = turn.1.name.namespace();
        if let Some(queue) = self.namespaces.get_mut(namespace) {
            queue.remove(&turn);
            if queue.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
    }

    /// Takes the oldest service of the namespace that has the next turn. The plan puts it back if it finds no room for
    /// it.
    pub(super) fn next(&mut self) -> Option<ServiceId> {
        let after = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut later = self.namespaces.range::<Arc<str>, _>((after, Bound::Unbounded));
        let (namespace, queue) = later.next().or_else(|| self.namespaces.first_key_value())?;
        let id = queue.first()?.2;
        self.last = Some(Arc::clone(namespace));
        self.remove(id);
        Some(id)
    }
}

impl World {
    /// Notes whether a planned service found room.
    pub(super) fn account_for_room<T>(&mut self, id: ServiceId, planned: &Result<T, PlanError>) {
        match planned {
            Err(
                PlanError::Place(NoPlace::Slots(_) | NoPlace::Part { .. } | NoPlace::Members(_))
                | PlanError::Index(_)
                | PlanError::Frontends(_)
                | PlanError::Part { .. }
                | PlanError::Chosen(_),
            ) => {
                let Some(turn) = self.turn(id) else { return self.services.count_impossible() };
                self.starved.put(turn);
            }
            Ok(_) | Err(PlanError::Place(NoPlace::List(_))) => self.starved.remove(id),
        }
        // The last piece of a service says it of all its ports.
        if !self.services.is_unfinished(id) {
            self.account_for_tables(id);
        }
    }

    fn account_for_tables(&mut self, id: ServiceId) {
        let lacks = |service: &Service| service.ports.iter().any(|port| port.lacking().next().is_some());
        let turn = self.services.get(id).is_some_and(lacks).then(|| self.turn(id)).flatten();
        match turn {
            Some(turn) => self.tableless.put(turn),
            None => self.tableless.remove(id),
        }
    }

    pub(super) fn turn(&self, id: ServiceId) -> Option<Turn> {
        let known = self.tables.get(id)?;
        let created = known.facts.as_ref().and_then(|facts| facts.meta.created);
        Some((created.map_or(i64::MAX, |created| created.0), known.key.clone(), id))
    }

    /// Tries as many services again, in turn, as room came free for.
    pub(super) fn feed(&mut self) {
        let room = core::mem::take(&mut self.starved.freed).min(limits::FED_PER_BATCH);
        let fed: Vec<ServiceId> = (0..room).map_while(|_| self.starved.next()).collect();
        fed.into_iter().for_each(|id| self.services.retry(id, &self.tables));
        self.feed_tables();
        self.feed_asked();
    }

    /// Tries again the services that would find room for their tables now.
    fn feed_tables(&mut self) {
        if !self.tableless.take_freed() {
            return;
        }
        let waiting: Vec<_> = (0..limits::FED_PER_BATCH).map_while(|_| self.tableless.next()).collect();
        for id in waiting {
            if self.has_room_for_a_table(id) {
                self.services.retry(id, &self.tables);
            }
            self.account_for_tables(id);
        }
    }

    fn has_room_for_a_table(&self, id: ServiceId) -> bool {
        let share = self.tables.share(id);
        let ports = self.services.get(id).map_or(&[][..], |service| &service.ports);
        ports.iter().inspect(|_| work::done(1)).any(|port| self.space.has_room(port, share))
    }
}
