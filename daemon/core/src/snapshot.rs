//! One consistent view of all services for readers, published with each batch.
//!
//! Invariant: a snapshot never changes. It shares unchanged parts with the one before it.

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

/// Everything that is rejected, named up to a limit.
#[derive(Clone, Debug, Default)]
pub struct Rejections {
    pub named: BTreeMap<ObjectKey, Rejection>,
    /// How many more are rejected now.
    pub more: usize,
    /// How many objects wait for capacity; each of them is rejected until admitted.
    pub waiting: usize,
    /// Rejections since the start that came while the named ones were full.
    pub dropped: u64,
    pub total: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub batches: u64,
    pub events: u64,
    pub ops: u64,
    /// Ops that the maps refused, except those beyond a namespace's quota.
    pub ops_failed: u64,
    /// Ops that were skipped because their owner was not dirty. Must stay 0.
    pub cross_service: u64,
    /// Steps that were skipped because their subject was missing. Must stay 0.
    pub impossible: u64,
    /// Map entries that another writer had changed.
    pub drift: u64,
    pub changes: u64,
    /// Change records that the recorder dropped because it was full.
    pub changes_dropped: u64,
}

/// How full the maps are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    pub frontends: usize,
    /// Port indices in use, including those in their grace period.
    pub ports: usize,
    /// Slots of IPv4 and IPv6 in use, in whole blocks.
    pub slots: [u64; 2],
    /// Members that lists have or may come to have, without those that only Maglev tables have.
    pub members: u32,
    /// Services that wait for a retry.
    pub retries: usize,
    /// Those that do not wait merely for their namespace's quota.
    pub failing: usize,
}

/// The result of comparing the maps with what was written to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCheck {
    pub at: Timestamp,
    /// Entries that another writer had changed.
    pub differences: usize,
}

/// All services, by id and by name; cheap to copy. It maintains totals, the services that need an explanation and those
/// with a load balancer, so that readers need not visit every service.
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

    /// The services of exactly this name, one per source.
    pub fn find_by_name(&self, name: &ObjectName) -> impl Iterator<Item = &Arc<ServiceView>> {
        let near = self.names.candidate_ids(name).iter().filter_map(|id| self.get(*id));
        near.filter(move |view| view.key.name == *name)
    }

    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The services with a frontend that needs an explanation.
    pub fn with_problems(&self) -> impl Iterator<Item = &Arc<ServiceView>> {
        self.with_problems.iter().filter_map(|id| self.get(id))
    }

    /// The services that have or request a load balancer, or have a health-check port.
    pub fn with_balancer(&self) -> impl Iterator<Item = &Arc<ServiceView>> {
        self.with_balancer.iter().filter_map(|id| self.get(id))
    }

    /// Whether one is an unchanged clone of the other. If not, their contents may still be equal.
    pub fn is_same(&self, other: &Self) -> bool {
        self.views.is_same(&other.views)
    }

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
    /// All known services, in no meaningful order.
    pub services: ServiceViews,
    /// How often each source was asked to relist, because an object of it found no capacity.
    pub relist_requests: BTreeMap<Source, u64>,
    /// When each source was last asked whether the endpoints of held lists are back.
    pub queries: BTreeMap<Source, Uptime>,
    pub rejections: Arc<Rejections>,
    pub node: Arc<NodeFacts>,
    /// The listening sockets of the node; `None`: unknown.
    pub listeners: Option<Arc<Listeners>>,
    pub settings: Arc<Settings>,
    pub drains: Arc<Drains>,
    /// Sources that must sync before anything is removed, and whether they have.
    pub sources: BTreeMap<Source, bool>,
    /// Sources that have not synced because they cannot be read: only removals wait for them.
    pub unreadable: BTreeSet<Source>,
    pub held: Arc<BTreeSet<ServiceId>>,
    /// The last apiserver version received for each kind.
    pub progress: BTreeMap<WatchKind, Arc<str>>,
    /// When the sources last confirmed this state to a former process; `None` once every source has synced with this
    /// one.
    pub stale_since: Option<Timestamp>,
    /// Whether the maps follow the rules, from the first complete list or the restored state on.
    pub programmed: bool,
    /// Whether objects of the first lists or the restored state have yet to be written for the first time.
    pub filling: bool,
    /// Whether services have yet to be realized, so that the views lag behind the sources.
    pub behind: bool,
    pub counters: Counters,
    pub fill: Fill,
    /// The last comparison of the maps with what was written, if any.
    pub checked: Option<MapCheck>,
    pub published: Timestamp,
    /// When it was published, on the clock that times holds.
    pub mono: Duration,
    /// The wall clock when the process's clock began. Both clocks are cut to seconds at different moments, so it stays
    /// as it was first read until the wall clock is set.
    pub epoch: Timestamp,
}

impl Snapshot {
    pub fn is_synced(&self) -> bool {
        !self.sources.is_empty() && self.sources.values().all(|synced| *synced)
    }

    pub fn is_readable_synced(&self) -> bool {
        let mut sources = self.sources.iter();
        !self.sources.is_empty()
            && sources.all(|(source, synced)| *synced || self.unreadable.contains(source))
    }

    /// Whether anything changed since the earlier snapshot, except the time and the batch count.
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

    /// The apiserver version up to which the views have all objects of each kind. Empty while the views lag: a process
    /// that resumed from the version would miss the changes that the views lack.
    pub fn resumable_progress(&self) -> BTreeMap<WatchKind, Arc<str>> {
        if self.behind { BTreeMap::new() } else { self.progress.clone() }
    }

    /// The time of the snapshot. It puts a time of the process's clock at the same second whenever it is asked.
    pub fn clock(&self) -> ClockReading {
        let mono = ClockReading { wall: self.published, mono: self.mono }.uptime().0;
        ClockReading { wall: Timestamp(self.current_epoch().0.saturating_add(mono)), mono: self.mono }
    }

    /// The first reading of the wall clock's offset, or the one of this snapshot if the wall clock was set since.
    pub(crate) fn current_epoch(&self) -> Timestamp {
        let mono = ClockReading { wall: self.published, mono: self.mono }.uptime().0;
        let read = self.published.0.saturating_sub(mono);
        let is_same = read.saturating_sub(self.epoch.0).saturating_abs() <= 1;
        if is_same { self.epoch } else { Timestamp(read) }
    }

    /// The latest end of a hold, on the current wall clock.
    pub fn hold_until(&self, hold: &Hold) -> Option<Timestamp> {
        hold.deadline(&self.settings.hold).map(|until| self.clock().wall_at(until))
    }

    /// When the sources last confirmed the state. A process that only restored state confirms nothing, however long it
    /// runs.
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

    /// The two clocks change their second at different moments.
    #[test]
    fn a_time_of_the_process_is_at_one_second_until_the_wall_clock_is_set() {
        let mut snapshot = Snapshot::default();
        let mut since = |wall, mono| {
            (snapshot.published, snapshot.mono) = (Timestamp(wall), Duration::from_millis(mono));
            snapshot.epoch = snapshot.current_epoch();
            snapshot.clock().wall_at(Uptime(5)).0
        };
        for (wall, mono) in
            [(1_000, 20_100), (1_001, 20_900), (1_001, 21_100), (1_003, 22_950), (1_003, 23_050)]
        {
            assert_eq!(since(wall, mono), 985, "{wall} {mono}");
        }
        assert_eq!(since(4_603, 23_050), 4_585, "the wall clock was set");
    }

    /// More names than slots: each is set, removed or replaced repeatedly.
    #[test]
    fn a_lookup_by_name_finds_what_a_scan_finds() {
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
