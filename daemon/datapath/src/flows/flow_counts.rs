//! How many flows there are, in all and of each namespace, as the programs count them to divide the table.
//!
//! Invariant: ending a flow takes it out of the counts. What a process that was killed meanwhile leaves there is taken
//! back by the next pass: a count is never left higher than what was found and what has begun since.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::flow::types;
use crate::error::StartError;
use crate::generation::map_array;
use crate::map::{Map, MapHandles};
use crate::mapped_array::MappedArray;

/// Where counts of namespaces begin.
const FIRST_QUOTA: u32 = types::flow_count::COUNT_OF_SHARES.0;

/// The counts, mapped.
#[derive(Debug)]
pub(super) struct FlowCounts(MappedArray);

/// The place of the count, beside that of all flows, in which that flow is; `None`: it is not counted.
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

    /// How many numbers of records were handed out; 0: all of them, by a version that did so at once.
    pub(super) fn released_numbers(&self) -> Option<&AtomicU64> {
        self.0.get(types::flow_count::COUNT_OF_NUMBERS.0 as usize)
    }

    /// Takes a flow that has ended out of the counts.
    pub(super) fn subtract_flow(&self, ended: &types::flow) {
        let Some(place) = count_index(ended) else { return };
        for at in [types::flow_count::COUNT_OF_ALL.0 as usize, place] {
            if let Some(count) = self.0.get(at) {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// What a pass over the table has found so far, in the order of the counts.
#[derive(Debug)]
pub(super) struct Recount(Vec<u64>);

impl Default for Recount {
    fn default() -> Self {
        Self(vec![0; types::flow_count::FLOW_COUNTS.0 as usize])
    }
}

impl Recount {
    pub(super) fn add_flow(&mut self, it: &types::flow) {
        let Some(place) = count_index(it) else { return };
        for at in [types::flow_count::COUNT_OF_ALL.0 as usize, place] {
            if let Some(found) = self.0.get_mut(at) {
                *found += 1;
            }
        }
    }

    /// Ends a pass during which so many flows began, and lowers the counts that are higher than that explains. The
    /// programs take counts for numbers with a sign.
    pub(super) fn correct_counts(&mut self, shares: &FlowCounts, begun: u64) {
        let are_flows = |at: &usize| *at != types::flow_count::COUNT_OF_NUMBERS.0 as usize;
        let counts = shares.0.iter().zip(&mut self.0).enumerate();
        for (_, (count, found)) in counts.filter(|(at, _)| are_flows(at)) {
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
    /// Of all, and of that flow's namespace.
    pub(super) fn read_counts(&self, it: &types::flow) -> [u64; 2] {
        let read = |at: usize| self.0.get(at).unwrap().load(Ordering::Relaxed);
        [read(0), read(quota_index(it))]
    }

    /// As a program counts, or one that was killed before it could take that back.
    pub(super) fn add_count(&self, it: &types::flow) {
        for at in [0, quota_index(it)] {
            self.0.get(at).unwrap().fetch_add(1, Ordering::Relaxed);
        }
    }
}
