//! A queue of services for which there is no room, in the order in which they are tried again when room comes free.
//!
//! Invariant: namespaces take turns, and within one the oldest service comes first; so one tenant's thousands do not
//! keep another one's only service waiting. As many services are tried as there is freed room for, and each is tried in
//! the end, because the retries of failed services include these. Services that are served and would have a table if
//! there were room wait by themselves, so that they take no turn of those; of them only those are tried that would find
//! room, and the others go on waiting without a word. So do services that may ask for no more frontends
//! ([`super::demand`]).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::ops::Bound;

use crate::keys::ServiceKey;
use crate::op::ServiceId;
use crate::tables::KnownService;

pub(super) type RetryTurn = (i64, ServiceKey, ServiceId);

/// The services without room in the maps.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    namespaces: BTreeMap<Arc<str>, BTreeSet<RetryTurn>>,
    turns: BTreeMap<ServiceId, RetryTurn>,
    /// The namespace that had the last turn.
    last: Option<Arc<str>>,
    /// Room in the maps that came free since a service was tried.
    freed: usize,
}

impl RetryQueue {
    /// Notes that room in the maps came free.
    pub(super) fn record_freed(&mut self, room: usize) {
        self.freed = if self.turns.is_empty() { 0 } else { self.freed.saturating_add(room) };
    }

    /// How much room came free since this was asked.
    pub(super) const fn take_freed(&mut self) -> usize {
        core::mem::replace(&mut self.freed, 0)
    }

    /// How many namespaces have services here.
    pub(super) fn namespace_count(&self) -> usize {
        self.namespaces.len()
    }

    pub(super) fn put(&mut self, turn: RetryTurn) {
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

/// The turn of a service among those that wait.
pub(super) fn retry_turn(known: &KnownService, id: ServiceId) -> RetryTurn {
    let created = known.facts.as_ref().and_then(|facts| facts.meta.created);
    (created.map_or(i64::MAX, |created| created.0), known.key.clone(), id)
}
