//! Counts flows, and reads the programs' counts of packets.
//!
//! Invariant: the sets of words are closed, and each word exists from the start.

use holdfast_core::keys::Family;
use holdfast_status::datapath::Tally;
use libbpf_rs::{MapCore, MapFlags};

use super::lifetime::{decode_stage, is_expired};
use super::{FlowMaps, FlowTable};
use crate::abi::flow::types::{self, packet_count};
use crate::abi::transport_from_number;
use crate::shape::family_index;

pub(super) fn count_flow(tally: &mut Tally, flow: &types::flow, now: u32) {
    if is_expired(flow, now, 0) {
        tally.expired += 1;
        return;
    }
    let (Some(transport), Some(stage)) = (transport_from_number(flow.transport), decode_stage(flow)) else {
        return;
    };
    let family = if flow.v4 != 0 { Family::V4 } else { Family::V6 };
    let [v4, v6] = &mut tally.families;
    *(if family_index(family) == 0 { v4 } else { v6 }) += 1;
    tally.nat += u64::from(flow.nat_port != 0);
    tally.record_flow(transport, stage);
}

const DROPS: [(&str, packet_count); 9] = [
    ("source", packet_count::COUNT_SOURCE),
    ("flows", packet_count::COUNT_FULL),
    ("ports", packet_count::COUNT_NO_PORT),
    ("write-failed", packet_count::COUNT_UNWRITABLE),
    ("not-listed", packet_count::COUNT_NOT_LISTED),
    ("not-local", packet_count::COUNT_NOT_LOCAL),
    ("decap-unknown", packet_count::COUNT_DECAP_UNKNOWN),
    ("no-route", packet_count::COUNT_NO_ROUTE),
    ("loop", packet_count::COUNT_LOOP),
];

const EVENTS: [(&str, packet_count); 14] = [
    ("new", packet_count::COUNT_FLOWS),
    ("mid-stream", packet_count::COUNT_MIDSTREAM),
    ("node-reply", packet_count::COUNT_NODE_REPLIES),
    ("unanswered", packet_count::COUNT_UNANSWERED),
    ("reclaimed", packet_count::COUNT_RECLAIMED),
    ("fragment", packet_count::COUNT_FRAGMENTS),
    ("reject", packet_count::COUNT_REJECTS),
    ("reject-failed", packet_count::COUNT_UNANSWERABLE),
    ("icmp-error", packet_count::COUNT_ERRORS),
    ("xdp-redirect", packet_count::COUNT_XDP_REDIRECTS),
    ("xdp-drop", packet_count::COUNT_XDP_DROPS),
    ("encap", packet_count::COUNT_ENCAP),
    ("decap", packet_count::COUNT_DECAP),
    ("adopted", packet_count::COUNT_ADOPTED),
];

const _: () =
    assert!(DROPS.len() + EVENTS.len() == packet_count::PACKET_COUNTS.0 as usize, "a count without a name");

/// The words for reasons of dropped packets.
pub const PACKET_DROPS: [&str; 9] = [
    DROPS[0].0, DROPS[1].0, DROPS[2].0, DROPS[3].0, DROPS[4].0, DROPS[5].0, DROPS[6].0, DROPS[7].0,
    DROPS[8].0,
];

/// The words for other events of packets.
pub const PACKET_EVENTS: [&str; 14] = [
    EVENTS[0].0,
    EVENTS[1].0,
    EVENTS[2].0,
    EVENTS[3].0,
    EVENTS[4].0,
    EVENTS[5].0,
    EVENTS[6].0,
    EVENTS[7].0,
    EVENTS[8].0,
    EVENTS[9].0,
    EVENTS[10].0,
    EVENTS[11].0,
    EVENTS[12].0,
    EVENTS[13].0,
];

/// The programs' counts of packets since the maps were created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketCounts {
    /// Dropped packets, by reason.
    pub dropped: [(&'static str, u64); DROPS.len()],
    /// Other events, by word.
    pub events: [(&'static str, u64); EVENTS.len()],
}

impl Default for PacketCounts {
    fn default() -> Self {
        Self { dropped: PACKET_DROPS.map(|word| (word, 0)), events: PACKET_EVENTS.map(|word| (word, 0)) }
    }
}

impl FlowTable {
    /// Counts all flows now.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        let now = self.now();
        let FlowMaps { records, .. } = &*self.0;
        records.iter_range(0, records.len()).for_each(|(_, flow)| count_flow(&mut tally, &flow, now));
        tally
    }

    /// Reads the counts of packets. An unreadable count is 0.
    pub fn packet_counts(&self) -> PacketCounts {
        let read = |(word, which): (&'static str, packet_count)| (word, self.packet_count(which));
        PacketCounts { dropped: DROPS.map(read), events: EVENTS.map(read) }
    }

    /// One count, summed over all processors.
    pub(super) fn packet_count(&self, which: packet_count) -> u64 {
        let found = self.0.counts.lookup_percpu(&which.0.to_ne_bytes(), MapFlags::ANY);
        let each = found.ok().flatten().unwrap_or_default();
        each.into_iter().filter_map(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))).sum()
    }
}
