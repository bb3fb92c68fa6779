//! The answers of the maps, op by op.
//!
//! Invariant: only an accepted op changes what is realized. A refused op may have had its effect all the same, so
//! whatever it touched stays reserved and uncertain until a later op settles it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::net::SocketAddr;

use super::World;
use super::space::Leaving;
use crate::change::Cause;
use crate::claims::RealizedFrontend;
use crate::keys::{Family, FrontendKey};
use crate::limits;
use crate::list::{Rows, Scope};
use crate::op::{Action, FrontendValue, Grace, MemberKey, Membership, Op, Owner, PortIndex, ServiceId, Word};
use crate::service::RealizedPort;
use crate::work;

impl World {
    /// Notes what this op, which the maps accepted, has changed.
    pub(crate) fn accepted(&mut self, op: &Op) {
        work::done(1);
        self.report.counters.ops += 1;
        self.checking.iter_mut().for_each(|checking| checking.note(op));
        if let Owner::Service(id) = op.owner
            && let Some(service) = self.services.get_mut(id)
        {
            service.ops += 1;
        }
        match &op.action {
            Action::WriteRange(..) => {}
            Action::PublishWord(index, scope, word) => self.published(op.owner, *index, *scope, *word),
            Action::InsertFrontend(key, value) => self.inserted(op.owner, *key, *value),
            Action::RemoveFrontend(key) => self.removed(*key),
            Action::FreeRange(range) => {
                self.space.give_back(*range);
                self.shortage.free_range();
            }
            Action::InsertNodeAddress(address) => self.node.accepted(*address, true),
            Action::RemoveNodeAddress(address) => self.node.accepted(*address, false),
            Action::WriteFacts(index, facts) => {
                self.with_port(op.owner, *index, |port| port.realized.facts = Some(*facts));
            }
            Action::InsertMember(key, state) => self.with_port(op.owner, key.port, |port| {
                port.realized.uncertain_members.remove(&member(key));
                port.realized.members.insert(member(key), *state);
            }),
            Action::RemoveMember(key) => self.with_port(op.owner, key.port, |port| {
                port.realized.uncertain_members.remove(&member(key));
                port.realized.members.remove(&member(key));
            }),
            Action::InsertSource(key, _) => self.with_port(op.owner, key.port, |port| {
                port.realized.uncertain_sources.remove(&key.range);
                port.realized.sources.insert(key.range);
            }),
            Action::RemoveSource(key) => self.with_port(op.owner, key.port, |port| {
                port.realized.uncertain_sources.remove(&key.range);
                port.realized.sources.remove(&key.range);
            }),
        }
    }

    /// The maps refused the op at this place; those after it were not tried.
    pub(crate) fn refused(&mut self, ops: &[Op], failed: usize) {
        self.give_back_unpublished(ops, failed);
        let Some(op) = ops.get(failed) else { return self.services.count_impossible() };
        self.checking.iter_mut().for_each(|checking| checking.note(op));
        match &op.action {
            Action::WriteRange(..) => {}
            Action::PublishWord(index, scope, word) => self.doubt_word(op.owner, *index, *scope, *word),
            Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => {
                self.doubt_frontend(op.owner, *key);
            }
            Action::FreeRange(range) => self.space.freed.now.ranges.push(*range),
            Action::InsertNodeAddress(address) | Action::RemoveNodeAddress(address) => {
                self.node.refused(*address);
            }
            Action::WriteFacts(index, _) => {
                self.with_port(op.owner, *index, |port| port.realized.facts = None);
            }
            Action::InsertMember(key, _) | Action::RemoveMember(key) => {
                self.with_port(op.owner, key.port, |port| {
                    port.realized.uncertain_members.insert(member(key));
                });
            }
            Action::InsertSource(key, _) | Action::RemoveSource(key) => {
                self.with_port(op.owner, key.port, |port| {
                    port.realized.uncertain_sources.insert(key.range);
                });
            }
        }
    }

    /// Whether something waits for a grace period that has not begun.
    pub(crate) fn has_freed(&self) -> bool {
        !self.space.freed.now.is_empty()
    }

    /// The maps began a grace period for all that was freed until now.
    pub(crate) fn begin_grace(&mut self, grace: Grace) {
        self.space.freed.waiting.push_back((grace, mem::take(&mut self.space.freed.now)));
    }

    /// The grace period that ends next, if one is under way.
    pub(crate) fn next_grace(&self) -> Option<Grace> {
        self.space.freed.waiting.front().map(|(grace, _)| *grace)
    }

    /// Ends the next grace period. Its port indices are free again; `ops` gets the ops that wipe its ranges, as many as
    /// a piece takes; services that waited for readers to leave go on with their removals. `false`: there are more
    /// ranges.
    pub(crate) fn end_grace(&mut self, ops: &mut Vec<Op>) -> bool {
        let Some((grace, mut leaving)) = self.space.freed.waiting.pop_front() else { return true };
        self.shortage.free(leaving.indices.len());
        mem::take(&mut leaving.indices).into_iter().for_each(|index| self.space.give_back_index(index));
        let Self { tables, services, .. } = self;
        for id in mem::take(&mut leaving.services).into_iter().filter(|id| tables.get(*id).is_some()) {
            services.mark(id, Cause::ReadersLeft, false);
        }
        let mut left = self.queue.most;
        while left > 0
            && let Some(range) = leaving.ranges.pop()
        {
            let wiped = u64::from(range.count) / limits::PLACES_OF_A_SLOT;
            left = left.saturating_sub(limits::FRONTEND_WORK + wiped);
            ops.push(Op { owner: Owner::Nobody, action: Action::FreeRange(range) });
        }
        let is_whole = leaving.ranges.is_empty();
        if !is_whole {
            self.space
                .freed
                .waiting
                .push_front((grace, Leaving { ranges: leaving.ranges, ..Leaving::default() }));
        }
        is_whole
    }

    fn published(&mut self, owner: Owner, index: PortIndex, scope: Scope, word: Word) {
        let mut freed = mem::take(&mut self.space.freed.now.ranges);
        let mut redirects = false;
        self.with_port(owner, index, |port| {
            let list = port.realized.list_mut(scope);
            let now = word.range(port.family);
            let old = mem::replace(&mut list.word, word);
            let before = old.range(port.family);
            redirects = mem::take(&mut list.uncertain) || !word.flags.has(old.flags.leads());
            if now != before {
                list.rows = if now.is_some() { Arc::clone(port.rows) } else { Arc::default() };
            }
            freed.extend(
                mem::take(&mut list.suspects).into_iter().chain(before).filter(|range| Some(*range) != now),
            );
        });
        self.space.freed.now.ranges = freed;
        if let (true, Owner::Service(id)) = (redirects, owner) {
            self.space.freed.now.services.insert(id);
        }
    }

    /// Publishing failed, or seemed to: readers may see the old range or the new one, so both stay.
    fn doubt_word(&mut self, owner: Owner, index: PortIndex, scope: Scope, word: Word) {
        self.with_port(owner, index, |port| {
            let list = port.realized.list_mut(scope);
            list.uncertain = true;
            let live = list.word.range(port.family);
            list.suspects.extend(word.range(port.family).filter(|range| Some(*range) != live));
        });
    }

    fn inserted(&mut self, owner: Owner, key: FrontendKey, value: FrontendValue) {
        let Owner::Service(id) = owner else { return self.services.count_impossible() };
        let now = RealizedFrontend { value, owner: Some(id) };
        let (before, doubters) = self.frontend_is_certain(key, Some(now));
        if let Some(RealizedFrontend { owner: None, value }) = before {
            self.adopted.leave(value.port, &key);
        }
        let owner = before.and_then(|before| before.owner);
        for other in owner.into_iter().chain(doubters).filter(|other| *other != id) {
            self.let_go(other, key);
        }
        if let Some(service) = self.services.get_mut(id) {
            service.frontends.insert(key);
        }
    }

    fn removed(&mut self, key: FrontendKey) {
        let (before, doubters) = self.frontend_is_certain(key, None);
        self.shortage.free(usize::from(before.is_some()));
        let owner = before.and_then(|before| before.owner);
        for id in owner.into_iter().chain(doubters) {
            self.let_go(id, key);
        }
        // A winner that leaves the frontend to the real balancer can say so now that the maps do not have it.
        self.queue.woken.extend(self.owners.frontends.winner(&key));
        if let Some(before) = before {
            self.adopted.leave(before.value.port, &key);
        }
    }

    /// Notes what the maps say of a frontend, which is certain now. Returns what was known before, and the services of
    /// the ops that had failed on the frontend.
    fn frontend_is_certain(
        &mut self,
        key: FrontendKey,
        now: Option<RealizedFrontend>,
    ) -> (Option<RealizedFrontend>, Vec<ServiceId>) {
        let (before, doubters) = self.owners.frontends.is_certain(key, now);
        if let Some(left) = before.filter(|it| now.is_none_or(|now| now.value != it.value)) {
            self.space.freed.now.left(left);
        }
        self.space.freed.now.services.extend(doubters.iter().copied());
        (before, doubters)
    }

    /// The maps may have the frontend or not; the service that tried keeps its port until that is settled.
    fn doubt_frontend(&mut self, owner: Owner, key: FrontendKey) {
        let by = if let Owner::Service(id) = owner { Some(id) } else { None };
        self.owners.frontends.doubt(key, by);
        if let Some(service) = by.and_then(|id| self.services.get_mut(id)) {
            service.frontends.insert(key);
        }
    }

    /// A frontend is certainly not in the maps on this service's behalf: the service can go on with its removals.
    fn let_go(&mut self, id: ServiceId, key: FrontendKey) {
        if let Some(service) = self.services.get_mut(id) {
            service.frontends.remove(&key);
        }
        self.queue.woken.insert(id);
    }

    /// Gives back the ranges of words that were never tried, whether the ranges were written or not: no reader has seen
    /// these ranges.
    fn give_back_unpublished(&mut self, ops: &[Op], failed: usize) {
        for (position, op) in ops.iter().enumerate() {
            let Action::WriteRange(range, ..) = op.action else { continue };
            let publishes = |op: &Op| match op.action {
                Action::PublishWord(_, _, word) => word.range(range.family) == Some(range),
                _ => false,
            };
            work::done(1);
            // Only a word after the write counts: an earlier one, of the other family, may look the same.
            let untried = ops.iter().enumerate().skip(position).find(|(_, op)| publishes(op));
            if untried.is_some_and(|(position, _)| position > failed) {
                self.space.give_back(range);
                self.shortage.free_unpublished();
            }
        }
    }

    fn with_port(&mut self, owner: Owner, index: PortIndex, change: impl FnOnce(Written<'_>)) {
        let nothing;
        let written = match owner {
            Owner::Service(id) => self
                .services
                .port_at_mut(id, index, &self.space.indices)
                .map(|port| (&mut port.realized, port.key.family, &port.rows)),
            Owner::Nobody => {
                nothing = Arc::default();
                self.adopted.get_mut(index).map(|port| (&mut port.realized, port.family, &nothing))
            }
            Owner::Node => None,
        };
        match written {
            Some((realized, family, rows)) => change(Written { realized, family, rows }),
            None => self.services.count_impossible(),
        }
    }
}

/// A port that an op was for.
struct Written<'a> {
    realized: &'a mut RealizedPort,
    family: Family,
    rows: &'a Arc<Rows>,
}

fn member(key: &MemberKey) -> (Membership, SocketAddr) {
    (key.membership, key.backend)
}
