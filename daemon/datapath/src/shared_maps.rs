//! The maps that keep their size: node addresses, node ports, and the control values.
//!
//! Invariant: a bit of `node_ports` is set while a wildcard frontend or any UDP frontend has that port, or a former
//! daemon's flows arrive at the node on it. A bit of `frontend_blocks` is set while the block has a frontend. An extra
//! bit only costs a search, so bits of blocks and flows stay until the next start. Only programs write data of sockets
//! and clients.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::atomic::Ordering;

use holdfast_core::keys::{FrontendKey, Transport};
use libbpf_rs::{MapCore, MapHandle, MapType};

use crate::abi::{self, types};
use crate::bitmap::Bitmap;
use crate::error::StartError;
use crate::generation::{map_array, open_counted_table};
use crate::map::{self, Map, MapHandles};
use crate::mapped_array::MappedArray;
use crate::table::Table;

#[derive(Debug)]
pub(crate) struct SharedMaps {
    handles: MapHandles,
    addresses: [Table; 2],
    node_ports: Bitmap,
    frontend_blocks: Bitmap,
    control: MappedArray,
    // Frontends without an address; their ports' bits are set in `node_ports`.
    wildcards: BTreeSet<FrontendKey>,
    // The number of UDP frontends with an address per port; these bits are set too. Programs remember datagrams that
    // this node sends from such a port, because a reply would otherwise look like a client's request.
    datagrams: BTreeMap<NonZeroU16, usize>,
    // Ports at which a former daemon's flows arrive at this node's addresses.
    flow_ports: BTreeSet<NonZeroU16>,
}

impl SharedMaps {
    /// Adopts the shared maps, and sets the bits of the found frontends. Other bits of blocks and ports stay until the
    /// first sweep.
    pub(crate) fn new(maps: &MapHandles, found: &[FrontendKey]) -> Result<Self, StartError> {
        let shared = Map::shared_maps().chain(Map::socket_maps());
        let handles = map::clone_handles(shared.filter_map(|map| maps.get_key_value(&map)))?;
        let wildcards: BTreeSet<_> =
            found.iter().copied().filter(|key| key.address.is_unspecified()).collect();
        let mut datagrams = BTreeMap::new();
        found
            .iter()
            .filter(|key| is_udp_at_address(key))
            .for_each(|key| increment_port(&mut datagrams, key.port));
        let ports = wildcards.iter().map(|key| key.port).chain(datagrams.keys().copied());
        Ok(Self {
            handles,
            addresses: [
                open_counted_table(maps, Map::NodeAddresses4)?,
                open_counted_table(maps, Map::NodeAddresses6)?,
            ],
            node_ports: Bitmap::adopt(map_array(maps, Map::NodePorts)?, ports.map(port_bit)),
            frontend_blocks: Bitmap::adopt(
                map_array(maps, Map::FrontendBlocks)?,
                found.iter().filter_map(block_bit),
            ),
            control: map_array(maps, Map::Control)?,
            wildcards,
            datagrams,
            flow_ports: BTreeSet::new(),
        })
    }

    /// Restores bits that something else changed. `true`: there were some.
    pub(crate) fn repair(&self) -> bool {
        self.node_ports.repair() | self.frontend_blocks.repair()
    }

    /// The handles for loading programs over the same maps.
    pub(crate) fn handles(&self) -> &MapHandles {
        &self.handles
    }

    pub(crate) fn node_addresses(&self) -> &[Table; 2] {
        &self.addresses
    }

    pub(crate) fn node_addresses_mut(&mut self, address: IpAddr) -> &mut Table {
        let [v4, v6] = &mut self.addresses;
        if address.is_ipv4() { v4 } else { v6 }
    }

    /// Sets the bits by which programs find a new frontend.
    pub(crate) fn note_inserted(&mut self, key: &FrontendKey) {
        block_bit(key).into_iter().for_each(|bit| self.frontend_blocks.set(bit));
        let is_new = if is_udp_at_address(key) {
            increment_port(&mut self.datagrams, key.port);
            true
        } else {
            key.address.is_unspecified() && self.wildcards.insert(*key)
        };
        if is_new {
            self.node_ports.set(port_bit(key.port));
        }
    }

    /// Clears the bit of a port after its last frontend is removed.
    pub(crate) fn note_removed(&mut self, key: &FrontendKey) {
        let is_gone = if is_udp_at_address(key) {
            decrement_port(&mut self.datagrams, key.port);
            true
        } else {
            self.wildcards.remove(key)
        };
        let is_used = self.datagrams.contains_key(&key.port)
            || self.flow_ports.contains(&key.port)
            || self.wildcards.iter().any(|other| other.port == key.port);
        if is_gone && !is_used {
            self.node_ports.clear(port_bit(key.port));
        }
    }

    pub(crate) fn node_ports(&self) -> impl Iterator<Item = NonZeroU16> {
        self.wildcards.iter().map(|key| key.port)
    }

    /// Keeps the found bits of blocks until the flows of a former daemon are known; without any, sets all.
    pub(crate) fn keep_found_blocks(&mut self) {
        self.frontend_blocks.set_all_if_empty();
    }

    /// Sets the bits for a former daemon's flows, because flows may outlive their frontend, and clears all other
    /// adopted bits. The node's own addresses get no bit, because nearly all packets have one of them: their flows are
    /// found by the port, including SNAT ports.
    pub(crate) fn record_flows(&mut self, frontends: impl IntoIterator<Item = (IpAddr, u16)>) {
        for (address, port) in frontends {
            let is_node_address =
                self.node_addresses_mut(address).get(&abi::encode_node_address(address)).is_some();
            if !is_node_address {
                self.frontend_blocks.set(abi::address_block(address));
            } else if let Some(port) = NonZeroU16::new(port) {
                self.flow_ports.insert(port);
                self.node_ports.set(port_bit(port));
            }
        }
        self.frontend_blocks.clear_adopted();
        self.node_ports.clear_adopted();
    }

    pub(crate) fn control(&self) -> types::control {
        let words = self.control.iter().map(|word| word.load(Ordering::Relaxed));
        abi::from_words(words.take(size_of::<types::control>() / 8)).unwrap_or_default()
    }

    /// Writes the exemptions, and the network namespace with the loopback that serves node ports. Keeps the count of
    /// lost refusals, which programs write.
    pub(crate) fn write_control(&self, control: &types::control) {
        let lost = offset_of!(types::control, refusals_lost) / 8;
        let words = self.control.iter().zip(abi::to_words(control)).enumerate();
        words.filter(|(at, _)| *at != lost).for_each(|(_, (cell, word))| cell.store(word, Ordering::Release));
    }
}

/// The words of `control` that all versions share.
const EXEMPTIONS: [usize; 2] =
    [offset_of!(types::control, exempt_cgroup) / 8, offset_of!(types::control, exempt_mark) / 8];

/// Writes only the exempt cgroup and mark, for another version's programs.
pub(crate) fn write_exemptions(control: &MapHandle, exemptions: &types::control) {
    if control.map_type() != MapType::Array || (control.value_size() as usize) < size_of::<types::control>() {
        return;
    }
    let Ok(view) = MappedArray::new(control) else { return };
    for ((at, cell), word) in view.iter().enumerate().zip(abi::to_words(exemptions)) {
        let keeps = if at == EXEMPTIONS[1] { !u64::from(u32::MAX) } else { 0 };
        if EXEMPTIONS.contains(&at) {
            let kept = cell.load(Ordering::Relaxed) & keeps;
            cell.store(kept | (word & !keeps), Ordering::Release);
        }
    }
}

fn port_bit(port: NonZeroU16) -> u32 {
    port.get().into()
}

/// Whether this node may send datagrams from the frontend's own address.
fn is_udp_at_address(key: &FrontendKey) -> bool {
    key.transport == Transport::Udp && !key.address.is_unspecified()
}

fn increment_port(counts: &mut BTreeMap<NonZeroU16, usize>, port: NonZeroU16) {
    let count = counts.entry(port).or_default();
    *count = count.saturating_add(1);
}

fn decrement_port(counts: &mut BTreeMap<NonZeroU16, usize>, port: NonZeroU16) {
    if let Some(count) = counts.get_mut(&port) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&port);
        }
    }
}

/// The block of a frontend. A wildcard frontend has none: no dialled address leads to it.
fn block_bit(key: &FrontendKey) -> Option<u32> {
    (!key.address.is_unspecified()).then(|| abi::address_block(key.address))
}
