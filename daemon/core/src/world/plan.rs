//! Plans ops from desired and realized, in the order that clients in flight need.
//!
//! Invariant: a range is written before its word, and a word before its frontends. A word is wiped a grace period after
//! its frontends are removed. The lists of a piece's services come first. Removals follow, after the services that may
//! be about to claim a removed frontend, so that a frontend that changes owners is never missing.

mod leftovers;
mod port;
mod source_ranges;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::World;
use super::adopt::LeftoverPorts;
use super::family_pair::by_family_mut;
use super::index_handover::{IndexHandover, hand_over_index};
use super::placement::{ListPlacement, PlacementError};
use super::plan_shortfall::{PlanError, PlanShortfalls};
use super::services::Services;
use super::space::Space;
use super::work_queue::WorkQueue;
use crate::claims::{Frontend, Frontends, RealizedFrontend};
use crate::keys::{Family, FrontendKey};
use crate::limits;
use crate::list::Scope;
use crate::op::{Action, FrontendValue, MapGrowth, Op, Owner, PortIndex, QuotaId, ServiceId, Word};
use crate::resolve::DesiredFrontend;
use crate::service::{Cursor, Port, Service};
use crate::tables::Tables;
use crate::work;
use port::{desired_members, plan_list, plan_new_members, plan_stale_members, plan_unused, plan_wipe};
use source_ranges::{checks_sources, plan_revoked_sources, plan_sources};

impl World {
    /// What the services of the piece still lack in the maps, or at a start all gathered services. A service that takes
    /// several pieces is counted in the first.
    pub(crate) fn estimate_pending_growth(&self) -> MapGrowth {
        let Self { queue, services, owners, space, .. } = self;
        let mut growth = MapGrowth::default();
        let mut tables = [0; 2];
        let begins = |service: &&Service| !service.is_unfinished() && service.cursor == Cursor::default();
        let begun = queue.piece.iter().filter_map(|id| services.get(*id)).filter(begins);
        let all = queue.gathered.iter().filter_map(|id| services.get(*id)).chain(begun);
        all.for_each(|service| add_growth(service, &owners.frontends, &mut growth, &mut tables));
        for family in Family::ALL {
            let tables = by_family_mut(&mut tables, family);
            let slots = by_family_mut(&mut growth.slots, family);
            *slots = slots.saturating_add((*tables).min(space.tables.headroom(family)));
        }
        growth
    }

    /// Plans the ops for a service's lists and frontends, as many as a piece allows. On an error the planned ops are
    /// still executed; it says what found no capacity.
    pub(crate) fn plan_lists(&mut self, id: ServiceId, ops: &mut Vec<Op>) -> Result<(), PlanError> {
        let planned = self.planner().plan_lists(id, ops);
        let Self { shortage, services, tables, .. } = self;
        shortage.record_plan(id, &planned, tables, services);
        planned
    }

    /// Plans the removal of what a service no longer has, once every service of the piece has its lists. Words are
    /// emptied in a later piece than their frontends are removed, because a grace period lies between.
    pub(crate) fn plan_removals(&mut self, id: ServiceId, ops: &mut Vec<Op>) {
        self.planner().plan_removals(id, ops);
    }

    pub(crate) fn plan_node_removals(&self, ops: &mut Vec<Op>) {
        self.realized.node.plan_removals(&self.tables.node.node_port_addresses, ops);
    }

    pub(crate) fn plan_node(&self, ops: &mut Vec<Op>) {
        self.realized.node.plan(&self.tables.node.node_port_addresses, ops);
    }

    const fn planner(&mut self) -> Planner<'_> {
        Planner {
            tables: &self.tables,
            services: &mut self.services,
            frontends: &mut self.owners.frontends,
            space: &mut self.space,
            leftovers: &mut self.realized.leftovers,
            shortfalls: &mut self.shortage.shortfalls,
            queue: &mut self.queue,
        }
    }
}

/// What planning reads and changes: the service's progress and the places of its lists, the allocations in the maps,
/// and the queues. The realized state changes only when the maps accept an op.
struct Planner<'a> {
    tables: &'a Tables,
    services: &'a mut Services,
    frontends: &'a mut Frontends,
    space: &'a mut Space,
    leftovers: &'a mut LeftoverPorts,
    shortfalls: &'a mut PlanShortfalls,
    queue: &'a mut WorkQueue,
}

impl Planner<'_> {
    fn plan_lists(&mut self, id: ServiceId, ops: &mut Vec<Op>) -> Result<(), PlanError> {
        if self.services.is_unfinished(id) {
            return Ok(());
        }
        let owner = Owner::Service(id);
        self.shortfalls.handover = None;
        let (wanted, begun) =
            self.services.get_mut(id).map_or_else(Default::default, |it| (it.desired_count, it.cursor));
        if begun == Cursor::default() {
            self.shortfalls.begin_plan(id);
            // Frontends that pass to the real balancer go before the list that they used.
            ops.extend(
                self.passed_frontends(id).map(|key| Op { owner, action: Action::RemoveFrontend(key) }),
            );
        }
        let mut left = self.queue.most;
        for position in begun.ports..wanted {
            if left == 0 {
                self.defer_plan(id, Cursor { ports: position, ..begun });
                return Ok(());
            }
            work::count_work(1);
            let work = limits::FRONTEND_WORK + self.services.port(id, position).map_or(0, Port::work);
            left = left.saturating_sub(work);
            if let Err(error) = self.plan_port(id, position, &mut |action| ops.push(Op { owner, action })) {
                self.shortfalls.record_shortfall(id, Some(position), error);
            }
        }
        let position = self.plan_frontends(id, begun.frontends, left, ops);
        let why = self.shortfalls.reason(id).cloned();
        let desired = self.services.get_mut(id).map_or(0, |service| service.desired.len());
        let cursor = Cursor { ports: wanted, frontends: position };
        let is_heavy = begun != Cursor::default() && begun.frontends < desired;
        if position < desired || is_heavy && why.is_none() {
            // The removals and the new view are a piece of their own.
            self.defer_plan(id, cursor);
            return Ok(());
        }
        if let Some(service) = self.services.get_mut(id) {
            service.cursor = cursor;
        }
        why.map_or(Ok(()), Err)
    }

    /// Defers the rest of this service's plan to a later piece.
    fn defer_plan(&mut self, id: ServiceId, cursor: Cursor) {
        self.services.get_mut(id).into_iter().for_each(|service| service.defer(cursor));
    }

    /// The frontends in the maps, of whichever service, that this service passes to the real balancer.
    fn passed_frontends(&self, id: ServiceId) -> impl Iterator<Item = FrontendKey> {
        let desired = self.services.get(id).into_iter().flat_map(|service| &service.desired);
        desired.filter(|it| it.passes).filter_map(DesiredFrontend::key).filter(move |key| {
            let entry = self.frontends.get(key).filter(|entry| entry.winner() == Some(id));
            entry.is_some_and(|entry| match entry.realized {
                // A leftover of a restart; leftovers stay until every source has synced.
                Some(RealizedFrontend { owner: None, .. }) => self.tables.is_synced(),
                Some(_) => true,
                None => entry.uncertain,
            })
        })
    }

    fn plan_port(
        &mut self,
        id: ServiceId,
        position: usize,
        push: &mut dyn FnMut(Action),
    ) -> Result<(), PlanError> {
        let mut index = self.assign_index(id, position)?;
        let (mut lists, mut placed) = self.place_lists(id, position, index);
        let gets_none = placed.is_err() && lists.iter().all(|list| list.range.is_none());
        let has_nothing = |port: &Port| port.realized.is_wiped();
        if gets_none && self.services.port(id, position).is_none_or(has_nothing) {
            let Some(left) = self.inherit_index(id, position) else { return Ok(placed?) };
            index = left;
            (lists, placed) = self.place_lists(id, position, index);
        }
        let quota = self.tables.quota(id);
        let Some(port) = self.services.port(id, position) else {
            self.services.count_impossible();
            return Ok(());
        };
        if port.realized.facts != Some(port.facts()) {
            push(Action::WriteFacts(index, port.facts()));
        }
        // Members come before clients can select them, and before the cluster word refers to them. A list that stays
        // because the new one has no place keeps its members and gets no others.
        let stays = |scope| !lists.iter().any(|list| list.scope == scope);
        if !lists.is_empty() {
            plan_new_members(port, index, &stays, push);
        }
        plan_revoked_sources(port, index, push);
        // If clients already look up their source, sources come after the lists, so that a range without capacity
        // delays no list.
        let is_restricted = checks_sources(port);
        if !is_restricted {
            plan_sources(port, (index, quota), push);
        }
        lists.iter().for_each(|list| plan_list(port, index, list, push));
        let is_there = placed.is_ok() || port.realized.cluster.word != Word::EMPTY;
        if is_restricted && is_there {
            plan_sources(port, (index, quota), push);
        }
        if !lists.is_empty() {
            plan_stale_members(port, index, &stays, push);
        }
        Ok(placed?)
    }

    fn place_lists(
        &mut self,
        id: ServiceId,
        position: usize,
        index: PortIndex,
    ) -> (Vec<ListPlacement>, Result<(), PlacementError>) {
        let quota = self.tables.quota(id);
        let Self { services, space, .. } = self;
        let port = services.port_mut(id, position);
        port.map_or((Vec::new(), Ok(())), |port| space.place_lists(port, index, quota))
    }

    /// The port's index: its present one, one that a restart found and that is entirely its own, or a free one.
    fn assign_index(&mut self, id: ServiceId, position: usize) -> Result<PortIndex, PlanError> {
        let Self { services, frontends, space, leftovers: found, .. } = self;
        if let Some(index) = services.port(id, position).and_then(|port| port.index) {
            return Ok(index);
        }
        if let Some(index) = found.adopt_index(id, position, services, frontends) {
            space.indices.set_position(index, position);
            return Ok(index);
        }
        let index = match self.space.indices.allocate_index(self.tables.quota(id)) {
            Ok(index) => index,
            Err(full) => return self.inherit_index(id, position).ok_or(full.into()),
        };
        if let Some(port) = self.services.port_mut(id, position) {
            port.index = Some(index);
        }
        self.space.indices.set_position(index, position);
        Ok(index)
    }

    /// Plans the frontends of a service from `begin` on, and returns the position of the first that no longer fits into
    /// the piece.
    fn plan_frontends(&mut self, id: ServiceId, begin: usize, mut left: u64, ops: &mut Vec<Op>) -> usize {
        let freed = self.free_own_frontends(id, begin, ops);
        let Some(service) = self.services.get(id) else {
            self.services.count_impossible();
            return begin;
        };
        let (limit, quota) = (self.tables.settings.frontends_max, self.tables.quota(id));
        let (mut more, mut chosen, mut full, mut to_replan) = (0, 0, None, BTreeSet::new());
        let mut end = service.desired.len();
        for (position, frontend) in
            service.desired.iter().enumerate().skip(begin).filter(|(_, it)| !it.passes)
        {
            work::count_work(1);
            let Some(key) = frontend.key() else { continue };
            let Some(entry) = self.frontends.get(&key).filter(|entry| entry.winner() == Some(id)) else {
                continue;
            };
            let index = frontend.position.and_then(|position| service.ports.get(position)?.index);
            let former = || entry.realized.and_then(|it| it.owner);
            let Some(port) = index else {
                to_replan.extend(former().filter(|former| self.blocks_winner(*former, id, &key)));
                continue;
            };
            let value = FrontendValue { port, kind: frontend.kind, quota };
            let done = entry.realized.is_some_and(|it| it.value == value && it.owner == Some(id));
            if done && !entry.uncertain {
                continue;
            }
            if !done && self.has_no_list(id, frontend.position) {
                to_replan.extend(former().filter(|former| self.blocks_winner(*former, id, &key)));
                continue;
            }
            let is_chosen = usize::from(frontend.kind.is_author_chosen());
            if entry.realized.is_none()
                && let Err(error) =
                    check_frontend_limit(self.frontends, (limit, quota), (more + 1, chosen, is_chosen), freed)
            {
                full = full.or(Some(error));
                continue;
            }
            if left == 0 {
                end = position;
                break;
            }
            left = left.saturating_sub(limits::FRONTEND_WORK);
            more += usize::from(entry.realized.is_none());
            chosen += if entry.realized.is_none() { is_chosen } else { 0 };
            ops.push(Op { owner: Owner::Service(id), action: Action::InsertFrontend(key, value) });
        }
        self.frontends.all.planned += more;
        self.frontends.external_ips.planned += chosen;
        to_replan.into_iter().for_each(|former| self.services.replan(former));
        full.into_iter().for_each(|error| self.shortfalls.record_shortfall(id, None, error));
        end
    }

    /// Whether the port at this position found no capacity and has no list in the maps.
    fn has_no_list(&self, id: ServiceId, position: Option<usize>) -> bool {
        let Some(position) = position.filter(|position| self.shortfalls.lacks_port(id, *position)) else {
            return false;
        };
        let port = self.services.port(id, position);
        port.is_none_or(|port| port.realized.cluster.word == Word::EMPTY)
    }

    /// If the new frontends of a service do not all fit, removes the ones that it drops first, and returns how many.
    /// Otherwise waiting services could take that capacity, and the service would have neither the old nor the new
    /// ones.
    fn free_own_frontends(&mut self, id: ServiceId, begin: usize, ops: &mut Vec<Op>) -> usize {
        let new = self.services.get(id).map_or(0, |service| service.desired.len().saturating_sub(begin));
        let (limit, quota) = (self.tables.settings.frontends_max, self.tables.quota(id));
        if check_frontend_limit(self.frontends, (limit, quota), (new, 0, 0), 0).is_ok() {
            return 0;
        }
        let most = (self.queue.most / limits::FRONTEND_WORK).max(1);
        let (_, left) = self.reachable_indices(id);
        let left = left.into_iter().filter(|key| !self.queue.defer_removal(key, id));
        let removals = left.map(|key| Op { owner: Owner::Service(id), action: Action::RemoveFrontend(key) });
        let before = ops.len();
        ops.extend(removals.take(usize::try_from(most).unwrap_or(usize::MAX)));
        ops.len() - before
    }

    fn plan_removals(&mut self, id: ServiceId, ops: &mut Vec<Op>) {
        if self.services.is_unfinished(id) {
            return;
        }
        let (dialled, left) = self.reachable_indices(id);
        if !left.is_empty() {
            return self.plan_unclaimed(id, left, ops);
        }
        let Some(service) = self.services.get(id).filter(|_| !self.space.freed.has_readers(id)) else {
            return;
        };
        let begin = ops.len();
        let most = (self.queue.most / limits::FRONTEND_WORK).max(1);
        let is_whole = |position: &usize| !self.shortfalls.lacks_port(id, *position);
        for (position, port) in service.ports.iter().enumerate().filter(|(position, _)| is_whole(position)) {
            let Some(index) = port.index.filter(|index| !dialled.contains(*index)) else { continue };
            if (ops.len() - begin) as u64 >= most {
                let cursor = service.cursor;
                return self.defer_plan(id, cursor);
            }
            let plan = if position < service.desired_count { plan_unused } else { plan_wipe };
            plan(port, index, &mut |action| ops.push(Op { owner: Owner::Service(id), action }));
        }
    }

    /// The indices that clients still reach at frontends now won by other services, and the service's frontends in the
    /// maps to remove: unclaimed, or won by a service without capacity, which this service may be occupying.
    fn reachable_indices(&self, id: ServiceId) -> (ReachableIndices, Vec<FrontendKey>) {
        let mut dialled = ReachableIndices::default();
        let mut left = Vec::new();
        let service = self.services.get(id);
        // A frontend that could not be moved still points where it did.
        let lacks = self.shortfalls.reason(id).is_some();
        for key in service.into_iter().flat_map(|service| service.frontends.iter()) {
            work::count_work(1);
            let entry = self.frontends.get(key);
            match entry.and_then(|entry| Some((entry, entry.winner()?))) {
                None => left.push(*key),
                Some((_, winner)) if self.blocks_winner(id, winner, key) => left.push(*key),
                Some((entry, winner)) if winner != id || lacks => dialled.add_frontend(entry),
                Some(_) => {}
            }
        }
        (dialled, left)
    }

    /// Whether a service has a frontend in the maps that it no longer claims, while the winner finds no capacity:
    /// clients would reach another service's backends for as long as both wait.
    fn blocks_winner(&self, id: ServiceId, winner: ServiceId, key: &FrontendKey) -> bool {
        let asks = |service: &Service| service.claims.binary_search_by(|it| it.key.cmp(key)).is_ok();
        winner != id
            && self.shortfalls.reason(winner).is_some()
            && self.services.get(id).is_some_and(|service| !asks(service))
    }

    /// Removes unclaimed frontends, except those that a service may be about to claim.
    fn plan_unclaimed(&mut self, id: ServiceId, left: Vec<FrontendKey>, ops: &mut Vec<Op>) {
        let most = (self.queue.most / limits::FRONTEND_WORK).max(1);
        let begin = ops.len();
        for key in left {
            if (ops.len() - begin) as u64 >= most {
                let cursor = self.services.get_mut(id).map(|service| service.cursor).unwrap_or_default();
                return self.defer_plan(id, cursor);
            }
            if !self.queue.defer_removal(&key, id) {
                ops.push(Op { owner: Owner::Service(id), action: Action::RemoveFrontend(key) });
            }
        }
    }

    /// Gives a port without capacity the index and lists of a leaving port: a renamed one, or one of another number
    /// once its last frontend is gone. The lists are then replaced like those of any changed port.
    fn inherit_index(&mut self, id: ServiceId, position: usize) -> Option<PortIndex> {
        let Self { services, frontends, space, shortfalls, .. } = self;
        if space.freed.has_readers(id) {
            return None;
        }
        let known = shortfalls.handover.take().filter(|heirs| heirs.service_id == id);
        let mut heirs = known.unwrap_or_else(|| IndexHandover::find_handover(id, services, frontends));
        let left =
            services.get(id).and_then(|service| heirs.take_index_for(service, position, &space.indices));
        shortfalls.handover = Some(heirs);
        hand_over_index(id, left?, position, services, space)
    }
}

/// Adds what the service lacks; `tables` collects the slots of Maglev tables, which have a limit of their own.
fn add_growth(service: &Service, frontends: &Frontends, growth: &mut MapGrowth, tables: &mut [u32; 2]) {
    let new = |key: &FrontendKey| frontends.get(key).is_none_or(|entry| entry.realized.is_none());
    let stays = |it: &&DesiredFrontend| !it.passes;
    for key in service.desired.iter().filter(stays).filter_map(DesiredFrontend::key).filter(new) {
        *by_family_mut(&mut growth.frontends, Family::from_address(key.address)) += 1;
    }
    for port in service.ports.iter().filter(|port| port.index.is_none()) {
        growth.ports += 1;
        let members = u32::try_from(desired_members(port).count()).unwrap_or(u32::MAX);
        growth.members = growth.members.saturating_add(members);
        for scope in Scope::ALL.into_iter().filter(|scope| port.uses_list(*scope)) {
            add_list_growth(port, scope, growth, tables);
        }
    }
}

/// Whether `more` new frontends of a namespace fit once `freed` ones are gone. `chosen` of them are at external IPs,
/// and `is_chosen` says whether the last is. External IPs leave half of the capacity to what the apiserver allocates:
/// one small object may list thousands, and each namespace may take eight ninths of the rest.
fn check_frontend_limit(
    frontends: &Frontends,
    (limit, quota): (Option<usize>, QuotaId),
    (more, chosen, is_chosen): (usize, usize, usize),
    freed: usize,
) -> Result<(), PlanError> {
    let limit = limit.unwrap_or(usize::MAX);
    let all = frontends.all.total_planned().saturating_sub(freed);
    let own = frontends.used_by(quota).saturating_sub(freed);
    let left = limit.saturating_sub(all);
    let rest = left.checked_sub(more).ok_or(PlanError::Frontends(limit))?;
    let is_shared = limit >= limits::QUOTA_CAPACITY_MIN as usize;
    let most = rest.saturating_mul(limits::QUOTA_REST_FACTOR as usize);
    let external = frontends.external_ips.total_planned() + chosen;
    if is_shared && is_chosen > 0 && external >= limit / limits::EXTERNAL_IP_DIVISOR as usize {
        return Err(PlanError::ExternalIps(external));
    }
    let has_part = is_shared && own + more > most;
    if has_part { Err(PlanError::Quota { own, left }) } else { Ok(()) }
}

/// The indices that clients may reach at frontends about to change owners. Until then those clients keep this service's
/// lists.
#[derive(Default)]
pub(super) struct ReachableIndices {
    /// One of these frontends is uncertain, so it may point to any index.
    any: bool,
    indices: BTreeSet<PortIndex>,
}

impl ReachableIndices {
    pub(super) fn add_frontend(&mut self, entry: &Frontend) {
        self.any |= entry.uncertain;
        self.indices.extend(entry.realized.map(|realized| realized.value.port));
    }

    pub(super) fn contains(&self, index: PortIndex) -> bool {
        self.any || self.indices.contains(&index)
    }
}

/// Adds a list that is new, or its Maglev table with the members that it needs.
fn add_list_growth(port: &Port, scope: Scope, growth: &mut MapGrowth, tables: &mut [u32; 2]) {
    let (backends, places) = (port.rows.len(scope), port.desired_places(scope));
    let room = if places > backends { tables } else { &mut growth.slots };
    let room = by_family_mut(room, port.key.family);
    let slots = if places > 0 { places.next_power_of_two() } else { 0 };
    *room = room.saturating_add(slots);
    let is_listed = places > backends && port.policy.affinity_timeout == 0;
    growth.members = growth.members.saturating_add(if is_listed { backends } else { 0 });
}
