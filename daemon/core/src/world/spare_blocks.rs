//! Blocks that are kept for lists that change, so that such a list needs no slot that is free for all.
//!
//! Invariant: a block of a size is taken for a list that leaves another one at least as large, and what comes free goes
//! here first, the largest that lacks. So each block that was taken comes back a grace period after its list has
//! moved, however the rest of the slots is taken or broken up. Nothing is kept before half of the slots are taken, so
//! that arrays are no larger than what is in them.

use alloc::vec::Vec;

use crate::limits;
use crate::slot_allocator::SlotAllocator;

/// The blocks of one family that are kept.
#[derive(Clone, Debug)]
pub(super) struct SpareBlocks {
    /// By the power of two that they are long: the first slots of those that are there, and how many there should be.
    blocks: Vec<(Vec<u32>, u32)>,
    /// The slots that are kept, and that should be.
    slots: u32,
    most: u32,
}

impl SpareBlocks {
    /// None yet, of maps with so many slots: what a start finds has its places first.
    pub(super) fn new(capacity: u32) -> Self {
        let orders = (0..u32::BITS).take_while(|order| limits::spare_blocks(capacity, *order) > 0);
        let blocks: Vec<_> =
            orders.map(|order| (Vec::new(), limits::spare_blocks(capacity, order))).collect();
        let most = (0_u32..).zip(&blocks).map(|(order, (_, most))| *most << order).sum();
        Self { blocks, slots: 0, most }
    }

    /// How many slots are kept.
    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    /// Takes for itself what lacks and is free, the last slots first: lists begin with the first ones.
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

    /// Takes a block for so many slots.
    pub(super) fn allocate_block(&mut self, count: u32) -> Option<u32> {
        let slots = count.max(1).checked_next_power_of_two()?;
        let (bases, _) = self.blocks.get_mut(slots.ilog2() as usize)?;
        let base = bases.pop()?;
        self.slots = self.slots.saturating_sub(slots);
        Some(base)
    }
}
