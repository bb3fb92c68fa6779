//! The maps that keep their size: node addresses, node ports, and what the daemon tells all programs.
//!
//! Invariant: a bit of `node_ports` is set while any frontend without an address has that port, or one for datagrams at
//! any address, or a former daemon's flows lead to the node itself at that port, and a bit of `frontend_blocks` while
//! any frontend is in that block. A bit too many only costs a search, so those of blocks and of flows are taken back by
//! the next start only. What the maps know of sockets and clients is written by programs alone.

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

/// The maps that all generations share.
#[derive(Debug)]
pub(crate) struct SharedMaps {
    handles: MapHandles,
    addresses: [Table; 2],
    node_ports: Bitmap,
    frontend_blocks: Bitmap,
    control: MappedArray,
    // Frontends without an address; the bits of their ports are set in `node_ports`.
    wildcards: BTreeSet<FrontendKey>,
    // How many frontends with an address take datagrams at a port; the bits of these ports are set too. What this node
    // says from such a port is remembered, or the answer would be taken for a client's question.
    datagrams: BTreeMap<NonZeroU16, usize>,
    // The ports to which a former daemon's flows lead at an address of this node.
    flow_ports: BTreeSet<NonZeroU16>,
}

impl SharedMaps {
    /// Takes over the shared maps, and sets the bits of the frontends that were found. The bits of blocks and ports
    /// without a frontend stay until it is known whether there are flows to them.
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

    /// Restores what others have changed in the bitmaps. `true`: something had been changed.
    pub(crate) fn repair(&self) -> bool {
        self.node_ports.repair() | self.frontend_blocks.repair()
    }

    /// The handles with which programs are loaded over the same maps.
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

    /// Sets the bits that lead programs to a frontend that has come.
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

    /// Clears the bit of a port, if the frontend that has gone was the last one that needed it.
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

    /// The ports of frontends without an address.
    pub(crate) fn node_ports(&self) -> impl Iterator<Item = NonZeroU16> {
        self.wildcards.iter().map(|key| key.port)
    }

    /// Keeps programs looking while it is not known to which addresses a former daemon's flows go: the bits of blocks
    /// that were found stay, and where none were found all are set.
    pub(crate) fn keep_found_blocks(&mut self) {
        self.frontend_blocks.set_all_if_empty();
    }

    /// Sets the bits of the places to which a former daemon's flows go, because a flow may outlive its frontend, and
    /// forgets all other bits that were found. The node's own addresses get no bit, because nearly all packets are for
    /// one of these: their flows are found by the port, also by one that clients get on their way to other nodes.
    pub(crate) fn record_flows(&mut self, frontends: impl IntoIterator<Item = (IpAddr, u16)>) {
        for (address, port) in frontends {
            let of_node = self.node_addresses_mut(address).get(&abi::encode_node_address(address)).is_some();
            if !of_node {
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

    /// Tells the programs what is exempt, and in which network namespace the loopback answers node ports. The count of
    /// lost refusals, which the programs write, stays as it is.
    pub(crate) fn write_control(&self, told: &types::control) {
        let lost = offset_of!(types::control, refusals_lost) / 8;
        let words = self.control.iter().zip(abi::to_words(told)).enumerate();
        words.filter(|(at, _)| *at != lost).for_each(|(_, (cell, word))| cell.store(word, Ordering::Release));
    }
}

/// The words of `control` that stay where they are in all versions.
const EXEMPTIONS: [usize; 2] =
    [offset_of!(types::control, exempt_cgroup) / 8, offset_of!(types::control, exempt_mark) / 8];

/// Tells the programs of another version which cgroup and mark are exempt, and nothing else.
pub(crate) fn write_exemptions(control: &MapHandle, told: &types::control) {
    if control.map_type() != MapType::Array || (control.value_size() as usize) < size_of::<types::control>() {
        return;
    }
    let Ok(view) = MappedArray::new(control) else { return };
    for ((at, cell), word) in view.iter().enumerate().zip(abi::to_words(told)) {
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

/// Whether this node may itself send datagrams from the frontend's place.
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

/// A frontend without an address is in no block: it is found by no address that a client dials.
fn block_bit(key: &FrontendKey) -> Option<u32> {
    (!key.address.is_unspecified()).then(|| abi::address_block(key.address))
}
