//! How many flows there are, and what happened to packets.
//!
//! Invariant: the sets by which something is counted are closed, and each is there from the beginning.

use holdfast_core::keys::{Family, Transport};
use libbpf_rs::{MapCore, MapFlags};

use super::life::{Stage, is_expired};
use super::{FlowTable, Maps};
use crate::abi::flow::types::{self, packet_count};
use crate::abi::transport_of;
use crate::shape::index;

/// Flows, by what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    // How many flows there are by transport and stage, both in their order.
    stages: [[u64; Stage::ALL.len()]; Transport::ALL.len()],
    /// Flows of IPv4 and of IPv6.
    pub families: [u64; 2],
    /// Flows for which the backend sees a port of this node instead of the client's.
    pub nat: u64,
    /// Flows that have ended by their age, and are not taken away yet. They are in no other number.
    pub expired: u64,
}

impl Tally {
    /// Counts one more flow.
    pub(super) fn add(&mut self, flow: &types::flow, now: u32) {
        if is_expired(flow, now, 0) {
            self.expired += 1;
            return;
        }
        let (Some(transport), Some(stage)) = (transport_of(flow.transport), Stage::of(flow)) else { return };
        let family = if flow.v4 != 0 { Family::V4 } else { Family::V6 };
        let [v4, v6] = &mut self.families;
        *(if index(family) == 0 { v4 } else { v6 }) += 1;
        self.nat += u64::from(flow.nat_port != 0);
        self.note(transport, stage);
    }

    /// Counts one more flow of this transport and stage.
    pub fn note(&mut self, transport: Transport, stage: Stage) {
        let mut of = Transport::ALL.iter().zip(&mut self.stages);
        let Some((_, stages)) = of.find(|(it, _)| **it == transport) else { return };
        if let Some((_, count)) = Stage::ALL.iter().zip(stages).find(|(it, _)| **it == stage) {
            *count += 1;
        }
    }

    /// How many flows there are of each transport and stage.
    pub fn stages(&self) -> impl Iterator<Item = (Transport, Stage, u64)> {
        let of = |(transport, counts): (Transport, &[u64; Stage::ALL.len()])| {
            Stage::ALL.into_iter().zip(*counts).map(move |(stage, count)| (transport, stage, count))
        };
        Transport::ALL.into_iter().zip(&self.stages).flat_map(of)
    }

    /// How many flows there are in which client or backend may still send something of meaning.
    pub fn in_use(&self) -> u64 {
        let is_over = |stage| matches!(stage, Stage::Closed | Stage::Reset);
        self.stages().filter(|(_, stage, _)| !is_over(*stage)).map(|(_, _, count)| count).sum()
    }

    /// How many flows have not ended by their age.
    pub fn live(&self) -> u64 {
        self.stages.iter().flatten().sum()
    }
}

/// Why packets were dropped.
const DROPS: [(&str, packet_count); 9] = [
    ("source", packet_count::COUNT_SOURCE),
    ("flows", packet_count::COUNT_FULL),
    ("ports", packet_count::COUNT_NO_PORT),
    ("unwritable", packet_count::COUNT_UNWRITABLE),
    ("not-listed", packet_count::COUNT_NOT_LISTED),
    ("not-here", packet_count::COUNT_NOT_HERE),
    ("astray", packet_count::COUNT_ASTRAY),
    ("no-way", packet_count::COUNT_NO_WAY),
    ("loop", packet_count::COUNT_LOOP),
];

/// What else happened to packets.
const EVENTS: [(&str, packet_count); 14] = [
    ("begun", packet_count::COUNT_FLOWS),
    ("midway", packet_count::COUNT_MIDWAY),
    ("own-socket", packet_count::COUNT_OWN_SOCKET),
    ("unanswered", packet_count::COUNT_UNANSWERED),
    ("reclaimed", packet_count::COUNT_RECLAIMED),
    ("fragment", packet_count::COUNT_FRAGMENTS),
    ("answer", packet_count::COUNT_ANSWERS),
    ("unanswerable", packet_count::COUNT_UNANSWERABLE),
    ("icmp-error", packet_count::COUNT_ERRORS),
    ("xdp", packet_count::COUNT_BY_XDP),
    ("xdp-dropped", packet_count::COUNT_TURNED_AWAY_BY_XDP),
    ("wrapped", packet_count::COUNT_WRAPPED),
    ("unwrapped", packet_count::COUNT_UNWRAPPED),
    ("joined", packet_count::COUNT_JOINED),
];

const _: () =
    assert!(DROPS.len() + EVENTS.len() == packet_count::PACKET_COUNTS.0 as usize, "a count without a name");

/// The words for why packets are dropped.
pub const PACKET_DROPS: [&str; 9] = [
    DROPS[0].0, DROPS[1].0, DROPS[2].0, DROPS[3].0, DROPS[4].0, DROPS[5].0, DROPS[6].0, DROPS[7].0,
    DROPS[8].0,
];

/// The words for what else happens to packets.
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

/// What happened to packets, counted by the programs since the maps were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketCounts {
    /// Dropped, by reason.
    pub dropped: [(&'static str, u64); DROPS.len()],
    /// The rest, by what it was.
    pub events: [(&'static str, u64); EVENTS.len()],
}

impl Default for PacketCounts {
    fn default() -> Self {
        Self { dropped: PACKET_DROPS.map(|word| (word, 0)), events: PACKET_EVENTS.map(|word| (word, 0)) }
    }
}

impl FlowTable {
    /// All flows, counted now.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        let now = self.now();
        let Maps { records, .. } = &*self.0;
        records.some(0, records.len()).for_each(|(_, flow)| tally.add(&flow, now));
        tally
    }

    /// What happened to packets. A count that cannot be read is 0.
    pub fn packet_counts(&self) -> PacketCounts {
        let read = |(word, which): (&'static str, packet_count)| (word, self.packet_count(which));
        PacketCounts { dropped: DROPS.map(read), events: EVENTS.map(read) }
    }

    /// One count, of all processors together.
    pub(super) fn packet_count(&self, which: packet_count) -> u64 {
        let found = self.0.counts.lookup_percpu(&which.0.to_ne_bytes(), MapFlags::ANY);
        let each = found.ok().flatten().unwrap_or_default();
        each.into_iter().filter_map(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))).sum()
    }
}
