//! The parts of the maps that services share: slots, port indices, and freed parts that readers may still use.
//!
//! Invariant: an allocation goes to no other port or list until it is released, a grace period after the last reader
//! could find it.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::mem;

use super::budget::TableBudget;
use super::charges::Charges;
use super::family_pair::{by_family, by_family_mut};
use super::members::MemberSpace;
use super::spare_blocks::SpareBlocks;
use crate::claims::{Frontends, RealizedFrontend};
use crate::index::Seed;
use crate::keys::{Family, FrontendKey};
use crate::limits;
use crate::maps::Capacity;
use crate::op::{Action, Grace, Op, Owner, PortIndex, QuotaId, ServiceId, SlotRange};
use crate::service::Port;
use crate::slot_allocator::SlotAllocator;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutOfIndices {
    #[error("all {0} port indices are in use; raise `datapath.limits.frontends`")]
    Exhausted(u32),
    #[error(
        "this namespace has reached its quota: its ports have {own} indices and leave {left} to all others; raise \
             `datapath.limits.frontends`"
    )]
    Quota { own: u32, left: u32 },
}

#[derive(Debug)]
pub(crate) struct Space {
    pub(super) slots: [SlotAllocator; 2],
    spares: [SpareBlocks; 2],
    pub(super) lists: [Charges; 2],
    pub(super) members: MemberSpace,
    pub(super) indices: Indices,
    pub(super) tables: TableBudget,
    pub(crate) freed: FreedSpace,
}

impl Space {
    pub(super) fn new(seed: Seed, capacity: Capacity) -> Self {
        let slots = SlotAllocator::new(capacity.slots);
        Self {
            indices: Indices {
                free: BTreeSet::new(),
                next: 0,
                capacity: capacity.ports,
                charges: Charges::new(seed),
                positions: Vec::new(),
            },
            tables: TableBudget::new(seed, slots.capacity()),
            freed: FreedSpace::default(),
            lists: [Charges::new(seed), Charges::new(seed)],
            members: MemberSpace::new(seed, slots.capacity()),
            spares: [SpareBlocks::new(slots.capacity()), SpareBlocks::new(slots.capacity())],
            slots: [slots.clone(), slots],
        }
    }

    /// Releases a range that no reader sees.
    pub(super) fn release_range(&mut self, range: SlotRange) {
        self.slots(range.family).deallocate(range.base, range.count);
        self.tables.charges(range.family).release(range.base);
        by_family_mut(&mut self.lists, range.family).release(range.base);
        self.refill_spares(range.family);
    }

    /// Releases an empty index that no reader sees.
    pub(super) fn release_port_index(&mut self, index: PortIndex) {
        self.members.release(index);
        self.indices.release_index(index);
    }

    pub(super) const fn capacity(&self) -> u32 {
        let [slots, _] = &self.slots;
        slots.capacity()
    }

    /// How many slots of a family are allocated, in whole blocks.
    pub(super) fn used(&self, family: Family) -> u32 {
        let (slots, spares) = (by_family(&self.slots, family), by_family(&self.spares, family));
        slots.used().saturating_sub(spares.slots())
    }

    /// How many slots of a family are free for any use.
    pub(super) fn headroom(&self, family: Family) -> u32 {
        let slots = by_family(&self.slots, family);
        slots.capacity().saturating_sub(slots.used())
    }

    /// Refills the spare blocks before anything else takes a free one.
    pub(super) fn refill_spares(&mut self, family: Family) {
        let Self { slots: [slots4, slots6], spares: [spares4, spares6], .. } = self;
        match family {
            Family::V4 => spares4.refill(slots4),
            Family::V6 => spares6.refill(slots6),
        }
    }

    pub(super) fn spares(&mut self, family: Family) -> &mut SpareBlocks {
        by_family_mut(&mut self.spares, family)
    }

    pub(super) fn slots(&mut self, family: Family) -> &mut SlotAllocator {
        by_family_mut(&mut self.slots, family)
    }
}

#[derive(Debug)]
pub(super) struct Indices {
    free: BTreeSet<PortIndex>,
    next: u32,
    pub(super) capacity: u32,
    /// Which namespaces have them.
    charges: Charges,
    /// The position of an index among its owner's ports, so that an op finds its port without a search.
    positions: Vec<u32>,
}

impl Indices {
    /// Allocates the lowest free index for a namespace, so that the map stays dense.
    pub(super) fn allocate_index(&mut self, quota: QuotaId) -> Result<PortIndex, OutOfIndices> {
        let left = self.capacity.saturating_sub(self.charges.used());
        let is_shared = self.capacity >= limits::QUOTA_CAPACITY_MIN;
        if is_shared && left > 0 && !self.charges.leaves_headroom(quota, 1, left) {
            return Err(OutOfIndices::Quota { own: self.charges.used_by(quota), left });
        }
        let index = match self.free.pop_first() {
            Some(index) => index,
            None if self.next < self.capacity => {
                self.next += 1;
                PortIndex(self.next - 1)
            }
            None => return Err(OutOfIndices::Exhausted(self.capacity)),
        };
        self.charges.charge(index.0, quota, 1);
        Ok(index)
    }

    /// Reserves an index that a restart found in use.
    pub(super) fn reserve(&mut self, index: PortIndex, quota: QuotaId) {
        while self.next <= index.0 {
            self.free.insert(PortIndex(self.next));
            self.next += 1;
        }
        self.free.remove(&index);
        self.charges.charge(index.0, quota, 1);
    }

    pub(super) fn release_index(&mut self, index: PortIndex) {
        self.charges.release(index.0);
        self.free.insert(index);
    }

    pub(super) fn position(&self, index: PortIndex) -> Option<usize> {
        self.positions.get(index.0 as usize).map(|position| *position as usize)
    }

    /// Sets the position of an index among its owner's ports.
    pub(super) fn set_position(&mut self, index: PortIndex, position: usize) {
        let at = index.0 as usize;
        if self.positions.len() <= at {
            self.positions.resize(at + 1, 0);
        }
        if let (Some(known), Ok(position)) = (self.positions.get_mut(at), u32::try_from(position)) {
            *known = position;
        }
    }

    pub(super) fn set_positions(&mut self, ports: &[Port]) {
        for (position, port) in ports.iter().enumerate() {
            if let Some(index) = port.index {
                self.set_position(index, position);
            }
        }
    }

    pub(super) fn used(&self) -> usize {
        self.next as usize - self.free.len()
    }
}

/// The frontend before an op settled it, and the services with failed ops on it.
pub(super) type SettledFrontend = (Option<RealizedFrontend>, Vec<ServiceId>);

/// Freed parts that readers may use until a grace period has passed.
#[derive(Debug, Default)]
pub(crate) struct FreedSpace {
    pub(super) now: FreedBatch,
    pub(super) waiting: VecDeque<(Grace, FreedBatch)>,
}

/// The parts freed before one grace period began.
#[derive(Debug, Default)]
pub(super) struct FreedBatch {
    /// Ranges without a word.
    pub(super) ranges: Vec<SlotRange>,
    /// Wiped indices.
    pub(super) indices: Vec<PortIndex>,
    /// Services with a word that fewer readers reach than before, through a frontend or the cluster word.
    pub(super) services: BTreeSet<ServiceId>,
    /// The same for ports that a restart found.
    pub(super) leftovers: BTreeSet<PortIndex>,
}

impl FreedSpace {
    /// Whether something waits for a grace period that has not begun.
    pub(crate) fn has_new(&self) -> bool {
        !self.now.is_empty()
    }

    /// Starts a grace period for all that was freed until now.
    pub(crate) fn begin_grace(&mut self, grace: Grace) {
        self.waiting.push_back((grace, mem::take(&mut self.now)));
    }

    /// The grace period that ends next, if any.
    pub(crate) fn next_grace(&self) -> Option<Grace> {
        self.waiting.front().map(|(grace, _)| *grace)
    }

    /// Records a frontend's certain state in the maps. Returns its state before, and the services with failed ops
    /// on it.
    pub(super) fn settle_frontend(
        &mut self,
        key: FrontendKey,
        now: Option<RealizedFrontend>,
        frontends: &mut Frontends,
    ) -> SettledFrontend {
        let (before, doubters) = frontends.confirm_realized(key, now);
        if let Some(left) = before.filter(|it| now.is_none_or(|now| now.value != it.value)) {
            self.now.record_redirect(left);
        }
        self.now.services.extend(doubters.iter().copied());
        (before, doubters)
    }

    fn batches(&self) -> impl Iterator<Item = &FreedBatch> {
        core::iter::once(&self.now).chain(self.waiting.iter().map(|(_, leaving)| leaving))
    }

    /// Whether readers may still read a word of this service that nothing points to any more.
    pub(super) fn has_readers(&self, id: ServiceId) -> bool {
        self.batches().any(|leaving| leaving.services.contains(&id))
    }

    /// The same for a port that a restart found.
    pub(super) fn has_leftover_readers(&self, index: PortIndex) -> bool {
        self.batches().any(|leaving| leaving.leftovers.contains(&index))
    }
}

impl FreedBatch {
    pub(super) fn is_empty(&self) -> bool {
        let Self { ranges, indices, services, leftovers: found } = self;
        ranges.is_empty() && indices.is_empty() && services.is_empty() && found.is_empty()
    }

    pub(super) fn plan_wipes(&mut self, mut left: u64, ops: &mut Vec<Op>) {
        while left > 0
            && let Some(range) = self.ranges.pop()
        {
            let wiped = u64::from(range.count) / limits::PLACES_PER_SLOT;
            left = left.saturating_sub(limits::FRONTEND_WORK + wiped);
            ops.push(Op { owner: Owner::Nobody, action: Action::FreeRange(range) });
        }
    }

    /// Records that a frontend points elsewhere or is gone.
    pub(super) fn record_redirect(&mut self, before: RealizedFrontend) {
        match before.owner {
            Some(id) => self.services.insert(id),
            None => self.leftovers.insert(before.value.port),
        };
    }
}
