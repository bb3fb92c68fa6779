//! The flow table over real maps, written as programs do. Needs root.

// The sizes of packets and the numbers of clients fit their target types.
#![allow(clippy::cast_possible_truncation)]

mod found;
mod moved;
mod programs;
mod swept;

use std::cell::Cell;
use std::net::SocketAddr;

use holdfast_core::keys::Transport;
use libbpf_rs::{MapCore, MapFlags};

use super::*;
use crate::abi::as_bytes;
use crate::abi::flow::types::{entry_kind as entries, entry4_key, entry6_key, flow_flag as said, flow_state};
use crate::kernel::KernelMaps;
use crate::load;
use crate::map;
use holdfast_core::maps::Capacity;

/// Later than the age of the oldest flow.
const NOW: u32 = 200_000;
const TCP: u8 = 6;
const UDP: u8 = 17;
const OPENING: u8 = flow_state::FLOW_OPENING.0 as u8;
const OPEN: u8 = flow_state::FLOW_OPEN.0 as u8;
const SYN: u8 = said::FLOW_SYN_SEEN.0 as u8;
const FIN: u8 = said::FLOW_FIN_SEEN.0 as u8;
const SHORTCUT: u8 = said::FLOW_FAST_PATH.0 as u8;

std::thread_local! {
    static CLOCK: Cell<u32> = const { Cell::new(NOW) };
}

fn clock() -> u32 {
    CLOCK.get()
}

/// Long after the test.
fn later() -> std::time::Instant {
    holdfast_fixtures::clock::now() + std::time::Duration::from_secs(3_600)
}

/// Packet maps without attached programs.
struct FlowMaps {
    table: FlowTable,
    handles: MapHandles,
    maps: KernelMaps,
}

impl FlowMaps {
    fn new(flows: u32) -> Self {
        Self::with(flows, |given| load::make_default_packet_maps(given, flows).unwrap())
    }

    fn with(flows: u32, make: impl FnOnce(&MapHandles) -> MapHandles) -> Self {
        let capacity = Capacity { slots: 1 << 10, ports: 16, services: 16 };
        let maps = KernelMaps::without_programs(capacity).unwrap();
        let handles = make(&map::clone_handles(maps.handles_for_tests()).unwrap());
        let bed = Self { table: FlowTable::with_clock(&handles, clock).unwrap(), handles, maps };
        (0..flows).for_each(|number| bed.table.free_number(number).unwrap());
        bed
    }

    /// Maps for so many flows, with the same counts.
    fn of_another_size(&self, flows: u32) -> Self {
        let others = self.handles.iter().filter(|(map, _)| !map.is_flow_map());
        let handles = load::make_default_packet_maps(&map::clone_handles(others).unwrap(), flows).unwrap();
        let maps =
            KernelMaps::without_programs(Capacity { slots: 1 << 10, ports: 16, services: 16 }).unwrap();
        Self { table: FlowTable::with_clock(&handles, clock).unwrap(), handles, maps }
    }

    fn entries(&self, it: &types::flow) -> &MapHandle {
        &self.handles[&if it.v4 != 0 { Map::Entries4 } else { Map::Entries6 }]
    }

    /// Opens a flow as a program does: the record, then its entries.
    fn begin(&self, it: types::flow) -> u32 {
        let free = &self.handles[&Map::FreeFlows];
        let number = free.lookup_and_delete(&[]).unwrap().expect("a free number");
        self.write(u32::from_ne_bytes(number.as_slice().try_into().unwrap()), it);
        let keys = keys(&it);
        for key in keys {
            self.entries(&it).update(&key, &number, MapFlags::NO_EXIST).unwrap();
        }
        u32::from_ne_bytes(number.try_into().unwrap())
    }

    /// Counts a flow as programs do: the sweep compares this count first.
    fn count_begun(&self) {
        let (key, counts) = (packet_count::COUNT_FLOWS.0.to_ne_bytes(), &self.handles[&Map::PacketCounts]);
        let mut each = counts.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap();
        let first = u64::from_ne_bytes(each[0].as_slice().try_into().unwrap()) + 1;
        each[0] = first.to_ne_bytes().to_vec();
        counts.update_percpu(&key, &each, MapFlags::ANY).unwrap();
    }

    fn write(&self, number: u32, it: types::flow) {
        self.count_begun();
        self.handles[&Map::Flows].update(&number.to_ne_bytes(), as_bytes(&it), MapFlags::ANY).unwrap();
    }

    /// The record as stored.
    fn record(&self, number: u32) -> types::flow {
        let found = self.handles[&Map::Flows].lookup(&number.to_ne_bytes(), MapFlags::ANY);
        crate::abi::from_bytes(&found.unwrap().unwrap()).unwrap()
    }

    /// The numbers that a flow's entries lead to, in the order of [`keys`].
    fn leads(&self, it: &types::flow) -> Vec<Option<u32>> {
        let lookup = |key: Vec<u8>| self.entries(it).lookup(&key, MapFlags::ANY).unwrap();
        let number = |value: Vec<u8>| u32::from_ne_bytes(value.try_into().unwrap());
        keys(it).into_iter().map(|key| lookup(key).map(number)).collect()
    }

    /// Asserts that nothing of a flow is left.
    #[track_caller]
    fn check_gone(&self, number: u32, it: &types::flow) {
        let record = self.record(number);
        assert_eq!((record.serial, record.state), (0, 0), "{it:?}");
        assert!(self.leads(it).iter().all(Option::is_none), "{it:?}");
    }

    /// Asserts that a flow has its record and entries.
    #[track_caller]
    fn check_whole(&self, number: u32, it: &types::flow) {
        assert_eq!(as_bytes(&self.record(number)), as_bytes(it));
        assert!(self.leads(it).iter().all(|to| *to == Some(number)), "{it:?}");
    }

    /// How many record numbers are free. Takes them all.
    fn free(&self) -> usize {
        std::iter::from_fn(|| self.handles[&Map::FreeFlows].lookup_and_delete(&[]).unwrap()).count()
    }
}

/// The keys of a flow, independent of the tested code: translated, client, nat.
fn keys(it: &types::flow) -> Vec<Vec<u8>> {
    let (client, frontend) = ((it.client, it.client_port), (it.frontend, it.frontend_port));
    let (backend, nat) = ((it.backend, it.backend_port), (it.nat, it.nat_port));
    let between = (it.client, it.translated_port);
    let (less, more) = if backend > between { (between, backend) } else { (backend, between) };
    let mut keys =
        vec![key(it, less, more, entries::ENTRY_TRANSLATED), key(it, client, frontend, entries::ENTRY_WIRE)];
    if it.nat_port != 0 {
        keys.push(key(it, backend, nat, entries::ENTRY_WIRE));
    }
    keys
}

fn key(it: &types::flow, from: ([u32; 4], u16), to: ([u32; 4], u16), kind: entries) -> Vec<u8> {
    let (source_port, destination_port, transport, kind) = (from.1, to.1, it.transport, kind.0 as u8);
    if it.v4 != 0 {
        let (source, destination) = (from.0[3], to.0[3]);
        let key = entry4_key {
            source,
            destination,
            source_port,
            destination_port,
            transport,
            kind,
            ..entry4_key::default()
        };
        return as_bytes(&key).to_vec();
    }
    let key = entry6_key {
        source: from.0,
        destination: to.0,
        source_port,
        destination_port,
        transport,
        kind,
        ..entry6_key::default()
    };
    as_bytes(&key).to_vec()
}

/// The `n`th client: IPv4 if even, with a SNAT port if divisible by three.
fn flow(n: u16, transport: u8, seen: u32) -> types::flow {
    let v4 = n.is_multiple_of(2);
    let at = |v4_at: &str, v6_at: &str| {
        super::flow::encode_endpoint(if v4 { v4_at } else { v6_at }.parse().unwrap())
    };
    let (client, _) = at("203.0.113.9:1", "[2001:db8::9]:1");
    let (frontend, frontend_port) = at("192.0.2.10:443", "[2001:db8:1::10]:443");
    let (backend, backend_port) = match n % 5 {
        0 => at("10.1.0.207:8443", "[2001:db8::10]:8443"),
        _ => at("10.1.0.7:8443", "[fd00::7]:8443"),
    };
    let (nat, _) = at("192.0.2.1:1", "[2001:db8:1::1]:1");
    let has_nat = n.is_multiple_of(3);
    types::flow {
        client,
        frontend,
        backend,
        nat: if has_nat { nat } else { [0; 4] },
        client_port: (1_024 + n).to_be(),
        frontend_port,
        backend_port,
        nat_port: if has_nat { (32_768 + n).to_be() } else { 0 },
        translated_port: (1_024 + n).to_be(),
        transport,
        state: OPEN,
        v4: v4.into(),
        port_and_share: 7 << types::flow_part::FLOW_SHARE_AT.0 | 5,
        serial: 1_000 + u32::from(n),
        seen,
        began: seen.saturating_sub(10),
        ..types::flow::default()
    }
}
