//! The slots that Maglev tables may take in the maps.
//!
//! Invariant: a table is charged until its range is free again, whatever its service asks for meanwhile. Tables leave
//! headroom to plain lists and to tables of other namespaces. Only a replacement of a table may exceed that until the
//! old range is free, one at a time.

use super::charges::Charges;
use super::family_pair::{by_family, by_family_mut};
use crate::index::Seed;
use crate::keys::Family;
use crate::limits;
use crate::op::{QuotaId, SlotRange};

/// The slots that all tables take.
#[derive(Debug)]
pub(super) struct TableBudget {
    /// The slots of one family.
    slots: u32,
    charges: [Charges; 2],
}

impl TableBudget {
    pub(super) fn new(seed: Seed, slots: u32) -> Self {
        Self { slots, charges: [Charges::new(seed), Charges::new(seed)] }
    }

    /// Whether another table of this size fits. If the replaced range is a table's, its slots come free soon.
    pub(super) fn allows_table(
        &self,
        quota: QuotaId,
        of: Family,
        places: u32,
        replaced: Option<SlotRange>,
    ) -> bool {
        let own = replaced.and_then(|range| by_family(&self.charges, range.family).find_charge(range.base));
        let soon = own.filter(|(owner, _)| *owner == quota).map_or(0, |(_, slots)| slots);
        let more = places.next_power_of_two().saturating_sub(soon);
        let charges = by_family(&self.charges, of);
        let used = charges.used_by(quota);
        more <= self.headroom(of)
            && charges.used() <= limits::table_slots_max(self.slots)
            && used.saturating_add(more) <= limits::table_slots_of_namespace_max(self.slots)
    }

    pub(super) fn charges(&mut self, of: Family) -> &mut Charges {
        by_family_mut(&mut self.charges, of)
    }

    /// How many slots tables may still take.
    pub(super) fn headroom(&self, of: Family) -> u32 {
        limits::table_slots_max(self.slots).saturating_sub(by_family(&self.charges, of).used())
    }
}
