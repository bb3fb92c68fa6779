//! The room that tables may take in the maps.
//!
//! Invariant: a table counts from when it takes its range until that range is free again, whatever its service asks for
//! meanwhile; and tables leave room for plain lists and for the tables of other namespaces. Only a table that takes the
//! place of another one goes beyond that, until readers have left the former: one at a time.

use super::charges::Charges;
use super::family_pair::{by_family, by_family_mut};
use crate::index::Seed;
use crate::keys::Family;
use crate::limits;
use crate::op::{QuotaId, SlotRange};

/// What all tables take.
#[derive(Debug)]
pub(super) struct TableBudget {
    /// The slots of one family.
    slots: u32,
    charges: [Charges; 2],
}

impl TableBudget {
    /// The budget of maps with so many slots of each family.
    pub(super) fn new(seed: Seed, slots: u32) -> Self {
        Self { slots, charges: [Charges::new(seed), Charges::new(seed)] }
    }

    /// Whether there may be a table of so many places beside all others. What the range that it replaces takes, if that
    /// is a table's, is free soon.
    pub(super) fn allows_table(
        &self,
        share: QuotaId,
        of: Family,
        places: u32,
        replaced: Option<SlotRange>,
    ) -> bool {
        let own = replaced.and_then(|range| by_family(&self.charges, range.family).find_charge(range.base));
        let soon = own.filter(|(owner, _)| *owner == share).map_or(0, |(_, slots)| slots);
        let more = places.next_power_of_two().saturating_sub(soon);
        let charges = by_family(&self.charges, of);
        let used = charges.used_by(share);
        more <= self.headroom(of)
            && charges.used() <= limits::table_slots_max(self.slots)
            && used.saturating_add(more) <= limits::table_slots_of_namespace_max(self.slots)
    }

    /// The tables of one family.
    pub(super) fn charges(&mut self, of: Family) -> &mut Charges {
        by_family_mut(&mut self.charges, of)
    }

    /// How many slots tables may still take.
    pub(super) fn headroom(&self, of: Family) -> u32 {
        limits::table_slots_max(self.slots).saturating_sub(by_family(&self.charges, of).used())
    }
}
