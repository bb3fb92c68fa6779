//! Removes a former daemon's pins and programs at once, or drains them until outside clients do not need them any more.
//!
//! Invariant: links go before maps, so no program is left with half of its maps. A running daemon loses nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags};

use super::{DEVICE_LINKS, LINKS, PACKETS, Pins, VERSION, device_links, lock_root, pin_error, remove_folder};
use crate::abi::{self, packets::types};
use crate::conntrack::{ConntrackOutcome, add_port_entries};
use crate::devices;
use crate::error::StartError;
use crate::flows::FlowTable;
use crate::map::{Map, MapHandles, find_handle};

/// What a cleanup found and removed.
#[derive(Debug, Default)]
pub struct CleanupReport {
    /// Whether there were pins, or at least their folder.
    pub pins: bool,
    /// How many programs were detached from devices; filters can exist without pins.
    pub at_devices: usize,
    /// The errors of all failed removals.
    pub errors: Vec<StartError>,
}

impl CleanupReport {
    /// Whether the cleanup found anything.
    pub fn has_any(&self) -> bool {
        self.pins || self.at_devices > 0 || !self.errors.is_empty()
    }
}

/// Removes all pins and with the links their programs, and filters at devices even without pins. Continues after
/// errors, and collects them.
///
/// Refuses while a daemon holds the pins.
pub fn cleanup(root: &Path) -> Result<CleanupReport, StartError> {
    let pins = root.exists();
    let _lock = pins.then(|| lock_root(root)).transpose()?;
    let mut errors = detach_socket_programs(root);
    let (at_devices, stay) = devices::remove_all(&device_links(root));
    errors.extend(stay.into_iter().map(|(path, source)| StartError::Pin { attempt: "detach", path, source }));
    for folder in [root.join(LINKS), root.to_owned()].into_iter().filter(|_| pins) {
        let removed =
            remove_folder(&folder).or_else(|error| if is_empty(&folder) { Ok(()) } else { Err(error) });
        errors.extend(removed.map_err(pin_error("remove", &folder)).err());
    }
    Ok(CleanupReport { pins, at_devices, errors })
}

/// Whether a folder is empty, which suffices in a container: there it is a mount, which stays.
fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// What programs at devices still have to serve.
#[derive(Debug, Default)]
pub struct DrainReport {
    /// Flows that continue with the remaining programs; 0: no client needs them.
    pub flows: u64,
    /// Conntrack entries for the SNAT ports of these flows and of ending ones: the next proxy must not use those ports.
    pub ports: ConntrackOutcome,
}

/// Leaves new clients to the next proxy from now on. Flows of outside clients continue, because no other proxy has
/// their backends.
///
/// Refuses while a daemon holds the pins. A daemon that starts serves all clients again.
pub fn drain(root: &Path) -> Result<DrainReport, StartError> {
    if !root.exists() {
        return Ok(DrainReport::default());
    }
    let pins = Pins {
        root: root.to_owned(),
        version: VERSION,
        generation: 0,
        highest: 0,
        leftover: None,
        lock: lock_root(root)?,
    };
    if !devices::has_any_attached(&pins.device_link_folder()) {
        return Ok(DrainReport::default());
    }
    let maps = pins.adopt_packets()?;
    if !maps.contains_key(&Map::PacketSettings) {
        let path = foreign_packet_folder(&pins).unwrap_or_else(|| pins.version_folder());
        return Err(StartError::OtherVersion { path });
    }
    let flows = FlowTable::new(&maps)?;
    // Ports are entered before the next proxy uses one, and again for clients that came meanwhile.
    add_port_entries(flows.iter_snat_flows());
    stop_new_flows(&maps)?;
    let ports = add_port_entries(flows.iter_snat_flows());
    detach_socket_programs(root).into_iter().next().map_or(Ok(()), Err)?;
    Ok(DrainReport { flows: flows.tally().in_use(), ports })
}

/// The folder of another version's packet maps; only that version can read them.
fn foreign_packet_folder(pins: &Pins) -> Option<PathBuf> {
    let entries = fs::read_dir(&pins.root).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| *path != pins.version_folder() && path.join(PACKETS).exists())
}

fn stop_new_flows(maps: &MapHandles) -> Result<(), StartError> {
    let map = find_handle(maps, Map::PacketSettings)?;
    let failed = |attempt| {
        move |error: libbpf_rs::Error| StartError::Map {
            attempt,
            map: Map::PacketSettings.name(),
            source: io::Error::other(format!("{error:#}")),
        }
    };
    let zero = 0_u32.to_ne_bytes();
    let found = map.lookup(&zero, MapFlags::ANY).map_err(failed("read"))?.unwrap_or_default();
    let settings = abi::from_bytes::<types::packet_settings>(&found).unwrap_or_default();
    let drains = types::packet_settings { drains: 1, ..settings };
    map.update(&zero, abi::as_bytes(&drains), MapFlags::ANY).map_err(failed("write"))
}

/// Detaches the socket programs, and collects errors.
fn detach_socket_programs(root: &Path) -> Vec<StartError> {
    let links = fs::read_dir(root.join(LINKS)).into_iter().flatten().flatten();
    let links = links.filter(|link| link.file_name() != DEVICE_LINKS);
    links.filter_map(|link| detach_link(&link.path()).err()).collect()
}

/// Detaches a link explicitly, because a link that only loses its pin detaches later. Then removes the pin.
fn detach_link(pin: &Path) -> Result<(), StartError> {
    let link = libbpf_rs::Link::open(pin);
    let detached = link.and_then(|link| link.detach());
    detached.map_err(|source| StartError::from_open(pin, source))?;
    fs::remove_file(pin).map_err(pin_error("remove", pin))
}
