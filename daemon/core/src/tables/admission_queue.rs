//! Objects that wait for capacity: services beyond the limit with their slices, and slices beyond the limit of one
//! service.
//!
//! Invariant: the queue is bounded. Beyond the bound the namespace with the most bytes waiting loses its youngest
//! service, so one tenant's thousands never displace another tenant's one. Admission order: the source's precedence,
//! services with their object before those with slices alone, the namespace with the fewest admitted services, age,
//! name. An admitted service never loses its id to another.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;

use super::quota_ids::QuotaIds;
use crate::facts::{ServiceFacts, SliceFacts};
use crate::keys::{ServiceKey, SliceKey, Source};
use crate::limits;

/// A service's position in its namespace's queue: precedence of its source, whether it has only slices, its age, its
/// name.
type AdmissionRank = (Source, bool, i64, ServiceKey);

#[derive(Debug, Default)]
pub(crate) struct WaitingService {
    pub(crate) facts: Option<Arc<ServiceFacts>>,
    pub(crate) slices: BTreeMap<SliceKey, Arc<SliceFacts>>,
    /// `Some`: the service itself waits; `None`: only these slices do.
    rank: Option<AdmissionRank>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct NamespaceQueue {
    entries: BTreeMap<ServiceKey, WaitingService>,
    queue: BTreeSet<AdmissionRank>,
    bytes: usize,
}

#[derive(Debug, Default)]
pub(crate) struct AdmissionQueue {
    namespaces: BTreeMap<Arc<str>, NamespaceQueue>,
    /// The service of each waiting slice.
    slice_services: BTreeMap<SliceKey, ServiceKey>,
    services: usize,
    bytes: usize,
    /// Services that wait themselves.
    queued: usize,
    /// Sources of objects that the queue evicted.
    evicted_sources: BTreeSet<Source>,
}

impl AdmissionQueue {
    pub(crate) fn len(&self) -> usize {
        self.services + self.slice_services.len()
    }

    /// Whether some service waits, so that no newer one may overtake it.
    pub(crate) const fn has_queue(&self) -> bool {
        self.queued > 0
    }

    /// Takes the sources of evicted objects, which may relist now. Empty while the queue is more than half full.
    pub(crate) fn sources_to_relist(&mut self) -> BTreeSet<Source> {
        if self.bytes > limits::WAITING_BYTES_MAX / 2 {
            return BTreeSet::new();
        }
        core::mem::take(&mut self.evicted_sources)
    }

    pub(crate) fn put_service(&mut self, facts: Arc<ServiceFacts>) {
        let key = facts.key.clone();
        self.update_waiting(&key, true, |waiting| waiting.set_facts(Some(facts)));
        self.evict_over_limit();
    }

    /// Enqueues a slice: with its service if that is `without_room`, else for a position among the service's slices.
    pub(crate) fn put_slice(&mut self, service: &ServiceKey, facts: Arc<SliceFacts>, without_room: bool) {
        self.slice_services.insert(facts.key.clone(), service.clone());
        self.update_waiting(service, without_room, |waiting| waiting.put_slice(facts));
        self.evict_over_limit();
    }

    /// Removes the object of a deleted service; its slices keep waiting.
    pub(crate) fn take_service(&mut self, key: &ServiceKey) {
        self.update_waiting(key, true, |waiting| waiting.set_facts(None));
    }

    /// Removes a slice that was deleted or left that service.
    pub(crate) fn take_slice(&mut self, key: &SliceKey) {
        if let Some(service) = self.slice_services.remove(key) {
            let has_queued = self.find_waiting(&service).is_some_and(|waiting| waiting.rank.is_some());
            self.update_waiting(&service, has_queued, |waiting| waiting.take_slice(key));
        }
    }

    /// Takes the first slice by name that waits at an admitted service.
    pub(crate) fn next_slice(&mut self, service: &ServiceKey) -> Option<Arc<SliceFacts>> {
        let (key, facts) = self.find_waiting(service)?.slices.first_key_value()?;
        let key = key.clone();
        let facts = Arc::clone(facts);
        self.take_slice(&key);
        Some(facts)
    }

    /// The service that has the next turn, among those that fit.
    pub(crate) fn next_service(
        &self,
        residents: &QuotaIds,
        is_room_for: &dyn Fn(Source, &str) -> bool,
    ) -> Option<ServiceKey> {
        let turns = self.namespaces.iter().filter_map(|(name, namespace)| {
            let (source, bare, created, key) = namespace.queue.first()?;
            let have = residents.service_count(name);
            is_room_for(*source, name).then_some((*source, *bare, have, *created, key))
        });
        let (.., key) = turns.min()?;
        Some(key.clone())
    }

    pub(crate) fn is_queued(&self, key: &ServiceKey) -> bool {
        self.queued > 0 && self.find_waiting(key).is_some_and(|waiting| waiting.rank.is_some())
    }

    fn find_waiting(&self, key: &ServiceKey) -> Option<&WaitingService> {
        self.namespaces.get(key.name.namespace())?.entries.get(key)
    }

    /// Changes the waiting objects of a service and updates its rank.
    fn update_waiting(
        &mut self,
        key: &ServiceKey,
        without_room: bool,
        change: impl FnOnce(&mut WaitingService),
    ) {
        let mut waiting = self.detach_waiting(key);
        change(&mut waiting);
        if waiting.facts.is_some() || !waiting.slices.is_empty() {
            self.attach_waiting(key, waiting, without_room);
        }
    }

    fn detach_waiting(&mut self, key: &ServiceKey) -> WaitingService {
        let Some(namespace) = self.namespaces.get_mut(key.name.namespace()) else {
            return WaitingService::default();
        };
        let Some(mut waiting) = namespace.entries.remove(key) else { return WaitingService::default() };
        if let Some(turn) = waiting.rank.take() {
            namespace.queue.remove(&turn);
            self.queued -= 1;
        }
        namespace.bytes -= waiting.bytes;
        self.bytes -= waiting.bytes;
        self.services -= usize::from(waiting.facts.is_some());
        if namespace.entries.is_empty() {
            self.namespaces.remove(key.name.namespace());
        }
        waiting
    }

    fn attach_waiting(&mut self, key: &ServiceKey, mut waiting: WaitingService, without_room: bool) {
        waiting.rank = without_room.then(|| admission_rank(key, waiting.facts.as_deref()));
        self.queued += usize::from(without_room);
        self.bytes += waiting.bytes;
        self.services += usize::from(waiting.facts.is_some());
        let namespace = self.namespaces.entry(key.name.namespace().into()).or_default();
        namespace.bytes += waiting.bytes;
        namespace.queue.extend(waiting.rank.clone());
        namespace.entries.insert(key.clone(), waiting);
    }

    /// Removes all waiting objects of a service.
    pub(crate) fn remove(&mut self, key: &ServiceKey) -> Option<WaitingService> {
        self.find_waiting(key)?;
        let waiting = self.detach_waiting(key);
        for slice in waiting.slices.keys() {
            self.slice_services.remove(slice);
        }
        Some(waiting)
    }

    /// While over the bound, evicts the youngest service of the namespace with the most bytes.
    fn evict_over_limit(&mut self) {
        while self.bytes > limits::WAITING_BYTES_MAX {
            let most = self.namespaces.values().max_by_key(|namespace| namespace.bytes);
            let youngest = most.and_then(|namespace| {
                let last = namespace.queue.last().map(|(.., key)| key);
                last.or_else(|| namespace.entries.keys().next_back()).cloned()
            });
            let Some(key) = youngest else { return };
            self.evict_service(&key);
            self.evicted_sources.insert(key.source);
        }
    }

    /// Evicts a waiting service as a whole. Slices that wait at an admitted service go one at a time, the last by name
    /// first. So do those of a service with over half of the memory: evicting them all would let its source relist them
    /// again and again.
    fn evict_service(&mut self, key: &ServiceKey) {
        let Some(waiting) = self.find_waiting(key) else { return };
        let goes_bit_by_bit = waiting.rank.is_none() || waiting.bytes > limits::WAITING_BYTES_MAX / 2;
        match waiting.slices.keys().next_back().filter(|_| goes_bit_by_bit).cloned() {
            Some(last) => self.take_slice(&last),
            None => drop(self.remove(key)),
        }
    }
}

// Each change costs only its own size: thousands of slices may wait at one service.
impl WaitingService {
    fn set_facts(&mut self, facts: Option<Arc<ServiceFacts>>) {
        let bytes =
            |facts: &Option<Arc<ServiceFacts>>| facts.as_ref().map_or(0, |it| OBJECT_BYTES + it.bytes());
        self.bytes = self.bytes + bytes(&facts) - bytes(&self.facts);
        self.facts = facts;
    }

    fn put_slice(&mut self, facts: Arc<SliceFacts>) {
        self.bytes += OBJECT_BYTES + facts.bytes();
        if let Some(before) = self.slices.insert(facts.key.clone(), facts) {
            self.bytes -= OBJECT_BYTES + before.bytes();
        }
    }

    fn take_slice(&mut self, key: &SliceKey) {
        if let Some(before) = self.slices.remove(key) {
            self.bytes -= OBJECT_BYTES + before.bytes();
        }
    }
}

/// Names, metadata and map nodes of one object.
const OBJECT_BYTES: usize = 1_024;

fn admission_rank(key: &ServiceKey, facts: Option<&ServiceFacts>) -> AdmissionRank {
    let created = facts.and_then(|facts| facts.meta.created).map_or(i64::MAX, |created| created.0);
    (key.source, facts.is_none(), created, key.clone())
}

#[cfg(test)]
mod tests;
