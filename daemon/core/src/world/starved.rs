//! Services for which the maps have no room, in the order in which they are tried again when room comes free.
//!
//! Invariant: namespaces take turns, and within one the oldest service comes first; so one tenant's thousands do not
//! keep another one's only service waiting. As many services are tried as there is freed room for, and each is tried in
//! the end, because the retries of failed services include these.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use super::World;
use super::plan::PlanError;
use crate::keys::ServiceKey;
use crate::limits;
use crate::op::ServiceId;

type Turn = (i64, ServiceKey, ServiceId);

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

    fn put(&mut self, turn: Turn) {
        self.remove(turn.2);
        let namespace = turn.1.name.namespace();
        match self.namespaces.get_mut(namespace) {
            Some(queue) => drop(queue.insert(turn.clone())),
            None => drop(self.namespaces.insert(namespace.into(), BTreeSet::from([turn.clone()]))),
        }
        self.turns.insert(turn.2, turn);
    }

    fn remove(&mut self, id: ServiceId) {
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
    fn next(&mut self) -> Option<ServiceId> {
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
            Err(PlanError::Slots(_) | PlanError::Indices(_) | PlanError::Frontends(_)) => {
                let Some(known) = self.tables.get(id) else { return self.count_impossible() };
                let created = known.facts.as_ref().and_then(|facts| facts.meta.created);
                let turn = (created.map_or(i64::MAX, |created| created.0), known.key.clone(), id);
                self.starved.put(turn);
            }
            Ok(_) | Err(PlanError::List(_)) => self.starved.remove(id),
        }
    }

    /// Tries as many services again, in turn, as room came free for.
    pub(super) fn feed(&mut self) {
        let room = core::mem::take(&mut self.starved.freed).min(limits::FED_PER_BATCH);
        let fed: Vec<ServiceId> = (0..room).map_while(|_| self.starved.next()).collect();
        fed.into_iter().for_each(|id| self.retry(id));
    }
}
