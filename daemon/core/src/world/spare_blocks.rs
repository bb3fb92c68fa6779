//! Spare blocks, so that a list that changes needs no commonly free slot.
//!
//! Invariant: a list gets a spare block only if it leaves one at least as large. Freed slots refill the spares first,
//! largest size first. So each spare block returns a grace period after its list has moved, however fragmented the
//! other slots are. Spares start only when half of the slots are in use, so that the maps stay no larger than needed.

use alloc::vec::Vec;

use crate::limits;
use crate::slot_allocator::SlotAllocator;

#[derive(Clone, Debug)]
pub(super) struct SpareBlocks {
    /// By order (power of two): the first slots of the spare blocks, and how many there should be.
    blocks: Vec<(Vec<u32>, u32)>,
    /// The slots in spare blocks, and how many there should be.
    slots: u32,
    most: u32,
}

impl SpareBlocks {
    /// Starts empty: what a start finds gets its slots first.
    pub(super) fn new(capacity: u32) -> Self {
        let orders = (0..u32::BITS).take_while(|order| limits::spare_blocks(capacity, *order) > 0);
        let blocks: Vec<_> =
            orders.map(|order| (Vec::new(), limits::spare_blocks(capacity, order))).collect();
        let most = (0_u32..).zip(&blocks).map(|(order, (_, most))| *most << order).sum();
        Self { blocks, slots: 0, most }
    }

    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    /// Takes missing blocks from the free slots, the last ones first, because lists begin with the first ones.
    pub(super) fn refill(&mut self, ranges: &mut SlotAllocator) {
        if self.slots >= self.most || ranges.used() < ranges.capacity() / 2 {
            return;
        }
        for (order, (bases, most)) in self.blocks.iter_mut().enumerate().rev() {
            while bases.len() < *most as usize
                && let Some(base) = ranges.allocate_last(1 << order)
            {
                bases.push(base);
                self.slots += 1 << order;
            }
        }
    }

    pub(super) fn allocate_block(&mut self, count: u32) -> Option<u32> {
        let slots = count.max(1).checked_next_power_of_two()?;
        let (bases, _) = self.blocks.get_mut(slots.ilog2() as usize)?;
        let base = bases.pop()?;
        self.slots = self.slots.saturating_sub(slots);
        Some(base)
    }
}
