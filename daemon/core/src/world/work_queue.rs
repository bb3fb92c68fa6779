//! Which dirty services are carried out now, and which have to wait for the next piece.
//!
//! Invariant: a piece has no more work than [`from_capacity::PIECE_WORK`], but for one service's decision; namespaces take
//! turns; and whatever was put off is still dirty, so it is planned again. Nothing is written by a start before
//! everything that was known then is decided, so that no frontend goes to a service that is about to lose it.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::fair_queue::FairQueue;
use super::services::Services;
use super::undecided_claims::UndecidedClaims;
use crate::facts::ServiceFacts;
use crate::hold::HiddenAddresses;
use crate::index::Seed;
use crate::keys::{FrontendKey, Source};
use crate::limits;
use crate::op::ServiceId;
use crate::resolve::endpoint_rows;
use crate::service::{Freshness, Phase, Port, Service, StartupWrite};
use crate::tables::{KnownService, Tables};
use crate::time::Uptime;

/// The order in which services are carried out.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    lanes: FairQueue,
    /// Dirty services that wait until their source has delivered.
    waiting: Vec<ServiceId>,
    /// What services ask for that is not decided yet.
    pub(super) undecided: UndecidedClaims,
    /// Services to be planned again, because another service's op made way for them.
    pub(super) woken: BTreeSet<ServiceId>,
    /// The services of this piece, in their order.
    pub(crate) piece: Vec<ServiceId>,
    /// Services that the start has decided for, not to be written before it has decided for all.
    pub(super) gathered: Vec<ServiceId>,
    /// Everything that was known when the first piece was begun is decided.
    is_open: bool,
    is_begun: bool,
    /// How many services are not decided yet for which others wait.
    awaited: usize,
    /// Services that put off removals until those are decided.
    deferred: BTreeSet<ServiceId>,
    /// How many of the services that the start began with are not written.
    unwritten: usize,
    /// When losses were judged last.
    judged: Uptime,
    /// The most work of a piece.
    pub(crate) most: u64,
}

impl WorkQueue {
    pub(super) fn new(seed: Seed) -> Self {
        Self {
            lanes: FairQueue::default(),
            waiting: Vec::new(),
            undecided: UndecidedClaims::new(seed),
            woken: BTreeSet::new(),
            piece: Vec::new(),
            gathered: Vec::new(),
            is_open: false,
            is_begun: false,
            awaited: 0,
            deferred: BTreeSet::new(),
            unwritten: 0,
            judged: Uptime::default(),
            most: limits::PIECE_WORK,
        }
    }

    /// Whether what was decided may be written: everything is decided that was known at the start.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether everything is decided that was known when something changed for all.
    pub(crate) const fn has_all_decided(&self) -> bool {
        self.awaited == 0
    }

    /// Whether all that was known at the start is written, of each source that has delivered.
    pub(crate) const fn is_programmed(&self) -> bool {
        self.is_open && self.unwritten == 0
    }

    /// Notes that a start is not over before this service is in the maps.
    pub(super) fn mark_unwritten(&mut self, service: Option<&mut Service>) {
        if let Some(service) = service.filter(|service| service.startup_write == StartupWrite::Done) {
            service.startup_write = StartupWrite::Pending;
            self.unwritten += 1;
        }
    }

    /// Whether anything is dirty and not in this piece.
    pub(super) fn has_more(&self, services: &Services) -> bool {
        !services.dirty.is_empty() || !self.lanes.is_empty()
    }

    /// Whether anything is dirty, of this piece or of later ones.
    pub(super) fn has_dirty(&self, services: &Services) -> bool {
        !self.piece.is_empty() || !self.gathered.is_empty() || self.has_more(services)
    }

    /// Whether this piece leaves nothing to do.
    pub(crate) fn is_last_piece(&self, services: &Services) -> bool {
        !self.has_more(services) && !self.piece.iter().any(|id| services.is_unfinished(*id))
    }

    /// Begins to wait for a decision on every service that is stale now, but for those of a source that has yet to
    /// deliver: until then a frontend or port that no service claims may be one that a service is about to claim.
    pub(super) fn await_undecided(&mut self, services: &mut Services, may_decide: MayDecide<'_>) {
        for position in 0..services.len() {
            let id = ServiceId(u32::try_from(position).unwrap_or(u32::MAX));
            let is_stale = |service: &Service| service.freshness == Freshness::Stale;
            if services.get(id).is_some_and(is_stale) && may_decide(id, services) {
                self.awaited += 1;
                services.get_mut(id).into_iter().for_each(|service| service.freshness = Freshness::Awaited);
            }
        }
    }

    /// Begins a start with all services that are known.
    pub(super) fn begin_start(&mut self, services: &mut Services, may_decide: MayDecide<'_>) {
        if !mem::replace(&mut self.is_begun, true) {
            self.await_undecided(services, may_decide);
        }
    }

    /// Sets aside the dirty services that must not be decided for yet. Nothing waits for one of these: neither a start,
    /// nor, where its source is absent, another service whose frontends it asks for.
    pub(super) fn set_aside(&mut self, services: &mut Services, tables: &Tables, may_decide: MayDecide<'_>) {
        let dirty = mem::take(&mut services.dirty);
        let (ready, waiting): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|id| may_decide(*id, services));
        services.dirty = ready;
        for id in &waiting {
            self.mark_written(*id, services);
            if tables.get(*id).is_some_and(|known| tables.is_absent(known.key.source)) {
                let service = services.get_mut(*id);
                let awaited = service.filter(|service| service.freshness == Freshness::Awaited);
                let was_awaited = awaited.map(|service| service.freshness = Freshness::Stale).is_some();
                self.mark_decided(*id, was_awaited, services, tables);
            }
        }
        self.waiting.extend(waiting);
    }

    /// Whether services of that source are set aside.
    pub(super) fn has_set_aside(&self, source: Source, tables: &Tables) -> bool {
        let is_of_it = |id: &ServiceId| tables.get(*id).is_some_and(|known| known.key.source == source);
        // A source that has delivered has none there, and no more is looked at.
        tables.synced.get(&source) == Some(&false) && self.waiting.iter().any(is_of_it)
    }

    /// Has the services that were set aside decided for, because a source has delivered, or is not waited for.
    pub(super) fn resume_waiting(&mut self, services: &mut Services) {
        services.dirty.append(&mut self.waiting);
        for id in services.dirty.clone() {
            self.mark_unwritten(services.get_mut(id));
        }
    }

    /// The next service of the piece.
    pub(super) fn next(&mut self, services: &mut Services, tables: &Tables) -> Option<ServiceId> {
        for id in mem::take(&mut services.dirty) {
            if let Some(known) = tables.get(id) {
                self.lanes.push(known.key.name.shared_namespace(), id);
            }
        }
        self.lanes.pop(self.most / limits::TURNS_PER_PIECE)
    }

    /// Takes a service into the piece, and returns the work that it takes of the piece.
    pub(super) fn take_into_piece(
        &mut self,
        id: ServiceId,
        was_stale: bool,
        services: &mut Services,
        tables: &Tables,
    ) -> u64 {
        let most = self.most;
        let looks = if was_stale { tables.get(id).map_or(0, KnownService::decision_cost) } else { 0 };
        let work = services.get(id).map_or(0, Service::work) + looks;
        if let Some(service) = services.get_mut(id) {
            // The decision for a heavy service was a piece of its own.
            service.phase = if was_stale && work > most { Phase::Unfinished } else { Phase::Dirty };
        }
        let work = work.min(most);
        self.lanes.charge(work);
        self.piece.push(id);
        work
    }

    /// Ends the choice of a piece: what a start has decided is kept until everything is decided, and then written.
    pub(super) fn gather(&mut self, services: &mut Services) {
        if self.is_open {
            return;
        }
        if self.awaited > 0 {
            self.gathered.append(&mut self.piece);
            if !self.has_more(services) {
                // One of the gathered services has changed since it was decided.
                services.dirty.append(&mut self.gathered);
            }
            return;
        }
        self.is_open = true;
        for id in [self.gathered.as_slice(), &self.piece].concat() {
            self.mark_unwritten(services.get_mut(id));
        }
    }

    /// Notes that a service is as it should be in the maps, or that readers are told why not.
    pub(super) fn mark_written(&mut self, id: ServiceId, services: &mut Services) {
        let before = services.get_mut(id).map(|service| mem::take(&mut service.startup_write));
        if before == Some(StartupWrite::Pending) {
            self.unwritten = self.unwritten.saturating_sub(1);
        }
    }

    /// Notes when losses were looked at. `true`: they are to be judged, over all that is decided, or once a second
    /// while that takes its time.
    pub(super) fn begin_judging(&mut self, now: Uptime, services: &Services) -> bool {
        let before = mem::replace(&mut self.judged, now);
        !self.has_more(services) || before != now
    }

    /// Ends the piece and returns its services that are done. Those that it was too small for go back to the queue.
    pub(super) fn take_piece(&mut self, services: &Services, tables: &Tables) -> Vec<ServiceId> {
        let mut piece = mem::take(&mut self.piece);
        let unfinished: Vec<_> = piece.extract_if(.., |id| services.is_unfinished(*id)).collect();
        for id in unfinished {
            if let Some(known) = tables.get(id) {
                self.lanes.put_back(known.key.name.shared_namespace(), id);
            }
        }
        piece
    }

    /// Has a service wait with a frontend that no service claims, if one may be about to claim it. `false`: none is.
    pub(super) fn defer_removal(&mut self, key: &FrontendKey, by: ServiceId) -> bool {
        if self.awaited > 0 {
            self.deferred.insert(by);
            return true;
        }
        let asked = self.undecided.has_claim_for(key);
        if asked {
            self.undecided.add_waiter(key, by);
        }
        asked
    }

    /// Notes that the decision for a service is made: no other one waits for what it will claim any more.
    pub(super) fn mark_decided(
        &mut self,
        id: ServiceId,
        was_awaited: bool,
        services: &mut Services,
        tables: &Tables,
    ) {
        let asked = services.get_mut(id).and_then(|service| service.pending_facts.take());
        let woken = asked.map(|facts| self.undecided.remove(&facts)).unwrap_or_default();
        woken.into_iter().for_each(|id| services.retry(id, tables));
        if was_awaited {
            self.awaited = self.awaited.saturating_sub(1);
            if self.awaited == 0 {
                mem::take(&mut self.deferred).into_iter().for_each(|id| services.retry(id, tables));
            }
        }
    }
}

/// Whether a service may be decided for before its source has told all.
pub(super) type MayDecide<'a> = &'a dyn Fn(ServiceId, &Services) -> bool;

impl KnownService {
    /// What a decision looks at beside what it makes of it.
    fn decision_cost(&self) -> u64 {
        let ports = endpoint_rows::count_slice_ports(&self.slices).min(limits::SLICE_PORTS_PER_SERVICE_MAX);
        let looks = HiddenAddresses::lookup_cost(&self.slices) + ports;
        // Frontends that are left out were made and ordered.
        looks as u64 / limits::LOOKUPS_PER_SLOT + self.truncation.frontends as u64
    }
}

impl Service {
    /// The most work that it takes to carry the service out.
    fn work(&self) -> u64 {
        let frontends = self.desired.len().max(self.frontends.len()) + self.ports.len();
        let lists: u64 = self.ports.iter().map(Port::work).sum();
        frontends as u64 * limits::FRONTEND_WORK + lists + 1
    }

    /// Notes that the service is about to claim what these facts ask for, and returns the services that waited for what
    /// it asked for before.
    pub(super) fn set_pending_facts(
        &mut self,
        facts: Arc<ServiceFacts>,
        undecided: &mut UndecidedClaims,
    ) -> Vec<ServiceId> {
        undecided.add(&facts);
        self.pending_facts.replace(facts).map(|before| undecided.remove(&before)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Transport;
    use crate::world::tests::{ip, retried, told};

    const A: ServiceId = ServiceId(0);
    const B: ServiceId = ServiceId(1);

    #[test]
    fn a_start_is_open_once_all_awaited_decisions_are_made_and_over_once_all_is_written() {
        let (tables, mut services) = told(&["a", "b"]);
        let mut queue = WorkQueue::new(Seed(0));
        queue.begin_start(&mut services, &|_, _| true);
        for is_open in [false, true] {
            let id = queue.next(&mut services, &tables).unwrap();
            services.get_mut(id).unwrap().freshness = Freshness::Current;
            queue.mark_decided(id, true, &mut services, &tables);
            queue.take_into_piece(id, true, &mut services, &tables);
            queue.gather(&mut services);
            assert_eq!((queue.is_open(), queue.is_programmed()), (is_open, false), "{id:?}");
        }
        [A, B].into_iter().for_each(|id| queue.mark_written(id, &mut services));
        assert!(queue.is_programmed());
    }

    #[test]
    fn a_removal_waits_for_the_decisions_that_are_awaited_and_is_planned_after_them() {
        let (tables, mut services) = told(&["a", "b"]);
        let mut queue = WorkQueue::new(Seed(0));
        queue.await_undecided(&mut services, &|id, _| id == A);
        let port = 80.try_into().unwrap();
        let key = FrontendKey { address: ip("10.0.0.9"), port, transport: Transport::Tcp };
        assert!(queue.defer_removal(&key, B));
        queue.mark_decided(A, true, &mut services, &tables);
        assert_eq!((queue.defer_removal(&key, B), retried(&services)), (false, [B].into()));
    }
}
