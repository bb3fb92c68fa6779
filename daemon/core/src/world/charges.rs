//! Which ranges namespaces have, and how many slots that is.
//!
//! Invariant: a range counts in whole blocks, for the namespace that took it, from then until it is released, whatever
//! becomes of its service meanwhile.

use alloc::collections::BTreeMap;

use crate::keys::Family;
use crate::op::{Range, Share};

/// Ranges of one kind.
#[derive(Debug, Default)]
pub(super) struct Charges {
    all: BTreeMap<Family, u32>,
    shares: BTreeMap<(Share, Family), u32>,
    /// By family and first slot of each range, the number of its namespace, and how many slots the range takes.
    ranges: BTreeMap<(Family, u32), (Share, u32)>,
}

impl Charges {
    /// How many slots all ranges take.
    pub(super) fn used(&self, of: Family) -> u32 {
        self.all.get(&of).copied().unwrap_or_default()
    }

    /// How many slots the ranges of one namespace take.
    pub(super) fn used_by(&self, share: Share, of: Family) -> u32 {
        self.shares.get(&(share, of)).copied().unwrap_or_default()
    }

    /// The namespace that has the range, and how many slots the range takes. `None`: the range is not charged.
    pub(super) fn of(&self, range: Range) -> Option<(Share, u32)> {
        self.ranges.get(&(range.family, range.base)).copied()
    }

    pub(super) fn charge(&mut self, share: Share, range: Range) {
        let slots = range.count.next_power_of_two();
        self.ranges.insert((range.family, range.base), (share, slots));
        for count in self.counts(share, range.family) {
            *count = count.saturating_add(slots);
        }
    }

    /// Counts the range no more.
    pub(super) fn release(&mut self, range: Range) {
        let Some((share, slots)) = self.ranges.remove(&(range.family, range.base)) else { return };
        for count in self.counts(share, range.family) {
            *count = count.saturating_sub(slots);
        }
    }

    fn counts(&mut self, share: Share, of: Family) -> [&mut u32; 2] {
        [self.all.entry(of).or_default(), self.shares.entry((share, of)).or_default()]
    }
}
