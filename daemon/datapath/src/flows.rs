//! The flow table as the daemon sees it: the backend of each client, recorded by the packet programs.
//!
//! Invariant: the daemon removes no live flow, unless a smaller table has no space for it (`migration`). Programs open
//! and change flows; the daemon reads and counts them, and ends flows that have expired (`sweep`). Ending a flow begins
//! with deleting its translated entry: the side that succeeds owns the record.

mod entries;
pub(crate) mod eviction_rank;
mod find;
mod flow_counts;
mod lifetime;
mod migration;
mod port_usage;
mod records;
mod refusals;
mod reserved_ports;
mod sample;
mod silences;
mod sweep;
mod tally;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_core::op::PortIndex;
use holdfast_status::datapath::{BackendEndpoint, EncapDirection, Flow, FlowSweepProgress, SeenFlags, Stage};
use holdfast_status::rfc3339::Millis;
use libbpf_rs::{MapCore, MapHandle};
use nix::time::{ClockId, clock_gettime};

use crate::abi::flow::{self, types};
use crate::abi::packets::types::packet_count;
use crate::abi::transport_from_number;
use crate::error::StartError;
use crate::map::{Map, MapHandles, find_handle};

use entries::FlowEntries;
use flow_counts::FlowCounts;
use lifetime::has_flag;
#[cfg(test)]
pub(crate) use lifetime::tests::LIFETIMES;
pub(crate) use migration::FlowMigration;
use records::FlowRecords;
pub(crate) use refusals::expire_refusals;
pub use refusals::keep_refusal;
pub(crate) use reserved_ports::ReservedPorts;
pub(crate) use sweep::SweepThread;
pub use tally::{PACKET_DROPS, PACKET_EVENTS, PacketCounts};

/// Decodes the flags of one side. Some bits mean something else on the other side.
fn decode_seen_flags(bits: u8, is_backend: bool) -> SeenFlags {
    let has = |bit| has_flag(bits, bit);
    SeenFlags {
        syn: has(types::flow_flag::FLOW_SYN_SEEN),
        fin: has(types::flow_flag::FLOW_FIN_SEEN),
        rst: has(types::flow_flag::FLOW_RST_SEEN),
        port_unreachable: is_backend && has(types::flow_flag::FLOW_UNREACHABLE_SEEN),
    }
}

fn decode_encap(it: &types::flow) -> Option<EncapDirection> {
    if has_flag(it.client_flags, types::flow_flag::FLOW_ENCAP) {
        return Some(EncapDirection::ToNode);
    }
    has_flag(it.backend_flags, types::flow_flag::FLOW_DECAP).then_some(EncapDirection::FromNode)
}

/// Whether both sides are open and their packets reach the stack here. Encapsulated packets have another header.
fn is_established(flow: &Flow) -> bool {
    matches!(flow.stage, Stage::Open | Stage::HalfClosed) && flow.encap != Some(EncapDirection::ToNode)
}

/// Decodes the flow of a record. `None`: no program of this version wrote this record.
fn decode_flow(it: &types::flow, now: u32) -> Option<Flow> {
    let transport = transport_from_number(it.transport)?;
    let stage = lifetime::decode_stage(it)?;
    let ago = |then: u32| Duration::from_secs(now.saturating_sub(then).into());
    Some(Flow {
        client: flow::decode_endpoint((it.client, it.client_port)),
        frontend: flow::decode_endpoint((it.frontend, it.frontend_port)),
        backend: flow::decode_endpoint((it.backend, it.backend_port)),
        nat: (it.nat_port != 0).then(|| flow::decode_endpoint((it.nat, it.nat_port))),
        through_port: u16::from_be(it.translated_port),
        fast_path: flow::uses_fast_path(it),
        encap: decode_encap(it),
        transport,
        stage,
        client_seen: decode_seen_flags(it.client_flags, false),
        backend_seen: decode_seen_flags(it.backend_flags, true),
        port: PortIndex(it.port_and_share & ((1 << types::flow_part::FLOW_SHARE_AT.0) - 1)),
        idle: ago(it.seen),
        age: ago(it.began),
        lifetime: Duration::from_secs(lifetime::lifetime_seconds(it)?.into()),
    })
}

/// The open flow table. Clones share it.
#[derive(Clone, Debug)]
pub struct FlowTable(Arc<FlowMaps>);

#[derive(Debug)]
struct FlowMaps {
    records: FlowRecords,
    entries: FlowEntries,
    free: MapHandle,
    ports: MapHandle,
    counts: MapHandle,
    shares: FlowCounts,
    // The count of begun flows before the last pass, if that pass found no flow.
    idle_since: AtomicU64,
    // The sweep looks for answers of these backends too, not only of those that it finds failing.
    watched: Mutex<BTreeSet<BackendEndpoint>>,
    clock: fn() -> u32,
}

/// The value of `idle_since` until a pass finds the table empty.
const NOT_IDLE: u64 = u64::MAX;

impl FlowTable {
    pub(crate) fn new(maps: &MapHandles) -> Result<Self, StartError> {
        Self::with_clock(maps, monotonic_seconds)
    }

    fn with_clock(maps: &MapHandles, clock: fn() -> u32) -> Result<Self, StartError> {
        let copy = |map| MapHandle::try_from(find_handle(maps, map)?).map_err(StartError::from_load);
        Ok(Self(Arc::new(FlowMaps {
            records: FlowRecords::new(maps)?,
            entries: FlowEntries::new([copy(Map::Entries4)?, copy(Map::Entries6)?]),
            free: copy(Map::FreeFlows)?,
            ports: copy(Map::BackendPorts)?,
            counts: copy(Map::PacketCounts)?,
            shares: FlowCounts::new(maps)?,
            idle_since: AtomicU64::new(NOT_IDLE),
            watched: Mutex::default(),
            clock,
        })))
    }

    fn now(&self) -> u32 {
        (self.0.clock)()
    }

    /// Whether there is nothing to sweep: a pass found no flow, and none has begun since. So a node without outside
    /// clients has no work with flows.
    fn is_idle(&self) -> bool {
        let since = self.0.idle_since.load(Ordering::Relaxed);
        since != NOT_IDLE && since == self.begun_count()
    }

    /// The next passes look for answers of these backends too. They failed clients of this node, or clients outside so
    /// long ago that the sweep has forgotten it. The caller bounds their number.
    pub fn watch_answers(&self, backends: BTreeSet<BackendEndpoint>) {
        *self.lock_watched() = backends;
    }

    fn lock_watched(&self) -> MutexGuard<'_, BTreeSet<BackendEndpoint>> {
        // No update can panic half-way, so the set is whole.
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many flows have begun, by the programs' count.
    fn begun_count(&self) -> u64 {
        self.packet_count(packet_count::COUNT_FLOWS)
    }

    /// How many flows the table holds at most.
    pub fn capacity(&self) -> u32 {
        self.0.records.len()
    }

    /// Finishes a flow after its translated entry is deleted: removes the other entries, frees the record, then its
    /// number. If the process is killed meanwhile, the next pass finds the record; just before the last step, only the
    /// number is lost, which blocks no flow.
    fn finish_flow(&self, number: u32, ended: &types::flow) -> Result<(), libbpf_rs::Error> {
        let FlowMaps { records, entries, .. } = &*self.0;
        entries.remove(&flow::client_entry(ended), number)?;
        if let Some(key) = flow::nat_entry(ended) {
            entries.remove(&key, number)?;
        }
        records.free(number);
        self.0.shares.subtract_flow(ended);
        self.free_number(number)
    }

    /// Releases `count` more record numbers, if any are left. `true`: all are released. It stores the count first: a
    /// killed process loses a few numbers, but no two flows get the same one.
    fn release_numbers(&self, count: u32) -> Result<bool, libbpf_rs::Error> {
        let Some(released) = self.0.shares.released_numbers() else { return Ok(true) };
        let so_far = released.load(Ordering::Acquire);
        let max = u64::from(self.capacity());
        if so_far == 0 || so_far >= max {
            return Ok(true);
        }
        let next = so_far.saturating_add(count.into()).min(max);
        released.store(next, Ordering::Release);
        for number in so_far..next {
            self.free_number(u32::try_from(number).unwrap_or(u32::MAX))?;
        }
        Ok(next == max)
    }

    pub(crate) fn are_numbers_released(&self) -> bool {
        let released = self.0.shares.released_numbers().map_or(0, |it| it.load(Ordering::Acquire));
        released == 0 || released >= u64::from(self.capacity())
    }

    /// Seconds on the packet programs' clock.
    pub(crate) fn monotonic_seconds() -> u32 {
        monotonic_seconds()
    }

    /// The node's time, and the one when the packet programs' clock was at 0.
    pub(crate) fn read_clocks() -> (Millis, Millis) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = |it: Duration| Millis(i64::try_from(it.as_millis()).unwrap_or(i64::MAX));
        (millis(now), millis(now.saturating_sub(since_boot())))
    }

    /// Makes a free record's number available again.
    fn free_number(&self, number: u32) -> Result<(), libbpf_rs::Error> {
        self.0.free.update(&[], &number.to_ne_bytes(), libbpf_rs::MapFlags::ANY)
    }
}

#[cfg(test)]
impl FlowTable {
    /// Writes an open connection as programs would.
    pub(crate) fn begin_for_tests(&self, client: u16) {
        let at = |it: &str| flow::encode_endpoint(it.parse().unwrap());
        let ((client_address, _), (frontend, frontend_port)) = (at("203.0.113.9:1"), at("192.0.2.10:443"));
        let (backend, backend_port) = at("10.1.0.7:8443");
        let (seen, client_port) = (self.now(), client.to_be());
        let it = types::flow {
            client: client_address,
            frontend,
            backend,
            client_port,
            frontend_port,
            backend_port,
            translated_port: client_port,
            transport: holdfast_core::keys::Transport::Tcp.protocol_number(),
            state: u8::try_from(types::flow_state::FLOW_OPEN.0).unwrap(),
            v4: 1,
            serial: u32::from(client),
            seen,
            began: seen,
            ..types::flow::default()
        };
        let number = self.0.free.lookup_and_delete(&[]).unwrap().unwrap();
        let number = u32::from_ne_bytes(number.try_into().unwrap());
        self.0.records.write(number, &it);
        for key in [flow::translated_entry(&it), flow::client_entry(&it)] {
            assert!(self.0.entries.insert(&key, number).unwrap());
        }
    }
}

/// Tables over the same maps are equal.
impl PartialEq for FlowTable {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for FlowTable {}

/// The programs' clock, in seconds.
fn monotonic_seconds() -> u32 {
    u32::try_from(since_boot().as_secs()).unwrap_or(u32::MAX)
}

fn since_boot() -> Duration {
    // The kernel always has this clock; at 0 no flow has expired.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}
