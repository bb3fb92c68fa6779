//! The first programs of packets, loaded beside those of sockets: a start waits for both, and the kernel's verifier is
//! most of what it waits for.
//!
//! Invariant: maps and programs are made, and nothing else; pins and devices are left to who takes the programs.

use std::thread::JoinHandle;

use libbpf_rs::MapHandle;

use super::prebuild::thread_error;
use crate::error::StartError;
use crate::load::{self, LinkLayer, PacketPrograms};
use crate::map::{self, Map, MapHandles};
use crate::packets::{self, PacketOptions};
use crate::pins::Pins;

/// The thread that loads them, and the maps that they read.
#[derive(Debug)]
pub(super) struct PacketLoadThread {
    pub(super) maps: MapHandles,
    thread: JoinHandle<Result<Vec<PacketPrograms>, StartError>>,
}

impl PacketLoadThread {
    /// Begins at a start, beside the load of the programs of sockets that read these maps. `None`: packets are not to
    /// be translated, or it cannot be begun, and is tried again when packets are to be served.
    pub(super) fn start_with_sockets(
        (layers, options): (Vec<LinkLayer>, Option<&PacketOptions>),
        pins: &Pins,
        sockets: &MapHandles,
    ) -> Option<Self> {
        let options = options?;
        let found = adopt_maps(pins).ok()?;
        Self::start(layers, options, sockets.iter().chain(&found)).ok()
    }

    /// Begins to load programs over these maps, and over new ones in the place of those that are missing.
    pub(super) fn start<'a>(
        layers: Vec<LinkLayer>,
        PacketOptions { flows, switches, .. }: &PacketOptions,
        given: impl Iterator<Item = (&'a Map, &'a MapHandle)>,
    ) -> Result<Self, StartError> {
        let (flows, switches) = (*flows, switches.clone());
        let maps = load::make_packet_maps(&map::clone_handles(given)?, (flows, &switches))?;
        let read = map::clone_handles(&maps)?;
        let work = move || Ok(load::load_packets(&layers, &read, (flows, &switches))?.0);
        let thread = std::thread::Builder::new().name("packets".to_owned()).spawn(work);
        Ok(Self { maps, thread: thread.map_err(|error| StartError::from_load(error.into()))? })
    }

    /// Waits until they are loaded.
    pub(super) fn join(self) -> Result<Vec<PacketPrograms>, StartError> {
        self.thread.join().unwrap_or_else(|_| Err(thread_error()))
    }
}

/// The maps of packets that a former daemon left and that are fit to go on with.
pub(super) fn adopt_maps(pins: &Pins) -> Result<MapHandles, StartError> {
    let mut found = packets::drop_partial_flows(pins.adopt_packets()?);
    packets::remove_undersized(&mut found);
    Ok(found)
}
