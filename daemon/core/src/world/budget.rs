//! The room that Maglev's tables may take in the maps.
//!
//! Invariant: a table that has no claim is not made, a claim goes with its port, and tables leave room for plain lists
//! and for those of other namespaces. A list without a table is served as it stands.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::keys::Family;
use crate::limits;
use crate::op::Share;

/// What all claims come to.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The slots of one family.
    slots: u32,
    all: [Arc<AtomicU32>; 2],
    shares: BTreeMap<(Share, Family), Arc<AtomicU32>>,
}

impl Budget {
    /// The budget of maps with so many slots of each family.
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots, all: [Arc::default(), Arc::default()], shares: BTreeMap::new() }
    }

    /// Claims the room of a table, unless all tables, or those of its namespace, would have too much then.
    pub(crate) fn claim(&mut self, share: Share, family: Family, places: u32) -> Option<Claim> {
        let slots = places.next_power_of_two();
        let [v4, v6] = &self.all;
        let all = if family == Family::V4 { v4 } else { v6 };
        let of_share = self.shares.entry((share, family)).or_default();
        let fits = |count: &AtomicU32, most: u32| count.load(Ordering::Relaxed).saturating_add(slots) <= most;
        if !fits(all, limits::table_slots_max(self.slots))
            || !fits(of_share, limits::table_slots_of_namespace_max(self.slots))
        {
            return None;
        }
        let counts = [Arc::clone(all), Arc::clone(of_share)];
        for count in &counts {
            count.fetch_add(slots, Ordering::Relaxed);
        }
        Some(Claim { counts, share, places, slots })
    }
}

/// The room of one table, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    counts: [Arc<AtomicU32>; 2],
    share: Share,
    places: u32,
    slots: u32,
}

impl Claim {
    /// Whether it is for a table of so many places, of that namespace.
    pub(crate) fn is_for(&self, share: Share, places: u32) -> bool {
        (self.share, self.places) == (share, places)
    }

    pub(crate) const fn places(&self) -> u32 {
        self.places
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(self.slots, Ordering::Relaxed);
        }
    }
}
