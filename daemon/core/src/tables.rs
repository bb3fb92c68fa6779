//! The facts of all objects, and which slices belong to which service.
//!
//! Invariant: a service is found by its exact key only, and a slice belongs to the one service that its label names, in
//! its own namespace and source.

mod delivery;
mod rejected;
mod remembered;
mod residents;
mod rooms;
mod waiting;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::net::IpAddr;

use crate::affinity::Prefixes;
use crate::change::Cause;
use crate::drains::Drains;
use crate::event::{Event, Watched};
use crate::facts::{
    Listeners, Meta, NodeFacts, ObjectKey, Rejection, ServiceFacts, ServicePort, ServiceType, Settings,
    SliceFacts, Timestamp,
};
use crate::hold::OnEmpty;
use crate::index::{Index, Seed};
use crate::keys::{Family, ServiceKey, SliceKey, Source};
use crate::limits;
use crate::op::{ServiceId, Share};
use crate::resolve::{Cut, frontends};
use crate::snapshot::{Rejections, ServiceState};
use crate::sources;
use crate::spelled::Spelled;
use rejected::Rejected;
use remembered::Unconfirmed;
use residents::Residents;
use waiting::Waiting;

/// How many characters are shown of a word that is not a legal one.
const SHOWN_MAX: usize = 40;

/// One service with its own slices; the object itself may not have come yet.
#[derive(Debug)]
pub(crate) struct KnownService {
    pub(crate) key: ServiceKey,
    /// The number of its namespace, once the object itself has come.
    pub(crate) share: Share,
    pub(crate) facts: Option<Arc<ServiceFacts>>,
    /// In the order of their names.
    pub(crate) slices: Vec<Arc<SliceFacts>>,
    /// What the last decision left out.
    pub(crate) cut: Cut,
}

#[derive(Debug)]
pub(crate) struct Tables {
    names: Index<ServiceKey, ServiceId>,
    services: Vec<Option<KnownService>>,
    free: Vec<ServiceId>,
    services_max: usize,
    /// Room came free that waiting services may have, and none has looked for it since.
    admits: bool,
    slices: Index<SliceKey, (Arc<SliceFacts>, Option<ServiceId>)>,
    pub(crate) node: Arc<NodeFacts>,
    /// `None`: they are not known.
    pub(crate) listeners: Option<Arc<Listeners>>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) drains: Arc<Drains>,
    rejected: Rejected,
    waiting: Waiting,
    residents: Residents,
    pub(crate) synced: BTreeMap<Source, bool>,
    /// Sources that have delivered nothing whole and that nothing waits for.
    absent: BTreeSet<Source>,
    /// Sources that cannot be read, so that they have delivered nothing whole yet: removals wait for them, and nothing
    /// else does.
    unreadable: BTreeSet<Source>,
    pub(crate) progress: BTreeMap<Watched, Arc<str>>,
    /// When the sources last confirmed, to a former process, what this one began with.
    pub(crate) remembered_at: Option<Timestamp>,
    unconfirmed: Unconfirmed,
    /// Steps that were left out, because something was missing that always is there.
    pub(crate) impossible: u64,
}

impl Tables {
    /// Empty tables that wait for the first whole list of these sources.
    pub(crate) fn new(seed: Seed, sources: &[Source], services_max: usize) -> Self {
        Self {
            names: Index::new(seed),
            services: Vec::new(),
            free: Vec::new(),
            services_max,
            admits: false,
            slices: Index::new(seed),
            node: Arc::default(),
            listeners: None,
            settings: Arc::default(),
            drains: Arc::default(),
            rejected: Rejected::default(),
            waiting: Waiting::default(),
            residents: Residents::default(),
            synced: sources.iter().map(|source| (*source, false)).collect(),
            absent: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            progress: BTreeMap::new(),
            remembered_at: None,
            unconfirmed: Unconfirmed::new(seed),
            impossible: 0,
        }
    }

    /// What decides whether a frontend is the node's own.
    pub(crate) fn host(&self) -> (&Settings, &NodeFacts, Option<&Listeners>) {
        (&self.settings, &self.node, self.listeners.as_deref())
    }

    /// The number of a service's namespace.
    pub(crate) fn share(&self, id: ServiceId) -> Share {
        self.get(id).map(|known| known.share).unwrap_or_default()
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
            Event::ListenersApplied(listeners) => self.listeners_applied(listeners, dirty),
            Event::SettingsApplied(settings) => self.settings_applied(settings, dirty),
            // Which services that touches is found out piece by piece.
            Event::DrainsApplied(drains, _) => self.drains = drains,
            Event::Resumed(source) => self.unconfirmed.confirm_all(source),
            Event::Synced(source) => self.source_synced(source, dirty),
            Event::Absent(source) => {
                self.absent.extend(Some(source).filter(|source| self.synced.get(source) == Some(&false)));
            }
            // These concern what was decided, not what the objects say.
            Event::Interrupted(_)
            | Event::Silent(_)
            | Event::Heard(_)
            | Event::Answered(..)
            | Event::Probed(_)
            | Event::PodsHeard(_) => {}
            Event::Progress(watched, version) => {
                self.progress.insert(watched, version);
            }
        }
    }

    /// Sources that are to tell everything once more: something of theirs found no room, not even to wait.
    pub(crate) fn sources_to_ask(&mut self) -> BTreeSet<Source> {
        self.waiting.sources_to_ask()
    }

    /// What readers see of what is rejected.
    pub(crate) fn rejections(&mut self) -> Arc<Rejections> {
        self.rejected.shared(self.waiting.len())
    }

    /// What is known under an id.
    pub(crate) fn get(&self, id: ServiceId) -> Option<&KnownService> {
        self.services.get(id.0 as usize)?.as_ref()
    }

    /// A slice that is known, and its service.
    pub(crate) fn slice(&self, key: &SliceKey) -> Option<(&Arc<SliceFacts>, ServiceId)> {
        let (slice, service) = self.slices.get(key)?;
        Some((slice, (*service)?))
    }

    /// The id of a service that is known.
    pub(crate) fn id_of(&self, key: &ServiceKey) -> Option<ServiceId> {
        self.names.get(key).copied()
    }

    /// Every id in use.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ServiceId> {
        (0..).zip(&self.services).filter(|(_, known)| known.is_some()).map(|(id, _)| ServiceId(id))
    }

    /// Gives back the id of a service of which nothing is known any more. `false`: something is still known of it.
    pub(crate) fn forget(&mut self, id: ServiceId) -> bool {
        let gone = |known: &KnownService| known.facts.is_none() && known.slices.is_empty();
        let Some(position) = self.services.get_mut(id.0 as usize).filter(|it| it.as_ref().is_some_and(gone))
        else {
            return false;
        };
        if let Some(known) = position.take() {
            self.names.remove(&known.key);
            self.free.push(id);
            self.moved_out(&known.key);
            self.admits = true;
        }
        true
    }

    fn service_applied(&mut self, facts: Arc<ServiceFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.spoken_of(|| ObjectKey::Service(facts.key.clone()));
        let known = self.id_of(&facts.key);
        let cut = known.and_then(|id| self.get(id)).map(|known| known.cut).unwrap_or_default();
        if let Some(rejection) = rejected_part(&facts, &self.settings, cut) {
            self.reject(rejection);
        }
        let Some(id) = known.or_else(|| self.newcomers_id(&facts.key)) else {
            return self.let_service_wait(facts);
        };
        self.number(id);
        let Some(known) = self.known(id) else {
            self.impossible += 1;
            return;
        };
        let facts = with_weights_of(known.facts.as_deref(), facts);
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
        let Some(id) = self.names.get(&key).copied() else { return self.waiting.take_service(&key) };
        if self.known(id).is_some_and(|known| known.facts.take().is_some()) {
            dirty(id, Cause::ServiceDeleted(key, meta));
        }
    }

    fn slice_applied(&mut self, facts: Arc<SliceFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.spoken_of(|| ObjectKey::Slice(facts.key.clone()));
        let known = self.slices.get(&facts.key).map(|(old, _)| old);
        let facts = with_slice_weights_of(known.map(Arc::as_ref), facts);
        if known.is_some_and(|old| *old == facts) {
            return;
        }
        let is_known = known.is_some();
        self.waiting.take_slice(&facts.key);
        let service = service_of(&facts);
        let wanted = service.as_ref().and_then(|key| self.id(key));
        if is_known
            && let Some((_, Some(old))) = self.slices.remove(&facts.key)
            && Some(old) != wanted
        {
            self.drop_slice(old, &facts.key, dirty);
            dirty(old, Cause::SliceLeft(Arc::clone(&facts)));
        }
        match (wanted, service) {
            (Some(id), _) => self.put_slice(id, facts, dirty),
            (None, Some(service)) => self.let_slice_wait(&service, facts),
            (None, None) => drop(self.slices.insert(facts.key.clone(), (facts, None))),
        }
    }

    fn slice_deleted(
        &mut self,
        key: SliceKey,
        meta: Option<Box<Meta>>,
        dirty: &mut dyn FnMut(ServiceId, Cause),
    ) {
        self.spoken_of(|| ObjectKey::Slice(key.clone()));
        self.waiting.take_slice(&key);
        if let Some((_, Some(id))) = self.slices.remove(&key) {
            self.drop_slice(id, &key, dirty);
            dirty(id, Cause::SliceDeleted(key, meta));
        }
    }

    fn node_applied(&mut self, node: Arc<NodeFacts>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        let moved = self.node.node_port_addresses != node.node_port_addresses;
        // At which addresses NodePorts answer matters to all decisions only if some address is bypassed.
        let same_addresses = self.settings.apiservers().next().is_none() || !moved;
        let same_place = self.node.name == node.name && self.node.zone == node.zone && same_addresses;
        let turned = &(&self.node.node_port_addresses ^ &node.node_port_addresses)
            | &(&self.node.addresses ^ &node.addresses);
        self.node = node;
        // A node within a service's source ranges has the addresses of the service's balancer added to them; and no
        // service of a tenant gets what is the node's own.
        let is_concerned = |facts: &ServiceFacts| {
            moved && !facts.source_ranges.is_empty() || chosen(facts).any(|address| turned.contains(&address))
        };
        let is_touched = |id: &ServiceId| {
            let facts = self.get(*id).and_then(|known| known.facts.as_deref());
            !same_place || facts.is_some_and(is_concerned)
        };
        self.ids().filter(is_touched).for_each(|id| dirty(id, Cause::NodeApplied));
    }

    /// A socket that comes or goes matters to services with an external IP of the node at its port.
    fn listeners_applied(&mut self, now: Option<Arc<Listeners>>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        let before = mem::replace(&mut self.listeners, now);
        let turned = match (&before, &self.listeners) {
            (Some(before), Some(now)) => Some(before.turned(now)),
            (None, None) => return,
            _ => None,
        };
        let turns = |port: &ServicePort| turned.as_ref().is_none_or(|turned| turned.contains(&port.port));
        let is_concerned = |facts: &ServiceFacts| {
            facts.external_ips.iter().any(|it| self.node.has(*it)) && facts.ports.iter().any(turns)
        };
        let is_touched =
            |id: &ServiceId| self.get(*id).and_then(|known| known.facts.as_deref()).is_some_and(is_concerned);
        self.ids().filter(is_touched).for_each(|id| dirty(id, Cause::NodeApplied));
    }

    fn settings_applied(&mut self, settings: Arc<Settings>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        if self.settings != settings {
            self.settings = settings;
            self.ids().for_each(|id| dirty(id, Cause::SettingsApplied));
        }
    }

    /// Notes what a decision left out of a service. A rejection of the whole object says more than that, so it stays.
    pub(crate) fn cut_short(&mut self, id: ServiceId, cut: Cut) {
        let Some(known) = self.known(id).filter(|known| known.cut != cut) else { return };
        known.cut = cut;
        let Some(facts) = known.facts.clone() else { return };
        let object = ObjectKey::Service(facts.key.clone());
        if self.rejected.get(&object).is_some_and(|rejection| !rejection.partial) {
            return;
        }
        match rejected_part(&facts, &self.settings, cut) {
            Some(rejection) => self.rejected.put(rejection),
            None => self.rejected.end(&object),
        }
    }

    fn known(&mut self, id: ServiceId) -> Option<&mut KnownService> {
        self.services.get_mut(id.0 as usize)?.as_mut()
    }

    fn reject(&mut self, rejection: Rejection) {
        if self.begins_unreadable(&rejection) {
            self.unreadable.insert(rejection.object.source());
        }
        self.unconfirmed.reject(&rejection.object);
        self.rejected.put(rejection);
    }

    /// Notes that a source told of an object, understood or deleted: it is neither rejected nor merely remembered any
    /// more.
    fn spoken_of(&mut self, object: impl FnOnce() -> ObjectKey) {
        if !self.rejected.is_empty() || !self.unconfirmed.is_empty() {
            let object = object();
            self.rejected.end(&object);
            self.unconfirmed.confirm(&object);
        }
    }
}

/// The facts, with the weights of before where those of now cannot be read.
fn with_weights_of(before: Option<&ServiceFacts>, mut facts: Arc<ServiceFacts>) -> Arc<ServiceFacts> {
    if facts.weights.as_ref().is_some_and(|asked| asked.wrong.is_some()) {
        let kept = before.and_then(|before| before.weights.as_deref());
        Arc::make_mut(&mut facts).weights.iter_mut().for_each(|asked| asked.keep(kept));
    }
    facts
}

/// The same of a slice. What was known of it as another service's counts too: the endpoints are the slice's own.
fn with_slice_weights_of(before: Option<&SliceFacts>, mut facts: Arc<SliceFacts>) -> Arc<SliceFacts> {
    if facts.weights.as_ref().is_some_and(|asked| asked.wrong.is_some()) {
        let kept = before.and_then(|before| before.weights.as_deref());
        Arc::make_mut(&mut facts).weights.iter_mut().for_each(|asked| asked.keep(kept));
    }
    facts
}

/// The service that a slice's label names: in the slice's own namespace and source.
pub(crate) fn service_of(slice: &SliceFacts) -> Option<ServiceKey> {
    let name = slice.key.name.beside(slice.service.as_ref()?).ok()?;
    Some(ServiceKey { name, source: slice.key.source })
}

/// What the service asks for where a list would become empty, if that can be followed.
pub(crate) fn on_empty(facts: &ServiceFacts) -> Option<OnEmpty> {
    let is_shared = facts.kind == ServiceType::LoadBalancer
        || !facts.external_ips.is_empty()
        || !facts.ingress.is_empty();
    OnEmpty::find(facts.on_empty.as_deref()?).filter(|asked| *asked != OnEmpty::Pass || is_shared)
}

/// What of a service counts for nothing; the rest of it is served.
fn rejected_part(facts: &ServiceFacts, settings: &Settings, cut: Cut) -> Option<Rejection> {
    let reasons = [
        wrong_setting(facts),
        wrong_maglev(facts),
        wrong_prefix(facts),
        wrong_weights(facts),
        frontends_beyond(facts, settings),
        frontends_waiting(cut.frontends, settings),
        rows_beyond(cut.ports),
        rows_waiting(cut.rows),
        ranges_beyond(facts),
    ];
    let reasons: Vec<_> = reasons.into_iter().flatten().collect();
    (!reasons.is_empty()).then(|| Rejection {
        object: ObjectKey::Service(facts.key.clone()),
        origin: facts.meta.origin.clone(),
        reason: reasons.join("; ").into(),
        partial: true,
    })
}

/// The annotation that cannot be followed; the service is served as if it were not there.
fn wrong_setting(facts: &ServiceFacts) -> Option<String> {
    let word = facts.on_empty.as_deref().filter(|_| on_empty(facts).is_none())?;
    Some(match OnEmpty::find(word) {
        Some(_) => {
            "on-empty \"pass\" is for load-balancer and external addresses, and this service has none".into()
        }
        None => {
            alloc::format!("on-empty {:?} is ignored: legal are auto, refuse, hold and pass", shown(word))
        }
    })
}

/// The same for Maglev.
fn wrong_maglev(facts: &ServiceFacts) -> Option<String> {
    let word = facts.maglev.as_deref().filter(|word| word.parse::<bool>().is_err())?;
    Some(alloc::format!("maglev {:?} is ignored: legal are true and false", shown(word)))
}

/// The same for the prefixes by which clients are kept.
fn wrong_prefix(facts: &ServiceFacts) -> Option<String> {
    let wrong = Prefixes::read(facts.affinity_prefix.as_deref()?).err()?;
    Some(alloc::format!(
        "session-affinity-prefix is ignored, and clients are kept by whole addresses: {wrong}"
    ))
}

fn shown(word: &str) -> String {
    word.chars().take(SHOWN_MAX).collect()
}

/// Weights that cannot be read: those of before stay.
fn wrong_weights(facts: &ServiceFacts) -> Option<String> {
    let wrong = facts.weights.as_ref()?.wrong.as_ref()?;
    Some(alloc::format!("its weights stay as they were: {wrong}"))
}

/// Ports times addresses beyond what one service may have.
fn frontends_beyond(facts: &ServiceFacts, settings: &Settings) -> Option<String> {
    const MAX: usize = limits::FRONTENDS_PER_SERVICE_MAX;
    if frontends::wanted_at_most(facts) <= MAX {
        return None;
    }
    let wanted = frontends::wanted(facts, settings);
    let is_ours = || frontends::state(Some(facts), settings) == ServiceState::Served;
    (wanted > MAX && is_ours()).then(|| {
        alloc::format!(
            "its ports and addresses make {wanted} frontends, of which the first {MAX} are served and {} are left out, \
             external IPs first; spread them over several services",
            wanted - MAX
        )
    })
}

/// Frontends beyond the service's part of what all services together may ask for.
fn frontends_waiting(beyond: usize, settings: &Settings) -> Option<String> {
    let most = limits::frontends_asked_max(settings.frontends_max?);
    (beyond > 0).then(|| {
        alloc::format!(
            "{beyond} of its frontends wait for room: all services may ask for {most} together, twice \
             `datapath.limits.frontends`, and a namespace leaves others a part of the rest; delete some, or raise it"
        )
    })
}

/// Ports times endpoints beyond what one service may have.
fn rows_beyond(cut: usize) -> Option<String> {
    const MAX: usize = limits::ROWS_PER_SERVICE_MAX;
    (cut > 0).then(|| {
        alloc::format!(
            "its ports times endpoints are more than {MAX}, so {cut} of its ports have only a part of their endpoints, ready \
             ones first; spread them over several services"
        )
    })
}

/// Ports times endpoints beyond the service's part of what all services together may ask for.
fn rows_waiting(beyond: usize) -> Option<String> {
    (beyond > 0).then(|| {
        alloc::format!(
            "{beyond} of its ports times endpoints wait for room: all services may ask for twice \
             `datapath.limits.backends` together, and a namespace leaves others a part of the rest; delete some, or \
             raise it"
        )
    })
}

/// Ports times source ranges beyond what one service may have.
fn ranges_beyond(facts: &ServiceFacts) -> Option<String> {
    const MAX: usize = limits::SOURCES_PER_SERVICE_MAX;
    let beyond: usize = Family::ALL.map(|family| sources::beyond(facts, family)).into_iter().sum();
    (beyond > 0).then(|| {
        alloc::format!(
            "its ports times source ranges of a family are more than {MAX}, so the clients of {beyond} ranges, the \
             narrowest, do not get in; join neighbouring ranges, or spread the ports over several services"
        )
    })
}

/// The addresses of a service that the apiserver does not give out.
fn chosen(facts: &ServiceFacts) -> impl Iterator<Item = IpAddr> {
    let of_import = facts.cluster_ips.iter().filter(|_| facts.kind == ServiceType::ClusterSetIp);
    let ingress = facts.ingress.iter().map(|ingress| ingress.address);
    facts.external_ips.iter().chain(of_import).copied().chain(ingress)
}

#[cfg(test)]
mod tests;
