//! A buddy allocator for the slots of one backend array.
//!
//! Invariant: no two ranges in use overlap, none is lost, and free neighbours merge again, so the array never fragments
//! beyond a factor of two. The caller frees a range only when no reader sees it any more.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// The array has no free run of slots that is long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no run of {count} free slots is left among {capacity}; raise `datapath.limits.backends`")]
pub struct OutOfSlots {
    /// The requested slots.
    pub count: u32,
    pub capacity: u32,
}

#[derive(Clone, Debug)]
pub struct SlotAllocator {
    // By order: the bases of the free blocks of 2^order slots. Lowest first, so that the array stays dense.
    free: Vec<BTreeSet<u32>>,
    capacity: u32,
    used: u32,
}

impl SlotAllocator {
    /// All slots below `capacity` are free. The capacity is rounded down to a power of two.
    pub fn new(capacity: u32) -> Self {
        let order_max = capacity.checked_ilog2().unwrap_or(0);
        let mut free: Vec<_> = (0..=order_max).map(|_| BTreeSet::new()).collect();
        if let Some(top) = free.last_mut() {
            top.insert(0);
        }
        Self { free, capacity: 1 << order_max, used: 0 }
    }

    /// Whether a run of `count` slots is free.
    pub fn has_run(&self, count: u32) -> bool {
        let wanted = block_order(count);
        wanted.is_some_and(|order| self.free.iter().skip(order).any(|bases| !bases.is_empty()))
    }

    /// Allocates a run of `count` slots, and returns its first slot.
    pub fn allocate(&mut self, count: u32) -> Result<u32, OutOfSlots> {
        let no_room = OutOfSlots { count, capacity: self.capacity };
        let wanted = block_order(count).ok_or(no_room)?;
        let found = self.free.iter().enumerate().skip(wanted).find(|(_, bases)| !bases.is_empty());
        let (mut order, _) = found.ok_or(no_room)?;
        let base = self.free.get_mut(order).and_then(BTreeSet::pop_first).ok_or(no_room)?;
        while order > wanted {
            order -= 1;
            self.insert_free(base + (1 << order), order);
        }
        self.used += 1 << wanted;
        Ok(base)
    }

    /// Allocates the last free run of `count` slots, if any is long enough.
    pub(crate) fn allocate_last(&mut self, count: u32) -> Option<u32> {
        let wanted = block_order(count)?;
        let last = |(order, bases): (usize, &BTreeSet<u32>)| Some((order, *bases.last()?));
        let found = self.free.iter().enumerate().skip(wanted).filter_map(last);
        let (mut order, mut base) = found.max_by_key(|(_, base)| *base)?;
        self.free.get_mut(order)?.remove(&base);
        while order > wanted {
            order -= 1;
            self.insert_free(base, order);
            base += 1 << order;
        }
        self.used += 1 << wanted;
        Some(base)
    }

    /// Allocates exactly this run, which a restart found in use. `false`: it overlaps an allocated one.
    pub fn reserve(&mut self, base: u32, count: u32) -> bool {
        let Some(wanted) = block_order(count).filter(|order| base.is_multiple_of(1 << order)) else {
            return false;
        };
        let block = |order: usize| base >> order << order;
        let holds = |(order, bases): &(usize, &BTreeSet<u32>)| bases.contains(&block(*order));
        let Some((mut order, _)) = self.free.iter().enumerate().skip(wanted).find(holds) else {
            return false;
        };
        if let Some(bases) = self.free.get_mut(order) {
            bases.remove(&block(order));
        }
        while order > wanted {
            order -= 1;
            self.insert_free(block(order) ^ 1 << order, order);
        }
        self.used += 1 << wanted;
        true
    }

    /// Frees a run from [`Self::allocate`] or [`Self::reserve`].
    pub fn deallocate(&mut self, base: u32, count: u32) {
        let Some(mut order) = block_order(count) else { return };
        let mut base = base;
        self.used -= 1 << order;
        while order + 1 < self.free.len()
            && self.free.get_mut(order).is_some_and(|f| f.remove(&(base ^ 1 << order)))
        {
            base &= !(1 << order);
            order += 1;
        }
        self.insert_free(base, order);
    }

    /// How many slots are in use, in whole blocks.
    pub const fn used(&self) -> u32 {
        self.used
    }

    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    fn insert_free(&mut self, base: u32, order: usize) {
        if let Some(bases) = self.free.get_mut(order) {
            bases.insert(base);
        }
    }
}

fn block_order(count: u32) -> Option<usize> {
    let order = count.max(1).checked_next_power_of_two()?.ilog2();
    usize::try_from(order).ok()
}

#[cfg(test)]
mod tests;
