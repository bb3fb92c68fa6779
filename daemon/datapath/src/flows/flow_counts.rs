//! The programs' counts of flows, in total and per quota, by which they divide the table.
//!
//! Invariant: ending a flow subtracts it from the counts. A killed process may leave a count too high; the next pass
//! lowers it to the flows found and those begun since.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::flow::types;
use crate::error::StartError;
use crate::generation::map_array;
use crate::map::{Map, MapHandles};
use crate::mapped_array::MappedArray;

const FIRST_QUOTA: u32 = types::flow_count::COUNT_OF_SHARES.0;

#[derive(Debug)]
pub(super) struct FlowCounts(MappedArray);

/// The index of a flow's quota count; `None`: the flow is not counted.
fn count_index(it: &types::flow) -> Option<usize> {
    let is_counted = u32::from(it.backend_flags) & types::flow_flag::FLOW_COUNTED.0 != 0;
    is_counted.then_some(quota_index(it))
}

fn quota_index(it: &types::flow) -> usize {
    (FIRST_QUOTA + (it.port_and_share >> types::flow_part::FLOW_SHARE_AT.0)) as usize
}

impl FlowCounts {
    pub(super) fn new(maps: &MapHandles) -> Result<Self, StartError> {
        map_array(maps, Map::FlowCounts).map(Self)
    }

    /// How many record numbers are released; 0: all of them, by a version that released them at once.
    pub(super) fn released_numbers(&self) -> Option<&AtomicU64> {
        self.0.get(types::flow_count::COUNT_OF_NUMBERS.0 as usize)
    }

    pub(super) fn subtract_flow(&self, ended: &types::flow) {
        let Some(index) = count_index(ended) else { return };
        for at in [types::flow_count::COUNT_OF_ALL.0 as usize, index] {
            if let Some(count) = self.0.get(at) {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// The counts that a pass has found so far, in the order of the map.
#[derive(Debug)]
pub(super) struct Recount(Vec<u64>);

impl Default for Recount {
    fn default() -> Self {
        Self(vec![0; types::flow_count::FLOW_COUNTS.0 as usize])
    }
}

impl Recount {
    pub(super) fn add_flow(&mut self, it: &types::flow) {
        let Some(index) = count_index(it) else { return };
        for at in [types::flow_count::COUNT_OF_ALL.0 as usize, index] {
            if let Some(found) = self.0.get_mut(at) {
                *found += 1;
            }
        }
    }

    /// Ends a pass during which `begun` flows began, and lowers counts above the maximum that they explain. The
    /// programs read counts as signed numbers.
    pub(super) fn correct_counts(&mut self, shares: &FlowCounts, begun: u64) {
        let counts_flows = |at: &usize| *at != types::flow_count::COUNT_OF_NUMBERS.0 as usize;
        let counts = shares.0.iter().zip(&mut self.0).enumerate();
        for (_, (count, found)) in counts.filter(|(at, _)| counts_flows(at)) {
            let most = std::mem::take(found).saturating_add(begun).cast_signed();
            let over = count.load(Ordering::Relaxed).cast_signed().saturating_sub(most);
            if over > 0 {
                count.fetch_sub(over.cast_unsigned(), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
impl FlowCounts {
    /// The total, and the count of that flow's quota.
    pub(super) fn read_counts(&self, it: &types::flow) -> [u64; 2] {
        let read = |at: usize| self.0.get(at).unwrap().load(Ordering::Relaxed);
        [read(0), read(quota_index(it))]
    }

    /// Counts a flow as a program does, or one killed before it could subtract the flow.
    pub(super) fn add_count(&self, it: &types::flow) {
        for at in [0, quota_index(it)] {
            self.0.get(at).unwrap().fetch_add(1, Ordering::Relaxed);
        }
    }
}
