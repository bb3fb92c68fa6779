//! Limits how often one address is probed, however many held lists have it.
//!
//! Invariant: one address is probed once per [`ADDRESS_GAP`]. The namespaces that have it in held lists take turns,
//! so one with thousands of ports there never starves the backends of others. The namespaces also take turns over all
//! free addresses, so no backend waits for another namespace's addresses. A waiting backend is dropped with its list,
//! and an address once no backend waits for it and its gap is over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use tokio::time::Instant;

use super::fair_queue::{FairQueue, Turn};

/// The time between two probes of one address: each node probes it at most three times per second.
pub(super) const ADDRESS_GAP: Duration = Duration::from_millis(333);

/// The sequence number of a waiting backend.
pub(super) type ArrivalOrder = u64;

#[derive(Debug)]
struct AddressQueue<T> {
    free: Instant,
    waiting: BTreeMap<String, BTreeMap<ArrivalOrder, T>>,
    /// The namespace that had the last turn.
    last: String,
}

impl<T> AddressQueue<T> {
    fn new(free: Instant) -> Self {
        Self { free, waiting: BTreeMap::new(), last: String::new() }
    }

    /// The namespace that has the next turn here, if any backend waits.
    fn next_namespace(&self) -> Option<&String> {
        let after = self.waiting.range::<str, _>((Excluded(self.last.as_str()), Unbounded)).next();
        Some(after.or_else(|| self.waiting.first_key_value())?.0)
    }

    fn next(&mut self) -> Option<T> {
        let namespace = self.next_namespace()?.clone();
        let queue = self.waiting.get_mut(&namespace)?;
        let (_, first) = queue.pop_first()?;
        if queue.is_empty() {
            self.waiting.remove(&namespace);
        }
        self.last = namespace;
        Some(first)
    }
}

/// Every recently probed address, with the backends that wait for it.
#[derive(Debug)]
pub(super) struct AddressQueues<T> {
    all: BTreeMap<IpAddr, AddressQueue<T>>,
    /// The addresses that backends wait for, each under the namespace that has the next turn there.
    turns: FairQueue<IpAddr>,
    /// The other addresses, and when each is free again.
    idle: BTreeSet<(Instant, IpAddr)>,
    arrivals: ArrivalOrder,
}

impl<T> Default for AddressQueues<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), turns: FairQueue::default(), idle: BTreeSet::new(), arrivals: 0 }
    }
}

impl<T> AddressQueues<T> {
    /// Takes a free address; otherwise the backend that `who` makes waits for it, at the returned place.
    pub(super) fn try_acquire(
        &mut self,
        address: IpAddr,
        now: Instant,
        namespace: &str,
        who: impl FnOnce() -> T,
    ) -> Option<ArrivalOrder> {
        let mut found = self.remove(address).unwrap_or_else(|| AddressQueue::new(now));
        let waits = found.free > now || !found.waiting.is_empty();
        if waits {
            self.arrivals += 1;
            found.waiting.entry(namespace.to_owned()).or_default().insert(self.arrivals, who());
        } else {
            found.free = now + ADDRESS_GAP;
        }
        self.insert(address, found);
        waits.then_some(self.arrivals)
    }

    fn insert(&mut self, address: IpAddr, found: AddressQueue<T>) {
        match found.next_namespace() {
            Some(namespace) => self.turns.insert(namespace, Turn::Again(found.free), address),
            None => drop(self.idle.insert((found.free, address))),
        }
        self.all.insert(address, found);
    }

    fn remove(&mut self, address: IpAddr) -> Option<AddressQueue<T>> {
        let found = self.all.remove(&address)?;
        match found.next_namespace() {
            Some(namespace) => self.turns.remove(namespace, Turn::Again(found.free), address),
            None => drop(self.idle.remove(&(found.free, address))),
        }
        Some(found)
    }

    pub(super) fn cancel_wait(&mut self, address: IpAddr, namespace: &str, place: ArrivalOrder) {
        let Some(mut found) = self.remove(address) else { return };
        if let Some(queue) = found.waiting.get_mut(namespace) {
            queue.remove(&place);
            if queue.is_empty() {
                found.waiting.remove(namespace);
            }
        }
        self.insert(address, found);
    }

    /// When the next address is free for a waiting backend, from `earliest` on, or can be dropped.
    pub(super) fn next(&self, earliest: Instant) -> Option<Instant> {
        let unwanted = self.idle.first().map(|(at, _)| *at);
        unwanted.into_iter().chain(self.turns.next(earliest)).min()
    }

    /// A waiting backend at an address that is free now; the backend takes the address.
    pub(super) fn take_waiting(&mut self, now: Instant) -> Option<T> {
        while let Some((at, address)) = self.idle.first().copied().filter(|(at, _)| *at <= now) {
            self.idle.remove(&(at, address));
            self.all.remove(&address);
        }
        let (_, address) = self.turns.take(now)?;
        let mut found = self.remove(address)?;
        let who = found.next();
        found.free = now + ADDRESS_GAP;
        self.insert(address, found);
        who
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
