//! Checks that entries lead to their flows, a few flows at a time.
//!
//! Invariant: it writes nothing. A flow that ends during the check does not count as wrong.

use std::net::SocketAddr;

use holdfast_core::keys::Transport;
use holdfast_core::op::PortIndex;
use holdfast_status::datapath::FlowSample;

use super::lifetime::is_expired;
use super::{FlowMaps, FlowTable, decode_flow};
use crate::abi::flow::{client_entry, is_decapsulated, nat_entry, translated_entry, types};

/// How many records one sample reads: a millisecond's work if all are free.
const RECORDS_MAX: u32 = 1 << 16;

/// Seconds after which no program is still writing or deleting a flow's entries.
const SETTLE_SECONDS: u32 = 2;

impl FlowTable {
    /// Samples up to `most` live flows from record `from` on. `serves`: whether a backend serves a port.
    pub(crate) fn sample_flows(
        &self,
        from: u32,
        most: u32,
        serves: impl Fn(PortIndex, SocketAddr) -> bool,
    ) -> FlowSample {
        if self.is_idle() {
            return FlowSample::default();
        }
        let now = self.now();
        let from = if from < self.capacity() { from } else { 0 };
        let mut sampled = FlowSample { next: from.saturating_add(RECORDS_MAX), ..FlowSample::default() };
        let mut suspects = Vec::new();
        for (number, record) in self.0.records.iter_range(from, RECORDS_MAX) {
            if is_expired(&record, now, 0) || now.saturating_sub(record.began) < SETTLE_SECONDS {
                continue;
            }
            let Some(flow) = decode_flow(&record, now) else { continue };
            sampled.checked += 1;
            if self.has_wrong_entry(number, &record) {
                suspects.push((number, record, flow));
            } else if flow.transport == Transport::Udp && !serves(flow.port, flow.backend) {
                sampled.without_backend += 1;
            }
            if sampled.checked >= most {
                sampled.next = number.saturating_add(1);
                break;
            }
        }
        // A program may have been writing or deleting entries, so only a flow that is still wrong counts.
        let wrong = suspects.into_iter().filter(|(number, record, _)| self.has_wrong_entry(*number, record));
        sampled.wrong.extend(wrong.map(|(.., flow)| flow));
        sampled
    }

    /// Whether an entry leads elsewhere although the flow still exists. An unreadable entry does not count, nor does
    /// one that the flow does not need.
    fn has_wrong_entry(&self, number: u32, flow: &types::flow) -> bool {
        let FlowMaps { records, entries, .. } = &*self.0;
        let client_key = Some(client_entry(flow)).filter(|_| !is_decapsulated(flow));
        let keys = nat_entry(flow).into_iter().chain(client_key).chain([translated_entry(flow)]);
        let is_elsewhere = |key| entries.get(&key).is_ok_and(|found| found != Some(number));
        keys.into_iter().any(is_elsewhere) && records.holds_flow(number, flow)
    }
}
