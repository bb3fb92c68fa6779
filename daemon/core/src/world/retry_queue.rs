//! A queue of services that wait for capacity, in order of retry.
//!
//! Invariant: namespaces take turns, and within one the oldest service comes first, so one tenant's thousands do not
//! delay another's only service. Each freed unit of capacity allows one retry. Every service is retried eventually,
//! because the retries of failed services include these. Services that wait for a Maglev table or for more demand
//! ([`super::demand`]) have queues of their own.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::ops::Bound;

use crate::keys::ServiceKey;
use crate::op::ServiceId;
use crate::tables::KnownService;

pub(super) type RetryTurn = (i64, ServiceKey, ServiceId);

/// Waiting services by namespace.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    namespaces: BTreeMap<Arc<str>, BTreeSet<RetryTurn>>,
    turns: BTreeMap<ServiceId, RetryTurn>,
    last: Option<Arc<str>>,
    /// Capacity freed since the last retries.
    freed: usize,
}

impl RetryQueue {
    pub(super) fn record_freed(&mut self, room: usize) {
        self.freed = if self.turns.is_empty() { 0 } else { self.freed.saturating_add(room) };
    }

    pub(super) const fn take_freed(&mut self) -> usize {
        core::mem::replace(&mut self.freed, 0)
    }

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

    /// Takes the oldest service of the next namespace. The plan puts it back if it does not fit.
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

/// A service's position in its namespace's queue.
pub(super) fn retry_turn(known: &KnownService, id: ServiceId) -> RetryTurn {
    let created = known.facts.as_ref().and_then(|facts| facts.meta.created);
    (created.map_or(i64::MAX, |created| created.0), known.key.clone(), id)
}
