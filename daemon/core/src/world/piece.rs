//! Which dirty services are carried out now, and which have to wait for the next piece.
//!
//! Invariant: a piece has no more work than [`limits::PIECE_WORK`], but for one service's decision; namespaces take
//! turns; and whatever was put off is still dirty, so it is planned again. Nothing is written by a start before
//! everything that was known then is decided, so that no frontend goes to a service that is about to lose it.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::World;
use super::queue::Queue;
use super::undecided::Undecided;
use crate::facts::ServiceFacts;
use crate::hold::Hidden;
use crate::index::Seed;
use crate::keys::FrontendKey;
use crate::limits;
use crate::op::ServiceId;
use crate::resolve::listed;
use crate::service::{Freshness, Phase, Port, Service, StartupWrite};
use crate::time::Uptime;

/// The order in which services are carried out.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    lanes: Queue,
    /// Dirty services that wait until their source has delivered.
    pub(super) waiting: Vec<ServiceId>,
    /// What services ask for that is not decided yet.
    pub(super) undecided: Undecided,
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
    held_up: BTreeSet<ServiceId>,
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
            lanes: Queue::default(),
            waiting: Vec::new(),
            undecided: Undecided::new(seed),
            woken: BTreeSet::new(),
            piece: Vec::new(),
            gathered: Vec::new(),
            is_open: false,
            is_begun: false,
            awaited: 0,
            held_up: BTreeSet::new(),
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
    pub(crate) const fn is_awaiting_nobody(&self) -> bool {
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
}

impl World {
    /// Whether anything is dirty, of this piece or of later ones, or is about to become so.
    pub(crate) fn has_dirty(&self) -> bool {
        let is_dirty = !self.queue.piece.is_empty() || !self.queue.gathered.is_empty() || self.has_more();
        is_dirty || self.drained.is_under_way()
    }

    /// Whether this piece leaves nothing to do.
    pub(crate) fn is_last_piece(&self) -> bool {
        !self.has_more() && !self.queue.piece.iter().any(|id| self.services.is_unfinished(*id))
    }

    /// Whether all that was known at the start is written, and is all there is to know now.
    pub(crate) fn is_whole(&self) -> bool {
        self.queue.is_programmed() && self.tables.is_complete()
    }

    /// The most work that it takes to carry a service out.
    pub(super) fn work_of(&self, id: ServiceId) -> u64 {
        self.services.get(id).map_or(0, Service::work)
    }

    /// What a decision looks at beside what it makes of it.
    fn looks_of(&self, id: ServiceId) -> u64 {
        let known = self.tables.get(id);
        let slices = known.map_or(&[][..], |known| &known.slices);
        let looks = Hidden::looks(slices) + listed::looks(slices).min(limits::SLICE_PORTS_PER_SERVICE_MAX);
        // Frontends that are left out were made and ordered.
        let left_out = known.map_or(0, |known| known.cut.frontends);
        looks as u64 / limits::LOOKS_OF_A_SLOT + left_out as u64
    }

    pub(super) fn has_more(&self) -> bool {
        !self.services.dirty.is_empty() || !self.queue.lanes.is_empty()
    }

    /// Begins to wait for a decision on every service that is stale now, but for those of a source that has yet to
    /// deliver: until then a frontend or port that no service claims may be one that a service is about to claim.
    pub(super) fn await_undecided(&mut self) {
        for position in 0..self.services.len() {
            let id = ServiceId(u32::try_from(position).unwrap_or(u32::MAX));
            let is_stale = |service: &Service| service.freshness == Freshness::Stale;
            if self.services.get(id).is_some_and(is_stale) && self.may_decide(id) {
                self.queue.awaited += 1;
                let service = self.services.get_mut(id);
                service.into_iter().for_each(|service| service.freshness = Freshness::Awaited);
            }
        }
    }

    /// Begins a start with all services that are known.
    pub(super) fn begin_pieces(&mut self) {
        if !mem::replace(&mut self.queue.is_begun, true) {
            self.await_undecided();
        }
    }

    /// The next service of the piece.
    pub(super) fn next_of_piece(&mut self) -> Option<ServiceId> {
        for id in mem::take(&mut self.services.dirty) {
            if let Some(known) = self.tables.get(id) {
                self.queue.lanes.push(known.key.name.shared_namespace(), id);
            }
        }
        self.queue.lanes.pop(self.queue.most / limits::TURN_SHARE)
    }

    /// Takes a service into the piece, and returns the work that it takes of the piece.
    pub(super) fn take_into_piece(&mut self, id: ServiceId, was_stale: bool) -> u64 {
        let most = self.queue.most;
        let work = self.work_of(id) + if was_stale { self.looks_of(id) } else { 0 };
        if let Some(service) = self.services.get_mut(id) {
            // The decision for a heavy service was a piece of its own.
            service.phase = if was_stale && work > most { Phase::Unfinished } else { Phase::Dirty };
        }
        let work = work.min(most);
        self.queue.lanes.charge(work);
        self.queue.piece.push(id);
        work
    }

    /// Ends the choice of a piece: what a start has decided is kept until everything is decided, and then written.
    pub(super) fn gather(&mut self) {
        if self.queue.is_open {
            return;
        }
        if self.queue.awaited > 0 {
            self.queue.gathered.append(&mut self.queue.piece);
            if !self.has_more() {
                // One of the gathered services has changed since it was decided.
                self.services.dirty.append(&mut self.queue.gathered);
            }
            return;
        }
        self.queue.is_open = true;
        for id in [self.queue.gathered.as_slice(), &self.queue.piece].concat() {
            self.queue.mark_unwritten(self.services.get_mut(id));
        }
    }

    /// Has what was gathered written from the next piece on.
    pub(super) fn release_gathered(&mut self) {
        self.services.dirty.append(&mut self.queue.gathered);
    }

    /// Notes that a service is as it should be in the maps, or that readers are told why not.
    pub(super) fn mark_written(&mut self, id: ServiceId) {
        let service = self.services.get_mut(id);
        let before = service.map(|service| mem::take(&mut service.startup_write));
        if before == Some(StartupWrite::Pending) {
            self.queue.unwritten = self.queue.unwritten.saturating_sub(1);
        }
    }

    /// Whether it is time to judge losses: over all that is decided, or once a second while that takes its time.
    pub(super) fn is_judging(&mut self, now: Uptime) -> bool {
        let before = mem::replace(&mut self.queue.judged, now);
        !self.has_more() || before != now
    }

    /// Ends the piece and returns its services that are done. Those that it was too small for go back to the queue.
    pub(super) fn take_piece(&mut self) -> Vec<ServiceId> {
        let mut piece = mem::take(&mut self.queue.piece);
        let unfinished: Vec<_> = piece.extract_if(.., |id| self.services.is_unfinished(*id)).collect();
        for id in unfinished {
            if let Some(known) = self.tables.get(id) {
                self.queue.lanes.put_back(known.key.name.shared_namespace(), id);
            }
        }
        piece
    }

    /// Whether a frontend that no service claims stays for now, because one may be about to claim it.
    pub(super) fn is_held_up(&mut self, key: &FrontendKey, by: ServiceId) -> bool {
        if self.queue.awaited > 0 {
            self.queue.held_up.insert(by);
            return true;
        }
        let asked = self.queue.undecided.asks_for(key);
        if asked {
            self.queue.undecided.wait(key, by);
        }
        asked
    }

    /// Notes that the decision for a service is made: no other one waits for what it will claim any more.
    pub(super) fn mark_decided(&mut self, id: ServiceId, was_awaited: bool) {
        let asked = self.services.get_mut(id).and_then(|service| service.asked.take());
        if let Some(facts) = asked {
            for id in self.queue.undecided.remove(&facts) {
                self.services.retry(id, &self.tables);
            }
        }
        if was_awaited {
            self.queue.awaited = self.queue.awaited.saturating_sub(1);
            if self.queue.awaited == 0 {
                for id in mem::take(&mut self.queue.held_up) {
                    self.services.retry(id, &self.tables);
                }
            }
        }
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
    pub(super) fn ask_with(&mut self, facts: Arc<ServiceFacts>, undecided: &mut Undecided) -> Vec<ServiceId> {
        undecided.add(&facts);
        self.asked.replace(facts).map(|before| undecided.remove(&before)).unwrap_or_default()
    }
}
