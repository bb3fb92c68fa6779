//! Schedules dirty services: which are realized in this piece, and which wait for the next.
//!
//! Invariant: a piece has at most [`limits::PIECE_WORK`], except for one service's decision. Namespaces take turns.
//! Whatever is deferred stays dirty and is planned again. A start writes nothing before everything known is decided, so
//! that no frontend goes to a service that is about to lose it.

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

#[derive(Debug)]
pub(crate) struct WorkQueue {
    lanes: FairQueue,
    /// Dirty services that wait until their source has synced.
    waiting: Vec<ServiceId>,
    pub(super) undecided: UndecidedClaims,
    /// Services to plan again because another service's op unblocked them.
    pub(super) woken: BTreeSet<ServiceId>,
    pub(crate) piece: Vec<ServiceId>,
    /// Services that the start has decided, held back until it has decided all.
    pub(super) gathered: Vec<ServiceId>,
    /// Everything known when the first piece began is decided.
    is_open: bool,
    is_begun: bool,
    /// How many undecided services others wait for.
    awaited: usize,
    /// Services that put off removals until those are decided.
    deferred: BTreeSet<ServiceId>,
    /// How many services of the start are not written yet.
    unwritten: usize,
    judged: Uptime,
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

    /// Whether decisions may be written: everything known at the start is decided.
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether everything is decided that a change for all services made stale.
    pub(crate) const fn has_all_decided(&self) -> bool {
        self.awaited == 0
    }

    /// Whether everything known at the start from synced sources is written.
    pub(crate) const fn is_programmed(&self) -> bool {
        self.is_open && self.unwritten == 0
    }

    /// Keeps the start open until this service is in the maps.
    pub(super) fn mark_unwritten(&mut self, service: Option<&mut Service>) {
        if let Some(service) = service.filter(|service| service.startup_write == StartupWrite::Done) {
            service.startup_write = StartupWrite::Pending;
            self.unwritten += 1;
        }
    }

    /// Whether any service outside this piece is dirty.
    pub(super) fn has_more(&self, services: &Services) -> bool {
        !services.dirty.is_empty() || !self.lanes.is_empty()
    }

    /// Whether any service is dirty, in this piece or a later one.
    pub(super) fn has_dirty(&self, services: &Services) -> bool {
        !self.piece.is_empty() || !self.gathered.is_empty() || self.has_more(services)
    }

    /// Whether this piece leaves nothing to do.
    pub(crate) fn is_last_piece(&self, services: &Services) -> bool {
        !self.has_more(services) && !self.piece.iter().any(|id| services.is_unfinished(*id))
    }

    /// Waits for a decision on every stale service, except those of unsynced sources: until then a service may be about
    /// to claim an unclaimed frontend or port.
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

    pub(super) fn begin_start(&mut self, services: &mut Services, may_decide: MayDecide<'_>) {
        if !mem::replace(&mut self.is_begun, true) {
            self.await_undecided(services, may_decide);
        }
    }

    /// Sets aside dirty services that must not be decided yet. A start does not wait for them. If their source is
    /// absent, the services that have the frontends they ask for do not wait either.
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
        // A synced source has none, so the list is not searched.
        tables.synced.get(&source) == Some(&false) && self.waiting.iter().any(is_of_it)
    }

    /// Makes the services that were set aside dirty again, because a source has synced or is no longer awaited.
    pub(super) fn resume_waiting(&mut self, services: &mut Services) {
        services.dirty.append(&mut self.waiting);
        for id in services.dirty.clone() {
            self.mark_unwritten(services.get_mut(id));
        }
    }

    pub(super) fn next(&mut self, services: &mut Services, tables: &Tables) -> Option<ServiceId> {
        for id in mem::take(&mut services.dirty) {
            if let Some(known) = tables.get(id) {
                self.lanes.push(known.key.name.shared_namespace(), id);
            }
        }
        self.lanes.pop(self.most / limits::TURNS_PER_PIECE)
    }

    /// Adds a service to the piece, and returns its share of the piece's work.
    pub(super) fn take_into_piece(
        &mut self,
        id: ServiceId,
        was_stale: bool,
        services: &mut Services,
        tables: &Tables,
    ) -> u64 {
        let most = self.most;
        let lookups = if was_stale { tables.get(id).map_or(0, KnownService::decision_cost) } else { 0 };
        let work = services.get(id).map_or(0, Service::work) + lookups;
        if let Some(service) = services.get_mut(id) {
            // Deciding a heavy service was a piece of its own.
            service.phase = if was_stale && work > most { Phase::Unfinished } else { Phase::Dirty };
        }
        let work = work.min(most);
        self.lanes.charge(work);
        self.piece.push(id);
        work
    }

    /// Ends the selection of a piece. A start keeps decided services until everything is decided, and then writes them.
    pub(super) fn gather(&mut self, services: &mut Services) {
        if self.is_open {
            return;
        }
        if self.awaited > 0 {
            self.gathered.append(&mut self.piece);
            if !self.has_more(services) {
                // One of the gathered services has changed since its decision.
                services.dirty.append(&mut self.gathered);
            }
            return;
        }
        self.is_open = true;
        for id in [self.gathered.as_slice(), &self.piece].concat() {
            self.mark_unwritten(services.get_mut(id));
        }
    }

    /// Records that a service is in the maps as desired, or that its view says why not.
    pub(super) fn mark_written(&mut self, id: ServiceId, services: &mut Services) {
        let before = services.get_mut(id).map(|service| mem::take(&mut service.startup_write));
        if before == Some(StartupWrite::Pending) {
            self.unwritten = self.unwritten.saturating_sub(1);
        }
    }

    /// Records `now`, and returns whether to judge losses: after all decisions, or once a second until then.
    pub(super) fn begin_judging(&mut self, now: Uptime, services: &Services) -> bool {
        let before = mem::replace(&mut self.judged, now);
        !self.has_more(services) || before != now
    }

    /// Ends the piece and returns its finished services. Unfinished ones go back to the queue.
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

    /// Lets a service wait with an unclaimed frontend if another may be about to claim it. `false`: none is.
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

    /// Records a service's decision: its claims are no longer awaited.
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

/// Whether a service may be decided before its source has synced.
pub(super) type MayDecide<'a> = &'a dyn Fn(ServiceId, &Services) -> bool;

impl KnownService {
    /// The work of a decision's input, besides its output.
    fn decision_cost(&self) -> u64 {
        let ports = endpoint_rows::count_slice_ports(&self.slices).min(limits::SLICE_PORTS_PER_SERVICE_MAX);
        let lookups = HiddenAddresses::lookup_cost(&self.slices) + ports;
        // Frontends beyond the limit were built and sorted.
        lookups as u64 / limits::LOOKUPS_PER_SLOT + self.truncation.frontends as u64
    }
}

impl Service {
    /// The most work that realizing the service takes.
    fn work(&self) -> u64 {
        let frontends = self.desired.len().max(self.frontends.len()) + self.ports.len();
        let lists: u64 = self.ports.iter().map(Port::work).sum();
        frontends as u64 * limits::FRONTEND_WORK + lists + 1
    }

    /// Sets the facts that the service is about to claim, and returns the services that waited for its former claims.
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
    use crate::world::tests::{ip, retried, tables_with};

    const A: ServiceId = ServiceId(0);
    const B: ServiceId = ServiceId(1);

    #[test]
    fn a_start_opens_after_all_decisions_and_ends_after_all_writes() {
        let (tables, mut services) = tables_with(&["a", "b"]);
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
    fn a_removal_is_planned_after_all_awaited_decisions() {
        let (tables, mut services) = tables_with(&["a", "b"]);
        let mut queue = WorkQueue::new(Seed(0));
        queue.await_undecided(&mut services, &|id, _| id == A);
        let port = 80.try_into().unwrap();
        let key = FrontendKey { address: ip("10.0.0.9"), port, transport: Transport::Tcp };
        assert!(queue.defer_removal(&key, B));
        queue.mark_decided(A, true, &mut services, &tables);
        assert_eq!((queue.defer_removal(&key, B), retried(&services)), (false, [B].into()));
    }
}
