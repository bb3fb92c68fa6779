//! How often one address is asked, whatever is held of it.
//!
//! Invariant: one address is asked once in [`ADDRESS_GAP`], and the namespaces that have it in held lists take turns,
//! so one of them with thousands of ports there keeps no backend of the others from being asked. A backend that waits
//! is forgotten with its list, and an address when no backend waits for it and it may be asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use tokio::time::Instant;

/// Between two probes of one address: three in a second from each node.
pub(super) const ADDRESS_GAP: Duration = Duration::from_millis(333);

/// A place in the order in which backends came.
pub(super) type Place = u64;

#[derive(Debug)]
struct Address<T> {
    free: Instant,
    /// The backends that wait, by namespace, in the order in which they came.
    waiting: BTreeMap<String, BTreeMap<Place, T>>,
    /// The namespace that had the last turn.
    last: String,
}

impl<T> Address<T> {
    fn next(&mut self) -> Option<T> {
        let after = self.waiting.range::<str, _>((Excluded(self.last.as_str()), Unbounded)).next();
        let namespace = after.or_else(|| self.waiting.first_key_value())?.0.clone();
        let queue = self.waiting.get_mut(&namespace)?;
        let (_, first) = queue.pop_first()?;
        if queue.is_empty() {
            self.waiting.remove(&namespace);
        }
        self.last = namespace;
        Some(first)
    }
}

/// Every address that was asked a moment ago, with the backends that wait for it.
#[derive(Debug)]
pub(super) struct Addresses<T> {
    all: BTreeMap<IpAddr, Address<T>>,
    /// From when on each of them may be asked.
    free: BTreeSet<(Instant, IpAddr)>,
    came: Place,
}

impl<T> Default for Addresses<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), free: BTreeSet::new(), came: 0 }
    }
}

impl<T> Addresses<T> {
    /// Takes an address that may be asked now; otherwise the backend that `who` makes waits for it, at the place that
    /// is returned.
    pub(super) fn take(
        &mut self,
        address: IpAddr,
        now: Instant,
        namespace: &str,
        who: impl FnOnce() -> T,
    ) -> Option<Place> {
        let Some(found) = self.all.get_mut(&address).filter(|it| it.free > now || !it.waiting.is_empty())
        else {
            self.set_free(address, now + ADDRESS_GAP);
            return None;
        };
        self.came += 1;
        found.waiting.entry(namespace.to_owned()).or_default().insert(self.came, who());
        Some(self.came)
    }

    fn set_free(&mut self, address: IpAddr, free: Instant) {
        let new = Address { free, waiting: BTreeMap::new(), last: String::new() };
        let found = self.all.entry(address).or_insert(new);
        self.free.remove(&(found.free, address));
        found.free = free;
        self.free.insert((free, address));
    }

    /// Forgets a backend that waits no more.
    pub(super) fn leave(&mut self, address: IpAddr, namespace: &str, place: Place) {
        let Some(waiting) = self.all.get_mut(&address).map(|found| &mut found.waiting) else { return };
        let Some(queue) = waiting.get_mut(namespace) else { return };
        queue.remove(&place);
        if queue.is_empty() {
            waiting.remove(namespace);
        }
    }

    /// When the next address is free for a backend that waits, or can be forgotten.
    pub(super) fn next(&self) -> Option<Instant> {
        self.free.first().map(|(at, _)| *at)
    }

    /// A backend that has waited, if its address is free now; the address is taken.
    pub(super) fn take_waiting(&mut self, now: Instant) -> Option<T> {
        while let Some((at, address)) = self.free.first().copied().filter(|(at, _)| *at <= now) {
            if let Some(who) = self.all.get_mut(&address).and_then(Address::next) {
                self.set_free(address, now + ADDRESS_GAP);
                return Some(who);
            }
            self.free.remove(&(at, address));
            self.all.remove(&address);
        }
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
