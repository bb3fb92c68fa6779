//! The maps of the packet programs, and the settings that the daemon writes at its start.
//!
//! Invariant: flows of a former daemon stay, and programs check the ports and address blocks where their packets
//! arrive. Each record number is released once, after the flow table is created.

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

/// The options of packet translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// The size of the flow table. A former daemon's table is resized while clients continue.
    pub flows: u32,
    /// The SNAT ports towards backends of other nodes; the first four ranges count.
    pub snat_ports: Vec<RangeInclusive<u16>>,
    /// The switches that programs are loaded with.
    pub switches: PacketSwitches,
}

impl PacketOptions {
    /// Restricts the options to these features. Without MTU checks (before Linux 5.12) nothing is encapsulated, because
    /// packets that become too long would be lost without an ICMP error.
    pub(crate) fn restrict_to(mut self, features: Features) -> Self {
        if !features.lengths {
            self.switches.dsr_transports = DsrTransports::Off;
        }
        self
    }
}

/// Encodes the transports for the programs: see `bpf/dsr.h`.
pub(crate) const fn encode_dsr_transports(wraps: DsrTransports) -> u32 {
    match wraps {
        DsrTransports::Off => 0,
        DsrTransports::Tcp => 1,
        DsrTransports::TcpAndUdp => 3,
    }
}

/// The ports and frontends where packets of a former daemon's flows arrive.
#[derive(Debug, Default)]
pub(crate) struct AdoptedFlows {
    pub(crate) ports: BTreeSet<u16>,
    pub(crate) frontends: BTreeSet<(IpAddr, u16)>,
}

impl AdoptedFlows {
    pub(crate) fn add_flow(&mut self, flow: &packets::types::flow) {
        let ingress = packets::flow_ingress(flow);
        self.ports.extend([ingress.frontend_port].into_iter().chain(ingress.nat_port));
        self.frontends.insert((ingress.frontend, ingress.frontend_port));
    }
}

/// Keeps the maps of flows only as a complete set. If one is missing, the others are useless and all are recreated.
pub(crate) fn drop_partial_flows(mut found: MapHandles) -> MapHandles {
    if !Map::flow_maps().all(|map| found.contains_key(&map)) {
        found.retain(|map, _| Map::flow_maps().all(|flows| flows != *map));
    }
    found
}

/// Maps that a former daemon may have created smaller than this version needs: a count beyond the map would stay 0, and
/// a device beyond it would get no programs.
pub(crate) const MIN_ENTRIES: [(Map, u32); 2] =
    [(Map::PacketCounts, packets::types::packet_count::PACKET_COUNTS.0), (Map::Devices, size::DEVICES.0)];

pub(crate) fn remove_undersized(found: &mut MapHandles) {
    for (map, min) in MIN_ENTRIES {
        found.retain(|it, handle| *it != map || handle.max_entries() >= min);
    }
}

/// Copies a former daemon's device entries into a larger map.
pub(crate) fn copy_devices(from: &MapHandles, to: &MapHandles) -> Result<(), StartError> {
    let (from, mut to) = (open_counted_table(from, Map::Devices)?, open_counted_table(to, Map::Devices)?);
    from.copy_to(&mut to).map_err(|source| StartError::Map {
        attempt: "copy",
        map: Map::Devices.name(),
        source,
    })
}

/// Whether programs over these maps must expect packets from a bridge from the start: some flows' replies arrive only
/// by a bridge, and do not show it.
pub(crate) fn has_bridge_port(maps: &MapHandles) -> bool {
    let Some(devices) = maps.get(&Map::Devices) else { return false };
    let entry = |key: Vec<u8>| abi::from_bytes(&devices.lookup(&key, MapFlags::ANY).ok()??);
    devices.keys().filter_map(entry).any(|it: packets::types::device| is_external_bridge(it.flags.into()))
}

fn is_external_bridge(flags: u32) -> bool {
    use packets::types::device_flag as flag;
    flags & flag::DEVICE_BRIDGE.0 != 0 && flags & (flag::DEVICE_OUTER.0 | flag::DEVICE_BACKENDS.0) != 0
}

/// How many record numbers are released before any client is served: enough until the rest follow.
const NUMBERS_FIRST: u32 = 1 << 16;

/// Releases the first record numbers. The rest follow in pieces: a start does not wait for millions.
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
        let counts_numbers = at == packets::types::flow_count::COUNT_OF_NUMBERS.0 as usize;
        count.store(if counts_numbers { first.into() } else { 0 }, Ordering::Release);
    }
    Ok(())
}

/// Writes the SNAT ports, and whether new clients get flows: see `drains` in `bpf/include/abi.h`.
pub(crate) fn write_settings(
    maps: &MapHandles,
    options: &PacketOptions,
    drains: u32,
) -> Result<(), StartError> {
    write_settings_to(&map_array(maps, Map::PacketSettings)?, options, drains);
    Ok(())
}

/// [`write_settings`] to mapped settings.
pub(crate) fn write_settings_to(settings: &MappedArray, options: &PacketOptions, drains: u32) {
    let encoded = packets::types::packet_settings { drains, ..packets::encode_settings(&options.snat_ports) };
    for (cell, word) in settings.iter().zip(abi::to_words(&encoded)) {
        cell.store(word, Ordering::Release);
    }
}

/// Opens the bitmap of ports that programs check for packets to the node: SNAT ports and node ports. Ports set before
/// stay until the first sweep finds those of adopted flows. Other ports stay until the next start, because flows
/// outlive their service.
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
