//! The facts of all objects, and which slices belong to which service.
//!
//! Invariant: a service is found by its exact key only, and a slice belongs to the one service that its label names, in
//! its own namespace and source. Deliberately absent: decisions, and any knowledge of the maps.

mod remembered;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::change::Cause;
use crate::event::{Event, Watched};
use crate::facts::{Meta, NodeFacts, ObjectKey, Rejection, ServiceFacts, ServiceType, Settings, SliceFacts};
use crate::hold::OnEmpty;
use crate::index::{Index, Seed};
use crate::keys::{ObjectName, ServiceKey, SliceKey, Source};
use crate::limits;
use crate::op::ServiceId;
use crate::snapshot::Rejections;
use remembered::Unconfirmed;

/// Characters shown of a word that is none.
const SHOWN_MAX: usize = 40;

/// One service with its own slices; the object itself may not have come yet.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) key: ServiceKey,
    pub(crate) facts: Option<Arc<ServiceFacts>>,
    /// By name.
    pub(crate) slices: Vec<Arc<SliceFacts>>,
}

/// All facts.
#[derive(Debug)]
pub(crate) struct Tables {
    names: Index<ServiceKey, ServiceId>,
    services: Vec<Option<Known>>,
    free: Vec<ServiceId>,
    services_max: usize,
    slices: Index<SliceKey, (Arc<SliceFacts>, Option<ServiceId>)>,
    pub(crate) node: Arc<NodeFacts>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) rejections: Arc<Rejections>,
    pub(crate) synced: BTreeMap<Source, bool>,
    pub(crate) progress: BTreeMap<Watched, Arc<str>>,
    unconfirmed: Unconfirmed,
}

impl Tables {
    /// Empty tables that wait for the first whole list of these sources.
    pub(crate) fn new(seed: Seed, sources: &[Source], services_max: usize) -> Self {
        Self {
            names: Index::new(seed),
            services: Vec::new(),
            free: Vec::new(),
            services_max,
            slices: Index::new(seed),
            node: Arc::default(),
            settings: Arc::default(),
            rejections: Arc::default(),
            synced: sources.iter().map(|source| (*source, false)).collect(),
            progress: BTreeMap::new(),
            unconfirmed: Unconfirmed::default(),
        }
    }

    /// Takes one event in and calls back with each service that it touches.
    pub(crate) fn apply(&mut self, event: Event, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        match event {
            Event::ServiceApplied(facts) => self.service_applied(facts, dirty),
            Event::ServiceDeleted(key, meta) => self.service_deleted(key, meta, dirty),
            Event::SliceApplied(facts) => self.slice_applied(facts, dirty),
            Event::SliceDeleted(key, meta) => self.slice_deleted(key, meta, dirty),
            Event::Rejected(rejection) => self.reject(rejection),
            Event::RejectionEnded(object) => self.rejection_ended(&object, dirty),
            Event::NodeApplied(node) => self.node_applied(node, dirty),
            Event::SettingsApplied(settings) => self.settings_applied(settings, dirty),
            Event::Resumed(source) => self.unconfirmed.confirm_all(source),
            Event::Synced(source) => self.source_synced(source, dirty),
            // They concern what was decided, not what the objects say.
            Event::Interrupted(_) | Event::Probed(_) => {}
            Event::Progress(watched, version) => {
                self.progress.insert(watched, version);
            }
        }
    }

    /// What is known under an id.
    pub(crate) fn get(&self, id: ServiceId) -> Option<&Known> {
        self.services.get(id.0 as usize)?.as_ref()
    }

    /// The id of a service that is known.
    pub(crate) fn id_of(&self, key: &ServiceKey) -> Option<ServiceId> {
        self.names.get(key).copied()
    }

    /// Whether every source has delivered its first whole list.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced.values().all(|synced| *synced)
    }

    /// Every id in use.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ServiceId> {
        (0..).zip(&self.services).filter(|(_, known)| known.is_some()).map(|(id, _)| ServiceId(id))
    }

    /// Gives the id of a service of which nothing is known any more back. `false`: something is known.
    pub(crate) fn forget(&mut self, id: ServiceId) -> bool {
        let gone = |known: &Known| known.facts.is_none() && known.slices.is_empty();
        let Some(place) = self.services.get_mut(id.0 as usize).filter(|it| it.as_ref().is_some_and(gone))
        else {
            return false;
        };
        if let Some(known) = place.take() {
            self.names.remove(&known.key);
            self.free.push(id);
        }
        true
    }

    fn service_applied(&mut self, facts: Arc<ServiceFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.spoken_of(|| ObjectKey::Service(facts.key.clone()));
        if let Some(rejection) = rejected_setting(&facts) {
            self.reject(rejection);
        }
        let Some(id) = self.id(&facts.key) else {
            return self.reject(too_many(ObjectKey::Service(facts.key.clone()), "services"));
        };
        let Some(known) = self.known(id) else { return };
        if known.facts.as_ref() != Some(&facts) {
            known.facts = Some(Arc::clone(&facts));
            dirty(id, Cause::ServiceApplied(facts));
        }
    }

    fn service_deleted(
        &mut self,
        key: ServiceKey,
        meta: Option<Box<Meta>>,
        dirty: &mut dyn FnMut(ServiceId, Cause),
    ) {
        self.spoken_of(|| ObjectKey::Service(key.clone()));
        let Some(id) = self.names.get(&key).copied() else { return };
        if self.known(id).is_some_and(|known| known.facts.take().is_some()) {
            dirty(id, Cause::ServiceDeleted(key, meta));
        }
    }

    fn slice_applied(&mut self, facts: Arc<SliceFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.spoken_of(|| ObjectKey::Slice(facts.key.clone()));
        if self.slices.get(&facts.key).is_some_and(|(old, _)| *old == facts) {
            return;
        }
        let service = service_of(&facts);
        let wanted = service.as_ref().and_then(|key| self.id(key));
        if service.is_some() && wanted.is_none() {
            return self.reject(too_many(ObjectKey::Slice(facts.key.clone()), "services"));
        }
        let before = self.slices.insert(facts.key.clone(), (Arc::clone(&facts), wanted));
        if let Some((_, Some(old))) = before.filter(|(_, old)| *old != wanted) {
            self.drop_slice(old, &facts.key);
            dirty(old, Cause::SliceLeft(Arc::clone(&facts)));
        }
        if let Some(id) = wanted {
            if !self.place_slice(id, &facts) {
                self.slices.remove(&facts.key);
                return self.reject(too_many(ObjectKey::Slice(facts.key.clone()), "slices of one service"));
            }
            dirty(id, Cause::SliceApplied(facts));
        }
    }

    fn slice_deleted(
        &mut self,
        key: SliceKey,
        meta: Option<Box<Meta>>,
        dirty: &mut dyn FnMut(ServiceId, Cause),
    ) {
        self.spoken_of(|| ObjectKey::Slice(key.clone()));
        if let Some((_, Some(id))) = self.slices.remove(&key) {
            self.drop_slice(id, &key);
            dirty(id, Cause::SliceDeleted(key, meta));
        }
    }

    fn node_applied(&mut self, node: Arc<NodeFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        // Where NodePorts answer matters to a decision only beside an address that is bypassed.
        let same_addresses =
            self.settings.bypass.is_empty() || self.node.node_port_addresses == node.node_port_addresses;
        let same_place = self.node.name == node.name && self.node.zone == node.zone && same_addresses;
        self.node = node;
        if !same_place {
            self.ids().for_each(|id| dirty(id, Cause::NodeApplied));
        }
    }

    fn settings_applied(&mut self, settings: Arc<Settings>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        if self.settings != settings {
            self.settings = settings;
            self.ids().for_each(|id| dirty(id, Cause::SettingsApplied));
        }
    }

    /// The id of a service, given out now if it has none. `None`: there are too many.
    fn id(&mut self, key: &ServiceKey) -> Option<ServiceId> {
        if let Some(id) = self.names.get(key) {
            return Some(*id);
        }
        let known = Known { key: key.clone(), facts: None, slices: Vec::new() };
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.services.len() >= self.services_max => return None,
            None => {
                self.services.push(None);
                ServiceId(u32::try_from(self.services.len() - 1).ok()?)
            }
        };
        *self.services.get_mut(id.0 as usize)? = Some(known);
        self.names.insert(key.clone(), id);
        Some(id)
    }

    fn known(&mut self, id: ServiceId) -> Option<&mut Known> {
        self.services.get_mut(id.0 as usize)?.as_mut()
    }

    fn place_slice(&mut self, id: ServiceId, facts: &Arc<SliceFacts>) -> bool {
        let Some(known) = self.known(id) else { return false };
        match known.slices.binary_search_by(|other| other.key.cmp(&facts.key)) {
            Ok(place) => known.slices.get_mut(place).map(|old| *old = Arc::clone(facts)).is_some(),
            Err(_) if known.slices.len() >= limits::SLICES_PER_SERVICE_MAX => false,
            Err(place) => {
                known.slices.insert(place, Arc::clone(facts));
                true
            }
        }
    }

    fn drop_slice(&mut self, id: ServiceId, key: &SliceKey) {
        if let Some(known) = self.known(id) {
            known.slices.retain(|slice| slice.key != *key);
        }
    }

    fn reject(&mut self, rejection: Rejection) {
        let rejections = Arc::make_mut(&mut self.rejections);
        rejections.total += 1;
        let room = rejections.named.len() < limits::REJECTIONS_MAX;
        if room || rejections.named.contains_key(&rejection.object) {
            rejections.named.insert(rejection.object.clone(), rejection);
        } else {
            rejections.dropped += 1;
        }
    }

    /// An object was understood: it is neither rejected nor merely remembered any more.
    fn spoken_of(&mut self, object: impl FnOnce() -> ObjectKey) {
        if !self.rejections.named.is_empty() || !self.unconfirmed.is_empty() {
            let object = object();
            self.end_rejection(&object);
            self.unconfirmed.confirm(&object);
        }
    }

    fn end_rejection(&mut self, object: &ObjectKey) {
        if self.rejections.named.contains_key(object) {
            Arc::make_mut(&mut self.rejections).named.remove(object);
        }
    }
}

/// The service that a slice's label names: in the slice's own namespace and source.
pub(crate) fn service_of(slice: &SliceFacts) -> Option<ServiceKey> {
    let name = ObjectName::new(slice.key.name.namespace(), slice.service.as_ref()?).ok()?;
    Some(ServiceKey { name, source: slice.key.source })
}

/// What the service asks for of a list that would become empty, if that can be followed.
pub(crate) fn on_empty(facts: &ServiceFacts) -> Option<OnEmpty> {
    let is_shared = facts.kind == ServiceType::LoadBalancer
        || !facts.external_ips.is_empty()
        || !facts.ingress.is_empty();
    OnEmpty::parse(facts.on_empty.as_deref()?).filter(|asked| *asked != OnEmpty::Pass || is_shared)
}

/// The annotation that cannot be followed; the service is served as if it were not there.
fn rejected_setting(facts: &ServiceFacts) -> Option<Rejection> {
    let word = facts.on_empty.as_deref().filter(|_| on_empty(facts).is_none())?;
    let reason = match OnEmpty::parse(word) {
        Some(_) => {
            "on-empty \"pass\" is for load-balancer and external addresses, and this service has none".into()
        }
        None => {
            let word: alloc::string::String = word.chars().take(SHOWN_MAX).collect();
            alloc::format!("on-empty {word:?} is ignored: legal are auto, refuse, hold and pass").into()
        }
    };
    let object = ObjectKey::Service(facts.key.clone());
    Some(Rejection { object, origin: facts.meta.origin.clone(), reason, partial: true })
}

fn too_many(object: ObjectKey, what: &str) -> Rejection {
    let reason =
        alloc::format!("there is no room for more {what}; delete some, or raise `datapath.limits.services`");
    Rejection { object, origin: None, reason: reason.into(), partial: false }
}

#[cfg(test)]
mod tests;
