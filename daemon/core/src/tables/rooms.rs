//! The room that objects have: a service has an id, a slice a place among its service's slices.
//!
//! Invariant: a service keeps its room until it goes. Waiting services get freed room in turns ([`super::waiting`]),
//! before any newcomer. A namespace leaves room to the others, whatever its services are: also one that no client can
//! dial has an id. Of one service's slices the first by name have the places, in whatever order they came. Room in the
//! maps is given out by the plan, not here.

use alloc::sync::Arc;

use super::waiting::Guest;
use super::{KnownService, Tables};
use crate::change::Cause;
use crate::facts::{ObjectKey, Rejection, ServiceFacts, SliceFacts, WAITS};
use crate::keys::{ServiceKey, SliceKey, Source};
use crate::limits;
use crate::op::{ServiceId, Share};
use crate::resolve::Cut;

impl Tables {
    /// The id of a service, given out now if it has none. `None`: there is no room for it.
    pub(super) fn id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        self.id_of(key).or_else(|| self.newcomers_id(key))
    }

    /// The id of a service that has none, given out now. `None`: it has to wait for room.
    pub(super) fn newcomers_id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        let others_first = self.admits && self.waiting.has_queue();
        let is_room = self.is_room_for(key.source, key.name.namespace());
        let waits = others_first || self.waiting.is_queued(key) || !is_room;
        if waits { None } else { self.new_id(key) }
    }

    /// The id of a service that had one in a former process: it has room again, whatever its namespace has.
    pub(super) fn former_id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        self.id_of(key).or_else(|| self.new_id(key))
    }

    /// How many services there is room for.
    fn left(&self) -> usize {
        self.services_max.saturating_sub(self.services.len().saturating_sub(self.free.len()))
    }

    /// Whether a namespace may have one service more: it leaves some room to others, and its first is what was left.
    /// What the administrator wrote down has no part: it is bounded by the limit alone.
    fn is_room_for(&self, source: Source, namespace: &str) -> bool {
        let own = self.residents.services(namespace);
        let rest = self.left().checked_sub(1);
        let is_shared = self.services_max >= limits::SHARED_MIN as usize && source.is_tenants() && own > 0;
        rest.is_some_and(|rest| !is_shared || own < rest.saturating_mul(limits::LISTS_SHARE_OF_REST as usize))
    }

    fn new_id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.services.len() >= self.services_max => return None,
            None => {
                self.services.push(None);
                ServiceId(u32::try_from(self.services.len() - 1).ok()?)
            }
        };
        let place = self.services.get_mut(id.0 as usize)?;
        self.residents.moved_in(key.name.namespace());
        let (share, slices) = (Share::default(), alloc::vec::Vec::new());
        *place = Some(KnownService { key: key.clone(), share, facts: None, slices, cut: Cut::default() });
        self.names.insert(key.clone(), id);
        Some(id)
    }

    /// Gives a service the number of its namespace once its object has come. Before that the service has nothing in the
    /// maps, and nothing says yet which number the namespace had in a former process.
    pub(super) fn number(&mut self, id: ServiceId) {
        let known = self.services.get_mut(id.0 as usize).and_then(Option::as_mut);
        if let Some(known) = known.filter(|known| known.share == Share::default()) {
            known.share = self.residents.share(known.key.name.namespace());
        }
    }

    /// Notes that a start has found that number in the maps.
    pub(crate) fn number_found(&mut self, share: Share) {
        self.residents.found(share);
    }

    /// Whether it is known which number that namespace has.
    pub(crate) fn is_numbered(&self, namespace: &str) -> bool {
        self.residents.is_numbered(namespace)
    }

    /// Notes that a start has found that number at a frontend of that namespace.
    pub(crate) fn had_number(&mut self, namespace: &str, share: Share) {
        self.residents.had(namespace, share);
    }

    /// Notes that a service has given up its room.
    pub(super) fn moved_out(&mut self, key: &ServiceKey) {
        self.residents.moved_out(key.name.namespace());
    }

    /// Gives free room to the waiting services, in turn. Their objects, stored while they waited, are applied now.
    pub(crate) fn admit(&mut self, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        for _ in 0..limits::ADMITTED_PER_BATCH {
            let Some((key, guest)) = self.next_to_admit() else {
                self.admits = false;
                return;
            };
            if self.new_id(&key).is_some() {
                self.move_in(guest, dirty);
            }
        }
    }

    /// Takes out the waiting service that has the next turn, of those that may have room now.
    fn next_to_admit(&mut self) -> Option<(ServiceKey, Guest)> {
        if !self.admits || self.left() == 0 {
            return None;
        }
        let key = self
            .waiting
            .next_service(&self.residents, &|source, namespace| self.is_room_for(source, namespace))?;
        let guest = self.waiting.remove(&key)?;
        Some((key, guest))
    }

    fn move_in(&mut self, guest: Guest, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        if let Some(facts) = guest.facts {
            self.rejected.end(&ObjectKey::Service(facts.key.clone()));
            self.service_applied(facts, dirty);
        }
        for (key, facts) in guest.slices {
            self.rejected.end(&ObjectKey::Slice(key));
            self.slice_applied(facts, dirty);
        }
    }

    pub(super) fn let_service_wait(&mut self, facts: Arc<ServiceFacts>) {
        let object = ObjectKey::Service(facts.key.clone());
        let origin = facts.meta.origin.clone();
        let reason = self.no_room_for(&facts.key);
        self.waiting.put_service(facts);
        self.rejected.put(Rejection { object, origin, reason, partial: false });
    }

    pub(super) fn let_slice_wait(&mut self, service: &ServiceKey, facts: Arc<SliceFacts>) {
        let object = ObjectKey::Slice(facts.key.clone());
        let origin = facts.meta.origin.clone();
        self.waiting.put_slice(service, facts, true);
        let reason = self.no_room_for(service);
        self.rejected.put(Rejection { object, origin, reason, partial: false });
    }

    /// Why an object of that service waits.
    fn no_room_for(&self, service: &ServiceKey) -> Arc<str> {
        let namespace = service.name.namespace();
        let (most, own, left) = (self.services_max, self.residents.services(namespace), self.left());
        let known = if left == 0 || self.is_room_for(service.source, namespace) {
            alloc::format!("{most} services are known, as many as `datapath.limits.services` allows")
        } else {
            alloc::format!(
                "{own} services of this namespace are known and leave {left} to all others, which is their part of \
                 `datapath.limits.services`"
            )
        };
        alloc::format!("{WAITS}: {known}; delete some, or raise it").into()
    }

    /// Gives a slice its place by its name; if no place is left, the last slice by name waits.
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
                return self.let_surplus_wait(&service, facts);
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
            self.let_surplus_wait(&service, last);
        }
        dirty(id, Cause::SliceApplied(facts));
    }

    /// Removes a slice from a service, and gives its place to the next slice that waits.
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
        if let Some(next) = self.waiting.next_slice(&known.key) {
            self.rejected.end(&ObjectKey::Slice(next.key.clone()));
            self.put_slice(id, next, dirty);
        }
    }

    fn let_surplus_wait(&mut self, service: &ServiceKey, facts: Arc<SliceFacts>) {
        let object = ObjectKey::Slice(facts.key.clone());
        let origin = facts.meta.origin.clone();
        self.waiting.put_slice(service, facts, false);
        let reason = alloc::format!(
            "{WAITS}: of one service the first {} slices by name are used; delete some of them",
            limits::SLICES_PER_SERVICE_MAX
        );
        self.rejected.put(Rejection { object, origin, reason: reason.into(), partial: false });
    }
}
