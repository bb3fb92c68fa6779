//! Loads the first packet programs in parallel with the socket programs: a start waits for both, mostly for the
//! kernel's verifier.
//!
//! Invariant: it creates maps and programs only; the caller handles pins and devices.

use std::thread::JoinHandle;

use libbpf_rs::{MapCore, MapHandle};

use super::prebuild::thread_error;
use crate::error::StartError;
use crate::load::{self, LinkLayer, LoadedPackets, PacketConstants};
use crate::map::{self, Map, MapHandles};
use crate::packets::{self, PacketOptions, PacketSwitches};
use crate::pins::{Pins, ProgramKind, ProgramSetName};

/// The loading thread, and the maps that its programs read.
#[derive(Debug)]
pub(super) struct PacketLoadThread {
    pub(super) maps: MapHandles,
    thread: JoinHandle<Result<LoadedPackets, StartError>>,
}

impl PacketLoadThread {
    /// Starts at the daemon's start, in parallel with the socket programs over the same maps. `None`: packets are not
    /// wanted, or an error; then [`KernelMaps::serve_packets`](super::KernelMaps::serve_packets) loads them.
    pub(super) fn start_with_sockets(
        (layers, options): (Vec<LinkLayer>, Option<&PacketOptions>),
        pins: &Pins,
        sockets: &MapHandles,
    ) -> Option<Self> {
        let options = options?;
        let found = adopt_maps(pins).ok()?;
        Self::start(layers, options, sockets.iter().chain(&found), pins).ok()
    }

    /// Starts to load programs over these maps, and creates missing ones. It opens programs that are pinned for these
    /// maps instead of loading them.
    pub(super) fn start<'a>(
        layers: Vec<LinkLayer>,
        PacketOptions { flows, switches, .. }: &PacketOptions,
        given: impl Iterator<Item = (&'a Map, &'a MapHandle)>,
        pins: &Pins,
    ) -> Result<Self, StartError> {
        let (flows, switches) = (*flows, switches.clone());
        let given = map::clone_handles(given)?;
        let found = packet_set_name(&switches, &given).and_then(|name| pins.find_programs(&name));
        let maps = match &found {
            Some(_) => given,
            None => load::make_packet_maps(&given, (flows, &switches))?,
        };
        let read = map::clone_handles(&maps)?;
        let work = move || Ok(load::load_packets(&layers, &read, (flows, &switches), found.as_ref())?.0);
        let thread = std::thread::Builder::new().name("packets".to_owned()).spawn(work);
        Ok(Self { maps, thread: thread.map_err(|error| StartError::from_load(error.into()))? })
    }

    pub(super) fn join(self) -> Result<LoadedPackets, StartError> {
        self.thread.join().unwrap_or_else(|_| Err(thread_error()))
    }
}

/// The name of the set of packet programs over these maps; `None`: some are missing. The size of the flow table is that
/// of its map.
pub(super) fn packet_set_name(switches: &PacketSwitches, maps: &MapHandles) -> Option<ProgramSetName> {
    let flows = maps.get(&Map::Flows)?.max_entries();
    // A bridge that has come since must be known to the programs' variables from the start.
    let constants = (PacketConstants::new(flows, switches), packets::has_bridge_port(maps));
    ProgramSetName::new(ProgramKind::Packets, &constants, maps)
}

/// The packet maps of a former daemon that this one can continue with.
pub(super) fn adopt_maps(pins: &Pins) -> Result<MapHandles, StartError> {
    let mut found = packets::drop_partial_flows(pins.adopt_packets()?);
    packets::remove_undersized(&mut found);
    Ok(found)
}
