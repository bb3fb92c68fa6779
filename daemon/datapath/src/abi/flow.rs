//! Flows and the entries that lead to them, in the layout of the packet programs.
//!
//! Invariant: as for [`super`]. In addition, a record is read whole or not at all.

use std::array;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use holdfast_core::keys::Family;

pub(crate) use super::packets::types;
use super::{Abi, as_bytes, from_bytes, from_mapped};

abi!(entry4_key {
    source: u32,
    destination: u32,
    source_port: u16,
    destination_port: u16,
    transport: u8,
    kind: u8,
    pad: u16,
});
abi!(entry6_key {
    source: [u32; 4],
    destination: [u32; 4],
    source_port: u16,
    destination_port: u16,
    transport: u8,
    kind: u8,
    pad: u16,
});

pub(crate) const RECORD_WORDS: usize = size_of::<types::flow>() / 8;
/// The word with the serial as its second half.
pub(crate) const SERIAL_WORD: usize = std::mem::offset_of!(types::flow, serial) / 8;
/// The word with all that changes in a flow, except `seen`: its state, and the segments seen.
pub(crate) const STATE_WORD: usize = std::mem::offset_of!(types::flow, state) / 8;
pub(crate) const SEEN_WORD: usize = std::mem::offset_of!(types::flow, seen) / 8;

const _: () = assert!(std::mem::offset_of!(types::flow, serial) == SERIAL_WORD * 8 + 4);
const _: () = assert!(std::mem::offset_of!(types::flow, seen) == SEEN_WORD * 8);

/// One record, in the memory that programs read and write.
pub(crate) type RecordCells = [AtomicU64; RECORD_WORDS];

pub(crate) fn flow_from_words(words: [u64; RECORD_WORDS]) -> types::flow {
    // A flow has exactly `RECORD_WORDS` words, so there is always a value.
    from_bytes(words.map(u64::to_ne_bytes).as_flattened()).unwrap_or_default()
}

/// Reads the serial from its word. The struct gives its position, so this assumes no byte order.
fn decode_serial(word: u64) -> u32 {
    let mut words = [0; RECORD_WORDS];
    words[SERIAL_WORD] = word;
    flow_from_words(words).serial
}

/// The serial of the flow in this record; 0: the record is free, or a program is writing it.
pub(crate) fn load_serial(cells: &RecordCells) -> u32 {
    decode_serial(cells[SERIAL_WORD].load(Ordering::Acquire))
}

/// Copies a record. `None`: the record is free, or a program wrote it meanwhile.
pub(crate) fn read_record(cells: &RecordCells) -> Option<types::flow> {
    let before = load_serial(cells);
    if before == 0 {
        return None;
    }
    let words = array::from_fn(|at| cells.get(at).map_or(0, |cell| cell.load(Ordering::Relaxed)));
    fence(Ordering::Acquire);
    let flow = flow_from_words(words);
    let is_whole =
        decode_serial(cells[SERIAL_WORD].load(Ordering::Relaxed)) == before && flow.serial == before;
    (is_whole && u32::from(flow.state) != types::flow_state::FLOW_FREE.0).then_some(flow)
}

/// Writes a record that no entry leads to yet.
pub(crate) fn write_record(cells: &RecordCells, flow: &types::flow) {
    for (cell, word) in cells.iter().zip(super::to_words(flow)) {
        cell.store(word, Ordering::Relaxed);
    }
    fence(Ordering::Release);
}

/// Frees a record. It clears the serial first.
pub(crate) fn free_record(cells: &RecordCells) {
    cells[SERIAL_WORD].store(0, Ordering::Release);
    fence(Ordering::Release);
    cells[STATE_WORD].store(0, Ordering::Relaxed);
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryKey {
    V4(types::entry4_key),
    V6(types::entry6_key),
}

impl EntryKey {
    fn new(
        flow: &types::flow,
        source: RawEndpoint,
        destination: RawEndpoint,
        kind: types::entry_kind,
    ) -> Self {
        let kind = u8::try_from(kind.0).unwrap_or_default();
        let (source, source_port) = source;
        let (destination, destination_port) = destination;
        let (transport, pad) = (flow.transport, 0);
        if flow.v4 == 0 {
            let key = types::entry6_key {
                source,
                destination,
                source_port,
                destination_port,
                transport,
                kind,
                pad,
            };
            return Self::V6(key);
        }
        let ([.., source], [.., destination]) = (source, destination);
        let key =
            types::entry4_key { source, destination, source_port, destination_port, transport, kind, pad };
        Self::V4(key)
    }

    /// The inverse of [`Self::bytes`].
    pub(crate) fn from_bytes(family: Family, bytes: &[u8]) -> Option<Self> {
        match family {
            Family::V4 => super::from_bytes(bytes).map(Self::V4),
            Family::V6 => super::from_bytes(bytes).map(Self::V6),
        }
    }

    pub(crate) fn family(&self) -> Family {
        match self {
            Self::V4(_) => Family::V4,
            Self::V6(_) => Family::V6,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::V4(key) => as_bytes(key),
            Self::V6(key) => as_bytes(key),
        }
    }
}

pub(crate) type RawEndpoint = ([u32; 4], u16);

/// The entry for the client's packets to the frontend.
pub(crate) fn client_entry(flow: &types::flow) -> EntryKey {
    let client = (flow.client, flow.client_port);
    let frontend = (flow.frontend, flow.frontend_port);
    EntryKey::new(flow, client, frontend, types::entry_kind::ENTRY_WIRE)
}

/// Whether the client's packets arrive encapsulated from another node. Another flow may then own the client's entry.
pub(crate) fn is_decapsulated(flow: &types::flow) -> bool {
    u32::from(flow.backend_flags) & types::flow_flag::FLOW_DECAP.0 != 0
}

/// Whether packets of the flow bypass the stack: to another node, or to a pod of this one.
pub(crate) fn uses_fast_path(flow: &types::flow) -> bool {
    let to_pod = flow.nat_port == 0 && flow.nat.first().is_some_and(|device| *device != 0);
    to_pod || u32::from(flow.client_flags) & types::flow_flag::FLOW_FAST_PATH.0 != 0
}

/// The entry for the backend's replies to the SNAT address. `None`: the flow has no SNAT port.
pub(crate) fn nat_entry(flow: &types::flow) -> Option<EntryKey> {
    let backend = (flow.backend, flow.backend_port);
    let nat = (flow.nat, flow.nat_port);
    (flow.nat_port != 0).then(|| EntryKey::new(flow, backend, nat, types::entry_kind::ENTRY_WIRE))
}

/// The entry for packets between backend and client in both directions: the lesser endpoint comes first, compared as
/// the record stores it. Deleting this entry ends the flow.
pub(crate) fn translated_entry(flow: &types::flow) -> EntryKey {
    let backend = (flow.backend, flow.backend_port);
    let client = (flow.client, flow.translated_port);
    EntryKey::new(flow, backend.min(client), backend.max(client), types::entry_kind::ENTRY_TRANSLATED)
}

pub(crate) fn decode_endpoint((address, port): RawEndpoint) -> SocketAddr {
    SocketAddr::new(from_mapped(address), u16::from_be(port))
}

pub(crate) fn encode_endpoint(shown: SocketAddr) -> RawEndpoint {
    (super::to_mapped(shown.ip()), shown.port().to_be())
}
