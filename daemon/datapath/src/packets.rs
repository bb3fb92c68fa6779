//! The maps of the packet programs, and what the daemon tells these programs at its start.
//!
//! Invariant: flows of a former daemon stay, and programs look at the ports and address blocks where their packets
//! arrive. Each flow number is handed out once, after the table of flows is made.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use holdfast_status::datapath::Features;
pub(crate) use holdfast_status::datapath::{DsrTransports, PacketSwitches};
use libbpf_rs::{MapCore, MapFlags};

use crate::abi::types::size;
use crate::abi::{self, packets};
use crate::bitmap::Bitmap;
use crate::error::StartError;
use crate::generation::{map_array, open_counted_table};
use crate::map::{Map, MapHandles, find_handle};
use crate::mapped_array::MappedArray;

/// What the datapath has to know to translate packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// How many flows there may be. A table that a former daemon left gets this size while clients go on.
    pub flows: u32,
    /// The ports that clients get on their way to backends of other nodes; the first four ranges count.
    pub snat_ports: Vec<RangeInclusive<u16>>,
    /// What their programs are told when they are loaded.
    pub switches: PacketSwitches,
}

impl PacketOptions {
    /// What of this a kernel with these features can do. One that does not tell the length of a way (before Linux 5.12)
    /// wraps no packet, because some would be lost for their length, and their senders would not hear of it.
    pub(crate) fn restrict_to(mut self, features: Features) -> Self {
        if !features.lengths {
            self.switches.dsr_transports = DsrTransports::Off;
        }
        self
    }
}

/// The transports as the programs have them: see `bpf/dsr.h`.
pub(crate) const fn encode_dsr_transports(wraps: DsrTransports) -> u32 {
    match wraps {
        DsrTransports::Off => 0,
        DsrTransports::Tcp => 1,
        DsrTransports::TcpAndUdp => 3,
    }
}

/// Where packets arrive at this node for flows that a former daemon's programs began.
#[derive(Debug, Default)]
pub(crate) struct AdoptedFlows {
    pub(crate) ports: BTreeSet<u16>,
    pub(crate) frontends: BTreeSet<(IpAddr, u16)>,
}

impl AdoptedFlows {
    pub(crate) fn add_flow(&mut self, flow: &packets::types::flow) {
        let arrivals = packets::flow_ingress(flow);
        self.ports.extend([arrivals.frontend_port].into_iter().chain(arrivals.nat_port));
        self.frontends.insert((arrivals.frontend, arrivals.frontend_port));
    }
}

/// Keeps the maps of flows only as a complete set. If one is missing, the rest lead nowhere, and all are made anew.
pub(crate) fn drop_partial_flows(mut found: MapHandles) -> MapHandles {
    if !Map::flow_maps().all(|map| found.contains_key(&map)) {
        found.retain(|map, _| Map::flow_maps().all(|flows| flows != *map));
    }
    found
}

/// The maps that may have less room than this version needs, because a former daemon made them: a count without room
/// would stay at 0, and a device without room would get no programs.
pub(crate) const MIN_ENTRIES: [(Map, u32); 2] =
    [(Map::PacketCounts, packets::types::packet_count::PACKET_COUNTS.0), (Map::Devices, size::DEVICES.0)];

/// Takes the maps out that have too little room.
pub(crate) fn remove_undersized(found: &mut MapHandles) {
    for (map, least) in MIN_ENTRIES {
        found.retain(|it, handle| *it != map || handle.max_entries() >= least);
    }
}

/// Copies what the programs of a former daemon know of devices into a map with more room.
pub(crate) fn copy_devices(from: &MapHandles, to: &MapHandles) -> Result<(), StartError> {
    let (from, mut to) = (open_counted_table(from, Map::Devices)?, open_counted_table(to, Map::Devices)?);
    from.copy_to(&mut to).map_err(|source| StartError::Map {
        attempt: "copy",
        map: Map::Devices.name(),
        source,
    })
}

/// Whether programs over these maps look from the start for packets that come by a bridge: flows may go on of which
/// only the answers come by it, and those say nothing of their device.
pub(crate) fn has_bridge_port(maps: &MapHandles) -> bool {
    let Some(devices) = maps.get(&Map::Devices) else { return false };
    let told = |key: Vec<u8>| abi::from_bytes(&devices.lookup(&key, MapFlags::ANY).ok()??);
    devices.keys().filter_map(told).any(|it: packets::types::device| is_external_bridge(it.flags.into()))
}

fn is_external_bridge(flags: u32) -> bool {
    use packets::types::device_flag as flag;
    flags & flag::DEVICE_BRIDGE.0 != 0 && flags & (flag::DEVICE_OUTER.0 | flag::DEVICE_BACKENDS.0) != 0
}

/// How many flow numbers are handed out before any client is served: enough until the rest follow.
const NUMBERS_FIRST: u32 = 1 << 16;

/// Hands out the first numbers of flows. The others follow in pieces: a start does not wait for millions.
pub(crate) fn release_first_numbers(maps: &MapHandles) -> Result<(), StartError> {
    let numbers = find_handle(maps, Map::FreeFlows)?;
    let counts = map_array(maps, Map::FlowCounts)?;
    let first = find_handle(maps, Map::Flows)?.max_entries().min(NUMBERS_FIRST);
    for number in 0..first {
        let pushed = numbers.update(&[], &number.to_ne_bytes(), MapFlags::ANY);
        pushed.map_err(|error| StartError::Map {
            attempt: "fill",
            map: Map::FreeFlows.name(),
            source: std::io::Error::other(format!("{error:#}")),
        })?;
    }
    for (at, count) in counts.iter().enumerate() {
        let is_of_numbers = at == packets::types::flow_count::COUNT_OF_NUMBERS.0 as usize;
        count.store(if is_of_numbers { first.into() } else { 0 }, Ordering::Release);
    }
    Ok(())
}

/// Tells the programs which ports clients may get, and whether new clients get flows: see `drains` in
/// `bpf/include/abi.h`.
pub(crate) fn write_settings(
    maps: &MapHandles,
    options: &PacketOptions,
    drains: u32,
) -> Result<(), StartError> {
    write_settings_to(&map_array(maps, Map::PacketSettings)?, options, drains);
    Ok(())
}

/// The same, by a view of the settings.
pub(crate) fn write_settings_to(settings: &MappedArray, options: &PacketOptions, drains: u32) {
    let told = packets::types::packet_settings { drains, ..packets::encode_settings(&options.snat_ports) };
    for (cell, word) in settings.iter().zip(abi::to_words(&told)) {
        cell.store(word, Ordering::Release);
    }
}

/// The ports at which programs look at packets for the node itself: ports that clients get, and node ports. Ports that
/// were looked at before stay until it is known at which of them adopted flows arrive. No other port is taken back
/// before the next start, because flows outlive their service.
pub(crate) fn open_port_bitmap(
    maps: &MapHandles,
    options: &PacketOptions,
    node_ports: impl Iterator<Item = NonZeroU16>,
) -> Result<Bitmap, StartError> {
    let given = options.snat_ports.iter().cloned().flatten();
    let all = given.chain(node_ports.map(NonZeroU16::get));
    Ok(Bitmap::adopt(map_array(maps, Map::PacketPorts)?, all.map(u32::from)))
}

#[cfg(test)]
mod tests;
