//! What readers see: one consistent view of all services, published with each batch.
//!
//! Invariant: a snapshot never changes. It shares everything that did not change with the one before it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::time::Duration;

use crate::drains::Drains;
use crate::event::WatchKind;
use crate::facts::{Listeners, NodeFacts, ObjectKey, Rejection, Settings, Timestamp};
use crate::hold::Hold;
use crate::index::Seed;
use crate::keys::{ObjectName, Source};
use crate::op::ServiceId;
pub use crate::service_view::{
    FrontendView, PortView, Reason, ServiceState, ServiceView, Status, UnusedReason, Verdict,
};
use crate::shared_names::SharedNames;
use crate::shared_set::SharedSet;
use crate::shared_vec::SharedVec;
use crate::time::{ClockReading, Uptime};
use crate::totals::Totals;

/// Everything that rejected itself, named up to a bound.
#[derive(Clone, Debug, Default)]
pub struct Rejections {
    /// The named ones.
    pub named: BTreeMap<ObjectKey, Rejection>,
    /// How many more are rejected now.
    pub more: usize,
    /// How many objects wait for room; each of them is rejected until it has it.
    pub waiting: usize,
    /// How many rejections since the start had no room by name when they came.
    pub dropped: u64,
    /// How many rejections there were since the start.
    pub total: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches that were applied.
    pub batches: u64,
    /// Events that were applied.
    pub events: u64,
    /// Ops that the maps accepted.
    pub ops: u64,
    /// Ops that the maps refused, but for those beyond the part of a namespace.
    pub ops_failed: u64,
    /// Ops that were not even tried because their owner was not dirty. Must stay 0.
    pub cross_service: u64,
    /// Steps that the rules left out because what they were about was not there, though it always is. Must stay 0.
    pub impossible: u64,
    /// Things in the maps that another writer had changed.
    pub drift: u64,
    /// Change records that were made.
    pub changes: u64,
    /// Change records for which the recorder had no room.
    pub changes_dropped: u64,
}

/// How full the maps are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Frontends in the maps.
    pub frontends: usize,
    /// Port indices in use, those in their grace period included.
    pub ports: usize,
    /// Slots of IPv4 and IPv6 in use, in whole blocks.
    pub slots: [u64; 2],
    /// Members that lists have or may come to have; what is a member for its table alone is left out.
    pub members: u32,
    /// Services waiting for another try.
    pub retries: usize,
    /// Those of them that wait for something else than room beyond the part of their own namespace.
    pub failing: usize,
}

/// How a comparison of the maps with what was written to them went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCheck {
    pub at: Timestamp,
    /// Things that another writer had changed.
    pub differences: usize,
}

/// All services, by their ids and by their names; cheap to copy. What readers ask of all of them is known without a
/// look at each: how many there are of what, which need an explanation, and which have a load balancer.
#[derive(Clone, Debug, Default)]
pub struct ServiceViews {
    views: SharedVec<Arc<ServiceView>>,
    names: SharedNames,
    totals: Totals,
    with_problems: SharedSet,
    with_balancer: SharedSet,
}

impl ServiceViews {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { names: SharedNames::new(seed), ..Self::default() }
    }

    pub fn get(&self, id: ServiceId) -> Option<&Arc<ServiceView>> {
        self.views.get(id.0 as usize)
    }

    /// All services, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServiceView>> {
        self.views.iter()
    }

    /// The services of exactly this name, one for each source that has it.
    pub fn find_by_name(&self, name: &ObjectName) -> impl Iterator<Item = &Arc<ServiceView>> {
        let near = self.names.candidate_ids(name).iter().filter_map(|id| self.get(*id));
        near.filter(move |view| view.key.name == *name)
    }

    /// How many of what there are.
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The services with a frontend that needs an explanation.
    pub fn with_problems(&self) -> impl Iterator<Item = &Arc<ServiceView>> {
        self.with_problems.iter().filter_map(|id| self.get(id))
    }

    /// The services with a load balancer, those that ask for one, and those with a port for its health checks.
    pub fn with_balancer(&self) -> impl Iterator<Item = &Arc<ServiceView>> {
        self.with_balancer.iter().filter_map(|id| self.get(id))
    }

    /// Whether one is an unchanged clone of the other. If not, they may say the same all the same.
    pub fn is_same(&self, other: &Self) -> bool {
        self.views.is_same(&other.views)
    }

    /// Sets a service's view, or takes it away.
    pub fn set(&mut self, id: ServiceId, view: Option<Arc<ServiceView>>) {
        let before = self.get(id).cloned();
        let [old, new] = [&before, &view].map(|view| view.as_ref().map(|view| &view.key.name));
        if old != new {
            old.inspect(|name| self.names.remove(name, id));
            new.inspect(|name| self.names.add(name, id));
        }
        before.as_deref().into_iter().for_each(|view| self.totals.take(view));
        view.as_deref().into_iter().for_each(|view| self.totals.add(view));
        self.with_problems.set(id, view.as_deref().is_some_and(ServiceView::has_problem));
        self.with_balancer.set(id, view.as_deref().is_some_and(ServiceView::has_balancer));
        self.views.set(id.0 as usize, view);
    }
}

/// One consistent view of everything.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All services that are known, in no meaningful order.
    pub services: ServiceViews,
    /// How often each source was asked to tell everything once more, because something that it told found no room.
    pub relist_requests: BTreeMap<Source, u64>,
    /// When each source was asked last whether the endpoints of held lists are back, if it ever was.
    pub queries: BTreeMap<Source, Uptime>,
    /// Everything that rejected itself.
    pub rejections: Arc<Rejections>,
    /// The own node.
    pub node: Arc<NodeFacts>,
    /// The sockets of the node that wait for clients; `None`: they are not known.
    pub listeners: Option<Arc<Listeners>>,
    /// The settings in force.
    pub settings: Arc<Settings>,
    /// The drains in force.
    pub drains: Arc<Drains>,
    /// Sources that must deliver before anything is removed, and whether they have.
    pub sources: BTreeMap<Source, bool>,
    /// Sources that have not delivered because they cannot be read: nothing but removals waits for them.
    pub unreadable: BTreeSet<Source>,
    /// Services of which some list is held.
    pub held: Arc<BTreeSet<ServiceId>>,
    /// Up to which version of the apiserver each kind is known.
    pub progress: BTreeMap<WatchKind, Arc<str>>,
    /// When the sources last confirmed to a former process what is shown; `None` once every source has delivered to
    /// this one.
    pub stale_since: Option<Timestamp>,
    /// Whether the maps follow the rules: from the first whole list on, or from what was remembered.
    pub programmed: bool,
    /// Whether something of the first lists is still to be written, or of what was remembered, for the first time.
    pub filling: bool,
    /// Whether services are still to be carried out, so that the views say less than the sources have told.
    pub behind: bool,
    /// Counters since the start.
    pub counters: Counters,
    /// How full the maps are.
    pub fill: Fill,
    /// The last comparison of the maps with what was written, once there was one.
    pub checked: Option<MapCheck>,
    /// When it was published.
    pub published: Timestamp,
    /// When it was published, on the clock that holds are counted on.
    pub mono: Duration,
}

impl Snapshot {
    /// Whether every source has delivered.
    pub fn is_synced(&self) -> bool {
        !self.sources.is_empty() && self.sources.values().all(|synced| *synced)
    }

    /// Whether every source has delivered that can be read.
    pub fn is_readable_synced(&self) -> bool {
        let mut sources = self.sources.iter();
        !self.sources.is_empty()
            && sources.all(|(source, synced)| *synced || self.unreadable.contains(source))
    }

    /// Whether the snapshot says anything that the one before did not, beyond the time and that the engine still runs.
    pub fn differs_from(&self, before: &Self) -> bool {
        let Self {
            services,
            relist_requests: asks,
            queries: questions,
            rejections,
            node,
            settings,
            drains,
            sources,
            held,
            progress,
            ..
        } = self;
        let shares_all = services.is_same(&before.services)
            && Arc::ptr_eq(rejections, &before.rejections)
            && Arc::ptr_eq(node, &before.node)
            && Arc::ptr_eq(settings, &before.settings)
            && Arc::ptr_eq(drains, &before.drains)
            && Arc::ptr_eq(held, &before.held);
        let counters = Counters { batches: before.counters.batches, ..self.counters };
        let is_as_it_was = (asks, sources, progress)
            == (&before.relist_requests, &before.sources, &before.progress)
            && *questions == before.queries
            && self.unreadable == before.unreadable
            && self.listeners == before.listeners
            && (self.stale_since, self.programmed, self.filling, self.behind)
                == (before.stale_since, before.programmed, before.filling, before.behind)
            && (counters, self.fill, self.checked) == (before.counters, before.fill, before.checked);
        !(shares_all && is_as_it_was)
    }

    /// Up to which version of the apiserver the views have all objects of each kind. Nothing while the views are
    /// behind: a process that went on from the version would never hear of the changes that the views lack.
    pub fn resumable_progress(&self) -> BTreeMap<WatchKind, Arc<str>> {
        if self.behind { BTreeMap::new() } else { self.progress.clone() }
    }

    /// When it was published, on both clocks.
    pub const fn clock(&self) -> ClockReading {
        ClockReading { wall: self.published, mono: self.mono }
    }

    /// When a hold ends at the latest, by the wall clock as it stands.
    pub fn hold_until(&self, hold: &Hold) -> Option<Timestamp> {
        hold.deadline(&self.settings.hold).map(|until| self.clock().wall_at(until))
    }

    /// When the sources last confirmed what it says: a process that only remembered confirms nothing, however long it
    /// ran.
    pub fn confirmed_at(&self) -> Timestamp {
        self.stale_since.unwrap_or(self.published)
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;
    use crate::keys::ServiceKey;

    fn view(number: usize, source: Source) -> Arc<ServiceView> {
        let name = ObjectName::new("default", &format!("service-{number}")).unwrap();
        Arc::new(ServiceView {
            key: ServiceKey { name, source },
            facts: None,
            slices: Arc::default(),
            state: ServiceState::NoService,
            ports: Box::default(),
            frontends: Box::default(),
            balancer_history: None,
        })
    }

    /// More names than places, each set, taken away or replaced by another one again and again.
    #[test]
    fn what_is_found_by_a_name_is_what_a_walk_finds() {
        let mut views = ServiceViews::new(Seed(7));
        let mut before = views.clone();
        for turn in 0..60_000_usize {
            let (id, number) = (turn * 7 % 9_000, turn * 13 % 10_000);
            let source = Source::ALL[turn % Source::ALL.len()];
            views.set(ServiceId(id.try_into().unwrap()), (turn % 5 > 0).then(|| view(number, source)));
            if turn % 997 == 0 {
                let name = &view(number, source).key.name;
                let by_walk = |views: &ServiceViews| {
                    views.iter().filter(|view| view.key.name == *name).map(Arc::as_ptr).collect::<Vec<_>>()
                };
                let found =
                    |views: &ServiceViews| views.find_by_name(name).map(Arc::as_ptr).collect::<Vec<_>>();
                assert_eq!(found(&views), by_walk(&views), "turn {turn}");
                assert_eq!(
                    found(&before),
                    by_walk(&before),
                    "turn {turn}: a clone never sees a later change"
                );
                before = views.clone();
            }
        }
    }
}
