//! The room that tables may take in the maps.
//!
//! Invariant: a table counts from when it takes its range until that range is free again, whatever its service asks for
//! meanwhile; and tables leave room for plain lists and for the tables of other namespaces. Only a table that takes the
//! place of another one goes beyond that, until readers have left the former: one at a time.

use alloc::collections::BTreeMap;

use crate::keys::Family;
use crate::limits;
use crate::op::{Range, Share};

/// What all tables take.
#[derive(Debug)]
pub(super) struct Budget {
    /// The slots of one family.
    slots: u32,
    all: BTreeMap<Family, u32>,
    shares: BTreeMap<(Share, Family), u32>,
    /// By family and first slot of each table, the number of its namespace, and how many slots the table takes.
    tables: BTreeMap<(Family, u32), (Share, u32)>,
}

impl Budget {
    /// The budget of maps with so many slots of each family.
    pub(super) const fn new(slots: u32) -> Self {
        Self { slots, all: BTreeMap::new(), shares: BTreeMap::new(), tables: BTreeMap::new() }
    }

    /// Whether there may be a table of so many places beside all others. What the range that it replaces takes, if that
    /// is a table's, is free soon.
    pub(super) fn allows(&self, share: Share, of: Family, places: u32, replaced: Option<Range>) -> bool {
        let own = replaced.and_then(|range| self.tables.get(&(range.family, range.base)));
        let soon = own.filter(|(owner, _)| *owner == share).map_or(0, |(_, slots)| *slots);
        let more = places.next_power_of_two().saturating_sub(soon);
        let used = self.shares.get(&(share, of)).copied().unwrap_or_default();
        more <= self.left(of)
            && self.used(of) <= limits::table_slots_max(self.slots)
            && used.saturating_add(more) <= limits::table_slots_of_namespace_max(self.slots)
    }

    /// How many slots tables may still take.
    pub(super) fn left(&self, of: Family) -> u32 {
        limits::table_slots_max(self.slots).saturating_sub(self.used(of))
    }

    fn used(&self, of: Family) -> u32 {
        self.all.get(&of).copied().unwrap_or_default()
    }

    /// Counts a table.
    pub(super) fn charge(&mut self, share: Share, range: Range) {
        let slots = range.count.next_power_of_two();
        self.tables.insert((range.family, range.base), (share, slots));
        for count in self.counts(share, range.family) {
            *count = count.saturating_add(slots);
        }
    }

    /// Counts a range no more, if it is that of a table.
    pub(super) fn release(&mut self, range: Range) {
        let Some((share, slots)) = self.tables.remove(&(range.family, range.base)) else { return };
        for count in self.counts(share, range.family) {
            *count = count.saturating_sub(slots);
        }
    }

    fn counts(&mut self, share: Share, of: Family) -> [&mut u32; 2] {
        [self.all.entry(of).or_default(), self.shares.entry((share, of)).or_default()]
    }
}
