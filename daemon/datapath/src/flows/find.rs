//! Finds the flows that an operator asks for.
//!
//! Invariant: it reads the table once and writes nothing; the caller bounds the number of matches.

use std::collections::BTreeMap;
use std::time::Instant;

use holdfast_status::datapath::{AddressFilter, Flow, FlowFilter, FlowReport};

use super::lifetime::{decode_stage, is_expired};
use super::tally::count_flow;
use super::{FlowMaps, FlowTable, decode_flow, decode_seen_flags, is_established};
use crate::abi::flow::{RawEndpoint, types};
use crate::abi::to_mapped;

/// Compares in the record's form, because most flows do not match and converting each would cost more.
fn matches_address(filter: AddressFilter, (address, port): RawEndpoint) -> bool {
    to_mapped(filter.address) == address && filter.port.is_none_or(|wanted| wanted.to_be() == port)
}

fn matches_filter(filter: &FlowFilter, it: &types::flow) -> bool {
    let is = |wanted: Option<AddressFilter>, end| wanted.is_none_or(|it| matches_address(it, end));
    is(filter.client, (it.client, it.client_port))
        && is(filter.frontend, (it.frontend, it.frontend_port))
        && is(filter.backend, (it.backend, it.backend_port))
        && filter.stage.is_none_or(|stage| decode_stage(it) == Some(stage))
        && (!filter.refused || decode_seen_flags(it.backend_flags, true).port_unreachable)
}

impl FlowTable {
    /// The live flows with a SNAT port.
    pub(crate) fn iter_snat_flows(&self) -> impl Iterator<Item = Flow> {
        let now = self.now();
        let records = &self.0.records;
        let live = records.iter_range(0, records.len()).filter(move |(_, it)| !is_expired(it, now, 0));
        live.filter(|(_, it)| it.nat_port != 0).filter_map(move |(_, it)| decode_flow(&it, now))
    }

    /// The live flows that both sides have opened, read until `until`.
    pub(crate) fn iter_established(&self, until: Instant) -> impl Iterator<Item = Flow> {
        let now = self.now();
        let records = &self.0.records;
        let in_time = records.iter_range(0, records.len()).take_while(move |_| Instant::now() < until);
        let live = in_time.filter(move |(_, it)| !is_expired(it, now, 0));
        live.filter_map(move |(_, it)| decode_flow(&it, now)).filter(is_established)
    }

    /// Counts all flows, and collects the newest matches, at most `limit`, the newest first.
    pub fn find_flows(&self, filter: &FlowFilter, limit: usize) -> FlowReport {
        self.find_flows_where(filter, limit, |_| true)
    }

    /// The same of those matches that `wanted` accepts. It is asked about each match.
    pub fn find_flows_where(
        &self,
        filter: &FlowFilter,
        limit: usize,
        mut wanted: impl FnMut(&Flow) -> bool,
    ) -> FlowReport {
        let mut report = FlowReport::default();
        let mut newest = BTreeMap::new();
        let now = self.now();
        let FlowMaps { records, .. } = &*self.0;
        for (number, record) in records.iter_range(0, records.len()) {
            count_flow(&mut report.tally, &record, now);
            if is_expired(&record, now, 0) || !matches_filter(filter, &record) {
                continue;
            }
            let Some(flow) = decode_flow(&record, now).filter(&mut wanted) else { continue };
            newest.insert((flow.age, number), flow);
            if newest.len() > limit {
                newest.pop_last();
                report.omitted += 1;
            }
        }
        report.matches = newest.into_values().collect();
        report
    }
}
