//! Applies the results of the maps, op by op.
//!
//! Invariant: only an accepted op changes realized state. A refused op may have taken effect nevertheless, so whatever
//! it touched stays reserved and uncertain until a later op settles it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::net::SocketAddr;

use super::World;
use super::adopt::LeftoverPorts;
use super::drift::DriftCheck;
use super::node::NodeAddresses;
use super::services::Services;
use super::shortage::Shortage;
use super::space::{FreedBatch, SettledFrontend, Space};
use super::work_queue::WorkQueue;
use crate::change::Cause;
use crate::claims::{Frontends, RealizedFrontend};
use crate::keys::{Family, FrontendKey};
use crate::list::{Rows, Scope};
use crate::op::{Action, MemberKey, Membership, Op, Owner, PortIndex, ServiceId, SlotRange, SourceKey, Word};
use crate::service::RealizedPort;
use crate::work;

/// What the maps hold besides the services' own.
#[derive(Debug, Default)]
pub(crate) struct RealizedState {
    pub(super) node: NodeAddresses,
    /// What a start found in the maps and no service has adopted.
    pub(super) leftovers: LeftoverPorts,
    pub(super) drift_check: Option<DriftCheck>,
}

impl RealizedState {
    pub(crate) fn begin_check(&mut self) {
        self.drift_check = Some(DriftCheck::default());
    }

    /// Records a published word, and frees the range of the word before.
    fn publish(
        &mut self,
        owner: Owner,
        index: PortIndex,
        (scope, word): (Scope, Word),
        services: &mut Services,
        space: &mut Space,
    ) {
        let mut freed = mem::take(&mut space.freed.now.ranges);
        let mut redirects = false;
        self.change_port(owner, index, services, space, |port| {
            redirects = port.publish(scope, word, &mut freed);
        });
        space.freed.now.ranges = freed;
        if let (true, Owner::Service(id)) = (redirects, owner) {
            space.freed.now.services.insert(id);
        }
    }

    /// Records that a frontend points to a service, and wakes the services that had it or tried to.
    fn hand_frontend_over(
        &mut self,
        key: FrontendKey,
        id: ServiceId,
        (before, doubters): SettledFrontend,
        services: &mut Services,
        queue: &mut WorkQueue,
    ) {
        self.leftovers.remove_frontend(key, before.filter(|before| before.owner.is_none()));
        let others = before.and_then(|it| it.owner).into_iter().chain(doubters);
        queue.woken.extend(services.release_frontend(key, others.filter(|other| *other != id)));
        if let Some(service) = services.get_mut(id) {
            service.frontends.insert(key);
        }
    }

    /// Records that a frontend is gone, and wakes the services that had it or tried to change it.
    fn remove_frontend(
        &mut self,
        key: FrontendKey,
        (before, doubters): SettledFrontend,
        services: &mut Services,
        queue: &mut WorkQueue,
    ) {
        let others = before.and_then(|it| it.owner).into_iter().chain(doubters);
        queue.woken.extend(services.release_frontend(key, others));
        self.leftovers.remove_frontend(key, before);
    }

    fn change_port(
        &mut self,
        owner: Owner,
        index: PortIndex,
        services: &mut Services,
        space: &Space,
        change: impl FnOnce(PortWrite<'_>),
    ) {
        let nothing;
        let written = match owner {
            Owner::Service(id) => services
                .port_at_mut(id, index, &space.indices)
                .map(|port| (&mut port.realized, port.key.family, &port.rows)),
            Owner::Nobody => {
                nothing = Arc::default();
                self.leftovers.get_mut(index).map(|port| (&mut port.realized, port.family, &nothing))
            }
            Owner::Node => None,
        };
        match written {
            Some((realized, family, rows)) => change(PortWrite { realized, family, rows }),
            None => services.count_impossible(),
        }
    }
}

impl World {
    /// Records the changes of an op that the maps accepted.
    pub(crate) fn record_accepted(&mut self, op: &Op) {
        work::count_work(1);
        self.report.counters.ops += 1;
        let Self { realized, services, owners, space, shortage, queue, .. } = self;
        realized.drift_check.iter_mut().for_each(|checking| checking.record_op(op));
        if let Owner::Service(id) = op.owner
            && let Some(service) = services.get_mut(id)
        {
            service.ops += 1;
        }
        match &op.action {
            Action::WriteRange(..) => {}
            Action::PublishWord(index, scope, word) => {
                realized.publish(op.owner, *index, (*scope, *word), services, space);
            }
            Action::InsertFrontend(key, value) => {
                let Owner::Service(id) = op.owner else { return services.count_impossible() };
                let now = RealizedFrontend { value: *value, owner: Some(id) };
                let settled = space.freed.settle_frontend(*key, Some(now), &mut owners.frontends);
                realized.hand_frontend_over(*key, id, settled, services, queue);
            }
            Action::RemoveFrontend(key) => {
                let settled = space.freed.settle_frontend(*key, None, &mut owners.frontends);
                shortage.without_room.record_freed(usize::from(settled.0.is_some()));
                // A winner that passes the frontend to the real balancer can report that now.
                queue.woken.extend(owners.frontends.winner(key));
                realized.remove_frontend(*key, settled, services, queue);
            }
            Action::FreeRange(range) => {
                space.release_range(*range);
                shortage.without_room.record_freed(1);
                shortage.tableless.record_freed(1);
            }
            Action::InsertNodeAddress(address) => realized.node.record_accepted(*address, true),
            Action::RemoveNodeAddress(address) => realized.node.record_accepted(*address, false),
            Action::WriteFacts(port, _)
            | Action::InsertMember(MemberKey { port, .. }, _)
            | Action::RemoveMember(MemberKey { port, .. })
            | Action::InsertSource(SourceKey { port, .. }, _)
            | Action::RemoveSource(SourceKey { port, .. }) => {
                realized.change_port(op.owner, *port, services, space, |port| port.apply_action(&op.action));
            }
        }
    }

    /// Records that the maps refused the op at `failed`; later ones were not tried.
    pub(crate) fn record_refused(&mut self, ops: &[Op], failed: usize) {
        let Self { realized, services, owners, space, shortage, .. } = self;
        release_unpublished(ops, failed, space, shortage);
        let Some(op) = ops.get(failed) else { return services.count_impossible() };
        realized.drift_check.iter_mut().for_each(|checking| checking.record_op(op));
        match &op.action {
            Action::WriteRange(..) => {}
            Action::PublishWord(index, scope, word) => {
                realized.change_port(op.owner, *index, services, space, |port| {
                    port.mark_uncertain(*scope, *word);
                });
            }
            Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => {
                mark_frontend_uncertain(op.owner, *key, services, &mut owners.frontends);
            }
            Action::FreeRange(range) => space.freed.now.ranges.push(*range),
            Action::InsertNodeAddress(address) | Action::RemoveNodeAddress(address) => {
                realized.node.record_refused(*address);
            }
            Action::WriteFacts(index, _) => {
                realized.change_port(op.owner, *index, services, space, |port| port.realized.facts = None);
            }
            Action::InsertMember(key, _) | Action::RemoveMember(key) => {
                realized.change_port(op.owner, key.port, services, space, |port| {
                    port.realized.uncertain_members.insert(member_key(key));
                });
            }
            Action::InsertSource(key, _) | Action::RemoveSource(key) => {
                realized.change_port(op.owner, key.port, services, space, |port| {
                    port.realized.uncertain_sources.insert(key.range);
                });
            }
        }
    }

    /// Ends the next grace period: frees its port indices, plans the wiping of its ranges as far as a piece allows, and
    /// lets services that waited for readers continue. `false`: ranges remain.
    pub(crate) fn end_grace(&mut self, ops: &mut Vec<Op>) -> bool {
        let Self { space, shortage, tables, services, queue, .. } = self;
        let Some((grace, mut leaving)) = space.freed.waiting.pop_front() else { return true };
        shortage.without_room.record_freed(leaving.indices.len());
        mem::take(&mut leaving.indices).into_iter().for_each(|index| space.release_port_index(index));
        for id in mem::take(&mut leaving.services).into_iter().filter(|id| tables.get(*id).is_some()) {
            services.mark_dirty(id, Cause::ReadersLeft, false);
        }
        leaving.plan_wipes(queue.most, ops);
        let is_whole = leaving.ranges.is_empty();
        if !is_whole {
            let leaving = FreedBatch { ranges: leaving.ranges, ..FreedBatch::default() };
            space.freed.waiting.push_front((grace, leaving));
        }
        is_whole
    }
}

/// The maps may or may not have the frontend; the service that tried keeps its port until that is settled.
fn mark_frontend_uncertain(
    owner: Owner,
    key: FrontendKey,
    services: &mut Services,
    frontends: &mut Frontends,
) {
    let by = if let Owner::Service(id) = owner { Some(id) } else { None };
    frontends.mark_uncertain(key, by);
    if let Some(service) = by.and_then(|id| services.get_mut(id)) {
        service.frontends.insert(key);
    }
}

/// Releases the ranges of words that were never tried, written or not: no reader has seen them.
fn release_unpublished(ops: &[Op], failed: usize, space: &mut Space, shortage: &mut Shortage) {
    for (position, op) in ops.iter().enumerate() {
        let Action::WriteRange(range, ..) = op.action else { continue };
        let publishes = |op: &Op| match op.action {
            Action::PublishWord(_, _, word) => word.range(range.family) == Some(range),
            _ => false,
        };
        work::count_work(1);
        // Only a word after the write counts: an earlier one, of the other family, may look the same.
        let untried = ops.iter().enumerate().skip(position).find(|(_, op)| publishes(op));
        if untried.is_some_and(|(position, _)| position > failed) {
            space.release_range(range);
            shortage.tableless.record_freed(1);
        }
    }
}

struct PortWrite<'a> {
    realized: &'a mut RealizedPort,
    family: Family,
    rows: &'a Arc<Rows>,
}

impl PortWrite<'_> {
    /// Records a published word, and frees its former ranges. `true`: it may send fewer readers to the other list.
    fn publish(self, scope: Scope, word: Word, freed: &mut Vec<SlotRange>) -> bool {
        let list = self.realized.list_mut(scope);
        let now = word.range(self.family);
        let old = mem::replace(&mut list.word, word);
        let before = old.range(self.family);
        let redirects = mem::take(&mut list.uncertain) || !word.flags.contains(old.flags.redirects());
        if now != before {
            list.rows = if now.is_some() { Arc::clone(self.rows) } else { Arc::default() };
        }
        let suspects = mem::take(&mut list.suspects).into_iter();
        freed.extend(suspects.chain(before).filter(|range| Some(*range) != now));
        redirects
    }

    /// Records what an op has written of the port besides its words.
    fn apply_action(self, action: &Action) {
        let RealizedPort { facts, members, uncertain_members, sources, uncertain_sources, .. } =
            self.realized;
        match action {
            Action::WriteFacts(_, written) => *facts = Some(*written),
            Action::InsertMember(key, state) => {
                uncertain_members.remove(&member_key(key));
                members.insert(member_key(key), *state);
            }
            Action::RemoveMember(key) => {
                uncertain_members.remove(&member_key(key));
                members.remove(&member_key(key));
            }
            Action::InsertSource(key, _) => {
                uncertain_sources.remove(&key.range);
                sources.insert(key.range);
            }
            Action::RemoveSource(key) => {
                uncertain_sources.remove(&key.range);
                sources.remove(&key.range);
            }
            _ => {}
        }
    }

    /// Publishing failed or seemed to: readers may see the old range or the new one, so both stay.
    fn mark_uncertain(self, scope: Scope, word: Word) {
        let list = self.realized.list_mut(scope);
        list.uncertain = true;
        let live = list.word.range(self.family);
        list.suspects.extend(word.range(self.family).filter(|range| Some(*range) != live));
    }
}

fn member_key(key: &MemberKey) -> (Membership, SocketAddr) {
    (key.membership, key.backend)
}
