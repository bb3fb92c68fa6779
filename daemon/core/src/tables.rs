//! The facts of all objects, and which slices belong to which service.
//!
//! Invariant: a service is found by its exact key only. A slice belongs to the one service that its label names, in its
//! own namespace and source.

mod admission;
mod admission_queue;
mod quota_ids;
mod rejection_table;
mod restored_objects;
mod sync_state;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::affinity::Prefixes;
use crate::change::Cause;
use crate::drains::Drains;
use crate::event::{Event, WatchKind};
use crate::facts::{
    Listeners, Meta, NodeFacts, ObjectKey, Rejection, ServiceFacts, ServicePort, ServiceType, Settings,
    SliceFacts, Timestamp,
};
use crate::hold::OnEmpty;
use crate::index::{Index, Seed};
use crate::keys::{Family, ServiceKey, SliceKey, Source};
use crate::limits;
use crate::op::{QuotaId, ServiceId};
use crate::resolve::{Truncation, frontends};
use crate::snapshot::{Rejections, ServiceState};
use crate::source_ranges;
use crate::str_enum::StrEnum;
use admission_queue::AdmissionQueue;
use quota_ids::QuotaIds;
use rejection_table::RejectionTable;
use restored_objects::UnconfirmedIndex;

/// How many characters of an invalid annotation a message quotes.
const EXCERPT_MAX: usize = 40;

/// One service with its slices; the service object itself may be missing.
#[derive(Debug)]
pub(crate) struct KnownService {
    pub(crate) key: ServiceKey,
    /// The number of its namespace, set once the service object arrives.
    pub(crate) quota: QuotaId,
    pub(crate) facts: Option<Arc<ServiceFacts>>,
    pub(crate) slices: Vec<Arc<SliceFacts>>,
    pub(crate) truncation: Truncation,
}

#[derive(Debug)]
pub(crate) struct Tables {
    names: Index<ServiceKey, ServiceId>,
    services: Vec<Option<KnownService>>,
    free: Vec<ServiceId>,
    services_max: usize,
    /// Capacity came free, and no waiting service has tried to take it yet.
    has_free_capacity: bool,
    slices: Index<SliceKey, (Arc<SliceFacts>, Option<ServiceId>)>,
    pub(crate) node: Arc<NodeFacts>,
    pub(crate) listeners: Option<Arc<Listeners>>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) drains: Arc<Drains>,
    rejections: RejectionTable,
    admission_queue: AdmissionQueue,
    quota_ids: QuotaIds,
    pub(crate) synced: BTreeMap<Source, bool>,
    /// Sources without a complete list that nothing waits for.
    absent: BTreeSet<Source>,
    /// Sources without a complete list because they cannot be read: only removals wait for them.
    unreadable: BTreeSet<Source>,
    pub(crate) progress: BTreeMap<WatchKind, Arc<str>>,
    /// When the sources last confirmed the restored state to a former process.
    pub(crate) restored_at: Option<Timestamp>,
    unconfirmed: UnconfirmedIndex,
    /// Steps that were skipped because their subject was missing.
    pub(crate) impossible: u64,
}

impl Tables {
    /// Empty tables that wait for the first complete list of these sources.
    pub(crate) fn new(seed: Seed, sources: &[Source], services_max: usize) -> Self {
        Self {
            names: Index::new(seed),
            services: Vec::new(),
            free: Vec::new(),
            services_max,
            has_free_capacity: false,
            slices: Index::new(seed),
            node: Arc::default(),
            listeners: None,
            settings: Arc::default(),
            drains: Arc::default(),
            rejections: RejectionTable::default(),
            admission_queue: AdmissionQueue::default(),
            quota_ids: QuotaIds::default(),
            synced: sources.iter().map(|source| (*source, false)).collect(),
            absent: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            progress: BTreeMap::new(),
            restored_at: None,
            unconfirmed: UnconfirmedIndex::new(seed),
            impossible: 0,
        }
    }

    /// The facts that decide whether a frontend is the node's own.
    pub(crate) fn host_facts(&self) -> (&Settings, &NodeFacts, Option<&Listeners>) {
        (&self.settings, &self.node, self.listeners.as_deref())
    }

    pub(crate) fn quota(&self, id: ServiceId) -> QuotaId {
        self.get(id).map(|known| known.quota).unwrap_or_default()
    }

    /// Applies one event and calls `dirty` for each service that it affects.
    pub(crate) fn apply(&mut self, event: Event, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        match event {
            Event::ServiceApplied(facts) => self.service_applied(facts, dirty),
            Event::ServiceDeleted(key, meta) => self.service_deleted(key, meta, dirty),
            Event::SliceApplied(facts) => self.slice_applied(facts, dirty),
            Event::SliceDeleted(key, meta) => self.slice_deleted(key, meta, dirty),
            Event::Rejected(rejection) => self.reject(rejection),
            Event::RejectionEnded(object) => self.rejection_ended(&object, dirty),
            Event::NodeApplied(node) => self.node_applied(node, dirty),
            Event::ListenersApplied(listeners) => self.listeners_applied(listeners, dirty),
            Event::SettingsApplied(settings) => self.settings_applied(settings, dirty),
            // The drain scan finds the affected services piece by piece.
            Event::DrainsApplied(drains, _) => self.drains = drains,
            Event::Resumed(source) => self.unconfirmed.confirm_all(source),
            Event::Synced(source) => self.source_synced(source, dirty),
            Event::Absent(source) => {
                self.absent.extend(Some(source).filter(|source| self.synced.get(source) == Some(&false)));
            }
            // These concern decisions, not objects.
            Event::Interrupted(_)
            | Event::Silent(_)
            | Event::Recovered(_)
            | Event::Answered(..)
            | Event::Probed(_)
            | Event::PodsObserved(_) => {}
            Event::Progress(watched, version) => {
                self.progress.insert(watched, version);
            }
        }
    }

    /// Sources that must relist: an object of theirs was evicted from the admission queue.
    pub(crate) fn sources_to_relist(&mut self) -> BTreeSet<Source> {
        self.admission_queue.sources_to_relist()
    }

    pub(crate) fn rejections(&mut self) -> Arc<Rejections> {
        self.rejections.publish(self.admission_queue.len())
    }

    pub(crate) fn get(&self, id: ServiceId) -> Option<&KnownService> {
        self.services.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn slice(&self, key: &SliceKey) -> Option<(&Arc<SliceFacts>, ServiceId)> {
        let (slice, service) = self.slices.get(key)?;
        Some((slice, (*service)?))
    }

    pub(crate) fn find_id(&self, key: &ServiceKey) -> Option<ServiceId> {
        self.names.get(key).copied()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ServiceId> {
        (0..).zip(&self.services).filter(|(_, known)| known.is_some()).map(|(id, _)| ServiceId(id))
    }

    /// Frees the id of a service that has neither facts nor slices. `false`: it still has some.
    pub(crate) fn forget(&mut self, id: ServiceId) -> bool {
        let gone = |known: &KnownService| known.facts.is_none() && known.slices.is_empty();
        let Some(position) = self.services.get_mut(id.0 as usize).filter(|it| it.as_ref().is_some_and(gone))
        else {
            return false;
        };
        if let Some(known) = position.take() {
            self.names.remove(&known.key);
            self.free.push(id);
            self.release_service(&known.key);
            self.has_free_capacity = true;
        }
        true
    }

    fn service_applied(&mut self, facts: Arc<ServiceFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.confirm_object(|| ObjectKey::Service(facts.key.clone()));
        let known = self.find_id(&facts.key);
        let cut = known.and_then(|id| self.get(id)).map(|known| known.truncation).unwrap_or_default();
        if let Some(rejection) = partial_rejection(&facts, &self.settings, cut) {
            self.reject(rejection);
        }
        let Some(id) = known.or_else(|| self.allocate_id(&facts.key)) else {
            return self.enqueue_service(facts);
        };
        self.assign_quota(id);
        let Some(known) = self.service_mut(id) else {
            self.impossible += 1;
            return;
        };
        let facts = keep_old_weights(known.facts.as_deref(), facts);
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
        self.confirm_object(|| ObjectKey::Service(key.clone()));
        let Some(id) = self.names.get(&key).copied() else { return self.admission_queue.take_service(&key) };
        if self.service_mut(id).is_some_and(|known| known.facts.take().is_some()) {
            dirty(id, Cause::ServiceDeleted(key, meta));
        }
    }

    fn slice_applied(&mut self, facts: Arc<SliceFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.confirm_object(|| ObjectKey::Slice(facts.key.clone()));
        let known = self.slices.get(&facts.key).map(|(old, _)| old);
        let facts = keep_old_slice_weights(known.map(Arc::as_ref), facts);
        if known.is_some_and(|old| *old == facts) {
            return;
        }
        let is_known = known.is_some();
        self.admission_queue.take_slice(&facts.key);
        let service = owning_service(&facts);
        let wanted = service.as_ref().and_then(|key| self.find_or_allocate_id(key));
        if is_known
            && let Some((_, Some(old))) = self.slices.remove(&facts.key)
            && Some(old) != wanted
        {
            self.drop_slice(old, &facts.key, dirty);
            dirty(old, Cause::SliceLeft(Arc::clone(&facts)));
        }
        match (wanted, service) {
            (Some(id), _) => self.put_slice(id, facts, dirty),
            (None, Some(service)) => self.enqueue_slice(&service, facts),
            (None, None) => drop(self.slices.insert(facts.key.clone(), (facts, None))),
        }
    }

    fn slice_deleted(
        &mut self,
        key: SliceKey,
        meta: Option<Box<Meta>>,
        dirty: &mut dyn FnMut(ServiceId, Cause),
    ) {
        self.confirm_object(|| ObjectKey::Slice(key.clone()));
        self.admission_queue.take_slice(&key);
        if let Some((_, Some(id))) = self.slices.remove(&key) {
            self.drop_slice(id, &key, dirty);
            dirty(id, Cause::SliceDeleted(key, meta));
        }
    }

    fn node_applied(&mut self, node: Arc<NodeFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        let moved = self.node.node_port_addresses != node.node_port_addresses;
        // NodePort addresses matter to all decisions only if some address is bypassed.
        let same_addresses = self.settings.apiservers().next().is_none() || !moved;
        let same_place = self.node.name == node.name && self.node.zone == node.zone && same_addresses;
        let changed = &(&self.node.node_port_addresses ^ &node.node_port_addresses)
            | &(&self.node.addresses ^ &node.addresses);
        self.node = node;
        // If the node is within a service's source ranges, the service's balancer addresses are added to them. No
        // tenant's service gets the node's own addresses.
        let is_concerned = |facts: &ServiceFacts| {
            moved && !facts.source_ranges.is_empty()
                || unallocated_addresses(facts).any(|address| changed.contains(&address))
        };
        let is_touched = |id: &ServiceId| {
            let facts = self.get(*id).and_then(|known| known.facts.as_deref());
            !same_place || facts.is_some_and(is_concerned)
        };
        self.ids().filter(is_touched).for_each(|id| dirty(id, Cause::NodeApplied));
    }

    /// An opened or closed socket affects services with an external IP of the node at its port.
    fn listeners_applied(&mut self, now: Arc<Listeners>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        let changed = self.listeners.as_ref().map(|before| before.changed_ports(&now));
        self.listeners = Some(now);
        let has_changed =
            |port: &ServicePort| changed.as_ref().is_none_or(|changed| changed.contains(port.port));
        let is_concerned = |facts: &ServiceFacts| {
            facts.external_ips.iter().any(|it| self.node.has_address(*it))
                && facts.ports.iter().any(has_changed)
        };
        let is_touched =
            |id: &ServiceId| self.get(*id).and_then(|known| known.facts.as_deref()).is_some_and(is_concerned);
        self.ids().filter(is_touched).for_each(|id| dirty(id, Cause::ListenersApplied));
    }

    fn settings_applied(&mut self, settings: Arc<Settings>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        if self.settings != settings {
            self.settings = settings;
            self.ids().for_each(|id| dirty(id, Cause::SettingsApplied));
        }
    }

    /// Records what a decision left out of a service. A rejection of the whole object takes precedence and stays.
    pub(crate) fn record_truncation(&mut self, id: ServiceId, cut: Truncation) {
        let Some(known) = self.service_mut(id).filter(|known| known.truncation != cut) else { return };
        known.truncation = cut;
        let Some(facts) = known.facts.clone() else { return };
        let object = ObjectKey::Service(facts.key.clone());
        if self.rejections.get(&object).is_some_and(|rejection| !rejection.partial) {
            return;
        }
        match partial_rejection(&facts, &self.settings, cut) {
            Some(rejection) => self.rejections.put(rejection),
            None => self.rejections.end(&object),
        }
    }

    fn service_mut(&mut self, id: ServiceId) -> Option<&mut KnownService> {
        self.services.get_mut(id.0 as usize)?.as_mut()
    }

    fn reject(&mut self, rejection: Rejection) {
        if self.is_newly_unreadable(&rejection) {
            self.unreadable.insert(rejection.object.source());
        }
        self.unconfirmed.reject(&rejection.object);
        self.rejections.put(rejection);
    }

    /// Records that a source delivered or deleted an object: it is neither rejected nor unconfirmed any more.
    fn confirm_object(&mut self, object: impl FnOnce() -> ObjectKey) {
        if !self.rejections.is_empty() || !self.unconfirmed.is_empty() {
            let object = object();
            self.rejections.end(&object);
            self.unconfirmed.confirm(&object);
        }
    }
}

/// Keeps the previous weights if the new ones cannot be read.
fn keep_old_weights(before: Option<&ServiceFacts>, mut facts: Arc<ServiceFacts>) -> Arc<ServiceFacts> {
    if facts.weights.as_ref().is_some_and(|asked| asked.wrong.is_some()) {
        let kept = before.and_then(|before| before.weights.as_deref());
        Arc::make_mut(&mut facts).weights.iter_mut().for_each(|asked| asked.keep_previous(kept));
    }
    facts
}

/// The same for a slice, even if it belonged to another service before: the endpoints are its own.
fn keep_old_slice_weights(before: Option<&SliceFacts>, mut facts: Arc<SliceFacts>) -> Arc<SliceFacts> {
    if facts.weights.as_ref().is_some_and(|asked| asked.wrong.is_some()) {
        let kept = before.and_then(|before| before.weights.as_deref());
        Arc::make_mut(&mut facts).weights.iter_mut().for_each(|asked| asked.keep_previous(kept));
    }
    facts
}

/// The service that a slice's label names, in the slice's own namespace and source.
pub(crate) fn owning_service(slice: &SliceFacts) -> Option<ServiceKey> {
    let name = slice.key.name.sibling(slice.service.as_ref()?).ok()?;
    Some(ServiceKey { name, source: slice.key.source })
}

/// The service's setting for an empty list, if it is valid.
pub(crate) fn on_empty_setting(facts: &ServiceFacts) -> Option<OnEmpty> {
    let is_shared = facts.kind == ServiceType::LoadBalancer
        || !facts.external_ips.is_empty()
        || !facts.ingress.is_empty();
    OnEmpty::from_spelling(facts.on_empty.as_deref()?).filter(|asked| *asked != OnEmpty::Pass || is_shared)
}

/// What is ignored of a service; the rest of it is served.
fn partial_rejection(facts: &ServiceFacts, settings: &Settings, cut: Truncation) -> Option<Rejection> {
    let reasons = [
        on_empty_error(facts),
        maglev_error(facts),
        prefix_error(facts),
        weights_error(facts),
        excess_frontends_reason(facts, settings),
        waiting_frontends_reason(cut.frontends, settings),
        excess_rows_reason(cut.ports),
        waiting_rows_reason(cut.rows),
        excess_ranges_reason(facts),
    ];
    let reasons: Vec<_> = reasons.into_iter().flatten().collect();
    (!reasons.is_empty()).then(|| Rejection {
        object: ObjectKey::Service(facts.key.clone()),
        origin: facts.meta.origin.clone(),
        reason: reasons.join("; ").into(),
        partial: true,
    })
}

/// An invalid on-empty annotation; the service is served without it.
fn on_empty_error(facts: &ServiceFacts) -> Option<String> {
    let word = facts.on_empty.as_deref().filter(|_| on_empty_setting(facts).is_none())?;
    Some(match OnEmpty::from_spelling(word) {
        Some(_) => {
            "on-empty \"pass\" is for load-balancer and external addresses, and this service has none".into()
        }
        None => {
            alloc::format!("on-empty {:?} is ignored: legal are auto, refuse, hold and pass", excerpt(word))
        }
    })
}

/// The same for Maglev.
fn maglev_error(facts: &ServiceFacts) -> Option<String> {
    let word = facts.maglev.as_deref().filter(|word| word.parse::<bool>().is_err())?;
    Some(alloc::format!("maglev {:?} is ignored: legal are true and false", excerpt(word)))
}

/// The same for the prefixes of session affinity.
fn prefix_error(facts: &ServiceFacts) -> Option<String> {
    let wrong = Prefixes::parse(facts.affinity_prefix.as_deref()?).err()?;
    Some(alloc::format!(
        "session-affinity-prefix is ignored, and clients are kept by whole addresses: {wrong}"
    ))
}

fn excerpt(word: &str) -> String {
    word.chars().take(EXCERPT_MAX).collect()
}

/// Weights that cannot be read; the previous ones stay.
fn weights_error(facts: &ServiceFacts) -> Option<String> {
    let wrong = facts.weights.as_ref()?.wrong.as_ref()?;
    Some(alloc::format!("its weights stay as they were: {wrong}"))
}

/// Ports times addresses beyond the limit of one service.
fn excess_frontends_reason(facts: &ServiceFacts, settings: &Settings) -> Option<String> {
    const MAX: usize = limits::FRONTENDS_PER_SERVICE_MAX;
    if frontends::frontends_upper_bound(facts) <= MAX {
        return None;
    }
    let wanted = frontends::count_frontends(facts, settings);
    let is_ours = || frontends::service_state(Some(facts), settings) == ServiceState::Served;
    (wanted > MAX && is_ours()).then(|| {
        alloc::format!(
            "its ports times addresses make {wanted} frontends: the first {MAX} are served and {} are left out, \
             external IPs first; spread them over several services",
            wanted - MAX
        )
    })
}

/// Frontends beyond the service's quota.
fn waiting_frontends_reason(beyond: usize, settings: &Settings) -> Option<String> {
    let most = limits::frontend_demand_max(settings.frontends_max?);
    (beyond > 0).then(|| {
        alloc::format!(
            "{beyond} of its frontends wait for room: all services may ask for {most} together, twice \
             `datapath.limits.frontends`, and each namespace leaves a part to others; delete some, or raise it"
        )
    })
}

/// Ports times endpoints beyond the limit of one service.
fn excess_rows_reason(cut: usize) -> Option<String> {
    const MAX: usize = limits::ROWS_PER_SERVICE_MAX;
    (cut > 0).then(|| {
        alloc::format!(
            "its ports times endpoints are more than {MAX}, so {cut} of its ports have only a part of their endpoints, ready \
             ones first; spread them over several services"
        )
    })
}

/// Ports times endpoints beyond the service's quota.
fn waiting_rows_reason(beyond: usize) -> Option<String> {
    (beyond > 0).then(|| {
        alloc::format!(
            "{beyond} of its ports times endpoints wait for room: all services may ask for twice \
             `datapath.limits.backends` together, and each namespace leaves a part to others; delete some, or \
             raise it"
        )
    })
}

/// Ports times source ranges beyond the limit of one service.
fn excess_ranges_reason(facts: &ServiceFacts) -> Option<String> {
    const MAX: usize = limits::SOURCES_PER_SERVICE_MAX;
    let beyond: usize =
        Family::ALL.map(|family| source_ranges::count_excess(facts, family)).into_iter().sum();
    (beyond > 0).then(|| {
        alloc::format!(
            "its ports times source ranges of a family are more than {MAX}, so the clients of {beyond} ranges, the \
             narrowest, are denied; join neighbouring ranges, or spread the ports over several services"
        )
    })
}

/// The addresses of a service that the apiserver does not allocate.
fn unallocated_addresses(facts: &ServiceFacts) -> impl Iterator<Item = IpAddr> {
    let of_import = facts.cluster_ips.iter().filter(|_| facts.kind == ServiceType::ClusterSetIp);
    let ingress = facts.ingress.iter().map(|ingress| ingress.address);
    facts.external_ips.iter().chain(of_import).copied().chain(ingress)
}

#[cfg(test)]
mod tests;
