//! Admits objects within limits: a service gets an id, a slice a position among its service's slices.
//!
//! Invariant: a service keeps its id until it is deleted. Waiting services get freed ids in turns
//! ([`super::admission_queue`]), before any new one. A namespace leaves ids to others, even for services that no client
//! can dial. Of a service's slices the first by name get the positions, in whatever order they arrive. The plan
//! allocates capacity in the maps, not this module.

use alloc::sync::Arc;

use super::admission_queue::WaitingService;
use super::{KnownService, Tables};
use crate::change::Cause;
use crate::facts::{ObjectKey, Rejection, ServiceFacts, SliceFacts, WAITING_PREFIX};
use crate::keys::{ServiceKey, SliceKey, Source};
use crate::limits;
use crate::op::{QuotaId, ServiceId};
use crate::resolve::Truncation;

impl Tables {
    /// The id of a service, allocated if it has none. `None`: there is no capacity.
    pub(super) fn find_or_allocate_id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        self.find_id(key).or_else(|| self.allocate_id(key))
    }

    /// Allocates an id for a service that has none. `None`: it must wait.
    pub(super) fn allocate_id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        let others_first = self.has_free_capacity && self.admission_queue.has_queue();
        let is_room = self.has_capacity_for(key.source, key.name.namespace());
        let waits = others_first || self.admission_queue.is_queued(key) || !is_room;
        if waits { None } else { self.insert_service(key) }
    }

    /// The id of a service that had one in a former process, whatever its namespace's quota.
    pub(super) fn restore_id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        self.find_id(key).or_else(|| self.insert_service(key))
    }

    fn free_capacity(&self) -> usize {
        self.services_max.saturating_sub(self.services.len().saturating_sub(self.free.len()))
    }

    /// Whether a namespace may have one more service: beyond its first, it must leave a part of the capacity to others.
    /// The administrator's own services are bounded by the limit alone.
    fn has_capacity_for(&self, source: Source, namespace: &str) -> bool {
        let own = self.quota_ids.service_count(namespace);
        let rest = self.free_capacity().checked_sub(1);
        let is_shared = self.services_max >= limits::QUOTA_CAPACITY_MIN as usize
            && source.is_tenant_writable()
            && own > 0;
        rest.is_some_and(|rest| !is_shared || own < rest.saturating_mul(limits::QUOTA_REST_FACTOR as usize))
    }

    fn insert_service(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.services.len() >= self.services_max => return None,
            None => {
                self.services.push(None);
                ServiceId(u32::try_from(self.services.len() - 1).ok()?)
            }
        };
        let place = self.services.get_mut(id.0 as usize)?;
        self.quota_ids.add_service(key.name.namespace());
        let (quota, slices) = (QuotaId::default(), alloc::vec::Vec::new());
        *place = Some(KnownService {
            key: key.clone(),
            quota,
            facts: None,
            slices,
            truncation: Truncation::default(),
        });
        self.names.insert(key.clone(), id);
        Some(id)
    }

    /// Assigns the number of its namespace to a service once the service object arrives. Until then the service has
    /// nothing in the maps, and the namespace's former number may be unknown.
    pub(super) fn assign_quota(&mut self, id: ServiceId) {
        let known = self.services.get_mut(id.0 as usize).and_then(Option::as_mut);
        if let Some(known) = known.filter(|known| known.quota == QuotaId::default()) {
            known.quota = self.quota_ids.assign_id(known.key.name.namespace());
        }
    }

    /// Reserves a number that a start found in the maps.
    pub(crate) fn reserve_quota(&mut self, quota: QuotaId) {
        self.quota_ids.reserve_id(quota);
    }

    pub(crate) fn has_quota(&self, namespace: &str) -> bool {
        self.quota_ids.has_id(namespace)
    }

    /// Records that a start found that number at a frontend of that namespace.
    pub(crate) fn record_quota_owner(&mut self, namespace: &str, quota: QuotaId) {
        self.quota_ids.record_owner(namespace, quota);
    }

    pub(super) fn release_service(&mut self, key: &ServiceKey) {
        self.quota_ids.remove_service(key.name.namespace());
    }

    /// Admits waiting services in turn while capacity lasts, and applies their stored objects.
    pub(crate) fn admit(&mut self, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        for _ in 0..limits::ADMITTED_PER_BATCH {
            let Some((key, waiting)) = self.next_to_admit() else {
                self.has_free_capacity = false;
                return;
            };
            if self.insert_service(&key).is_some() {
                self.apply_admitted(waiting, dirty);
            }
        }
    }

    /// Removes the next waiting service that fits from the queue.
    fn next_to_admit(&mut self) -> Option<(ServiceKey, WaitingService)> {
        if !self.has_free_capacity || self.free_capacity() == 0 {
            return None;
        }
        let key = self
            .admission_queue
            .next_service(&self.quota_ids, &|source, namespace| self.has_capacity_for(source, namespace))?;
        let waiting = self.admission_queue.remove(&key)?;
        Some((key, waiting))
    }

    fn apply_admitted(&mut self, waiting: WaitingService, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        if let Some(facts) = waiting.facts {
            self.rejections.end(&ObjectKey::Service(facts.key.clone()));
            self.service_applied(facts, dirty);
        }
        for (key, facts) in waiting.slices {
            self.rejections.end(&ObjectKey::Slice(key));
            self.slice_applied(facts, dirty);
        }
    }

    pub(super) fn enqueue_service(&mut self, facts: Arc<ServiceFacts>) {
        let object = ObjectKey::Service(facts.key.clone());
        let origin = facts.meta.origin.clone();
        let reason = self.waiting_reason(&facts.key);
        self.admission_queue.put_service(facts);
        self.rejections.put(Rejection { object, origin, reason, partial: false });
    }

    pub(super) fn enqueue_slice(&mut self, service: &ServiceKey, facts: Arc<SliceFacts>) {
        let object = ObjectKey::Slice(facts.key.clone());
        let origin = facts.meta.origin.clone();
        self.admission_queue.put_slice(service, facts, true);
        let reason = self.waiting_reason(service);
        self.rejections.put(Rejection { object, origin, reason, partial: false });
    }

    fn waiting_reason(&self, service: &ServiceKey) -> Arc<str> {
        let namespace = service.name.namespace();
        let (most, own, left) =
            (self.services_max, self.quota_ids.service_count(namespace), self.free_capacity());
        let known = if left == 0 || self.has_capacity_for(service.source, namespace) {
            alloc::format!("{most} services are known, as many as `datapath.limits.services` allows")
        } else {
            alloc::format!(
                "this namespace has reached its quota of `datapath.limits.services`: {own} of its services are known \
                 and leave {left} to all others"
            )
        };
        alloc::format!("{WAITING_PREFIX}: {known}; delete some, or raise it").into()
    }

    /// Inserts a slice by its name; if there are too many, the last by name waits.
    pub(super) fn put_slice(
        &mut self,
        id: ServiceId,
        facts: Arc<SliceFacts>,
        dirty: &mut dyn FnMut(ServiceId, Cause),
    ) {
        let Some(known) = self.services.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            self.impossible += 1;
            return;
        };
        let mut last = None;
        match known.slices.binary_search_by(|other| other.key.cmp(&facts.key)) {
            Ok(position) => {
                known.slices.get_mut(position).into_iter().for_each(|old| *old = Arc::clone(&facts));
            }
            Err(position) if position >= limits::SLICES_PER_SERVICE_MAX => {
                let service = known.key.clone();
                return self.enqueue_surplus_slice(&service, facts);
            }
            Err(position) => {
                if known.slices.len() >= limits::SLICES_PER_SERVICE_MAX {
                    last = known.slices.pop().map(|last| (known.key.clone(), last));
                }
                known.slices.insert(position, Arc::clone(&facts));
            }
        }
        self.slices.insert(facts.key.clone(), (Arc::clone(&facts), Some(id)));
        if let Some((service, last)) = last {
            self.slices.remove(&last.key);
            self.enqueue_surplus_slice(&service, last);
        }
        dirty(id, Cause::SliceApplied(facts));
    }

    /// Removes a slice from a service, and inserts the next waiting slice.
    pub(super) fn drop_slice(
        &mut self,
        id: ServiceId,
        key: &SliceKey,
        dirty: &mut dyn FnMut(ServiceId, Cause),
    ) {
        let Some(known) = self.services.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            self.impossible += 1;
            return;
        };
        known.slices.retain(|slice| slice.key != *key);
        if let Some(next) = self.admission_queue.next_slice(&known.key) {
            self.rejections.end(&ObjectKey::Slice(next.key.clone()));
            self.put_slice(id, next, dirty);
        }
    }

    fn enqueue_surplus_slice(&mut self, service: &ServiceKey, facts: Arc<SliceFacts>) {
        let object = ObjectKey::Slice(facts.key.clone());
        let origin = facts.meta.origin.clone();
        self.admission_queue.put_slice(service, facts, false);
        let reason = alloc::format!(
            "{WAITING_PREFIX}: of one service the first {} slices by name are used; delete some of them",
            limits::SLICES_PER_SERVICE_MAX
        );
        self.rejections.put(Rejection { object, origin, reason: reason.into(), partial: false });
    }
}
