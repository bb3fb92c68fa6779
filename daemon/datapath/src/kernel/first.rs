//! The first programs of packets, loaded beside those of sockets: a start waits for both, and the kernel's verifier is
//! most of what it waits for.
//!
//! Invariant: maps and programs are made, and nothing else; pins and devices are left to who takes the programs.

use std::thread::JoinHandle;

use libbpf_rs::MapHandle;

use super::ahead::gone;
use crate::error::StartError;
use crate::load::{self, Layer, PacketPrograms};
use crate::map::{self, Handles, Map};
use crate::packets::{self, PacketOptions};
use crate::pins::Pins;

/// The thread that loads them, and the maps that they read.
#[derive(Debug)]
pub(super) struct First {
    pub(super) maps: Handles,
    thread: JoinHandle<Result<Vec<PacketPrograms>, StartError>>,
}

impl First {
    /// Begins at a start, beside the load of the programs of sockets that read these maps. `None`: packets are not to
    /// be translated, or it cannot be begun, and is tried again when packets are to be served.
    pub(super) fn at_start(
        (layers, options): (Vec<Layer>, Option<&PacketOptions>),
        pins: &Pins,
        sockets: &Handles,
    ) -> Option<Self> {
        let options = options?;
        let found = found(pins).ok()?;
        Self::begin(layers, options, sockets.iter().chain(&found)).ok()
    }

    /// Begins to load programs over these maps, and over new ones in the place of those that are missing.
    pub(super) fn begin<'a>(
        layers: Vec<Layer>,
        PacketOptions { flows, switches, .. }: &PacketOptions,
        given: impl Iterator<Item = (&'a Map, &'a MapHandle)>,
    ) -> Result<Self, StartError> {
        let (flows, switches) = (*flows, switches.clone());
        let maps = load::maps_of_packets(&map::copies(given)?, (flows, &switches))?;
        let read = map::copies(&maps)?;
        let work = move || Ok(load::packets_at(&layers, &read, (flows, &switches))?.0);
        let thread = std::thread::Builder::new().name("packets".to_owned()).spawn(work);
        Ok(Self { maps, thread: thread.map_err(|error| StartError::loading(error.into()))? })
    }

    /// Waits until they are loaded.
    pub(super) fn loaded(self) -> Result<Vec<PacketPrograms>, StartError> {
        self.thread.join().unwrap_or_else(|_| Err(gone()))
    }
}

/// The maps of packets that a former daemon left and that are fit to go on with.
pub(super) fn found(pins: &Pins) -> Result<Handles, StartError> {
    let mut found = packets::whole(pins.adopt_packets()?);
    packets::remove_small(&mut found);
    Ok(found)
}
