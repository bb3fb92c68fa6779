//! Finds and removes our programs at devices, whichever daemon attached them.
//!
//! Invariant: it finds links by their pins, in any network namespace, and filters at each device of this one. Either is
//! enough to find a device.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::link::DeviceLink;
use super::xdp_attach::XDP_PIN;
use super::{DeviceHook, Devices, Direction, HookKind, clsact, link_layer, tcx};

impl Devices {
    /// The existing devices at which a former daemon left programs.
    pub(super) fn attached_indices(&self) -> Vec<u32> {
        let keys = self.entries.entries().unwrap_or_default().into_iter();
        let indices = keys.filter_map(|(key, _)| Some(u32::from_ne_bytes(key.as_ref().try_into().ok()?)));
        let mut all: Vec<u32> = match self.kind {
            HookKind::Tcx => pinned_devices(&self.folder).collect(),
            HookKind::Clsact => {
                indices.filter(|index| has_filter(*index)).chain(pinned_devices(&self.folder)).collect()
            }
        };
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The devices that have a folder of pins.
fn pinned_devices(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn has_filter(index: u32) -> bool {
    DeviceHook::tc_hooks(index).iter().any(|hook| clsact::program_at(hook).is_some())
}

/// Whether any device has a program of ours. Links count in any network namespace.
pub(crate) fn has_any_attached(folder: &Path) -> bool {
    libbpf_rs::set_print(None);
    let has_link = |hook: DeviceHook| {
        let pin = folder.join(hook.index.to_string()).join(hook.direction.name());
        DeviceLink::open(&pin).is_ok_and(|link| tcx::program_at(&link, &hook).is_some())
    };
    let has_xdp = |index: u32| {
        let link = DeviceLink::open(&folder.join(index.to_string()).join(XDP_PIN))
            .and_then(|link| link.attachment());
        link.is_ok_and(|attachment| attachment.device == index)
    };
    let has_any = |index: u32| has_xdp(index) || DeviceHook::for_device(index).into_iter().any(has_link);
    pinned_devices(folder).any(has_any) || link_layer::list_devices().into_iter().any(has_filter)
}

/// Removes our programs from all devices of this network namespace, and the links pinned in `folder`. Returns how many
/// it removed, and the errors.
pub(crate) fn remove_all(folder: &Path) -> (usize, Vec<(PathBuf, io::Error)>) {
    libbpf_rs::set_print(None);
    let names = Direction::ALL.map(Direction::name).into_iter().chain([XDP_PIN]);
    let folders = pinned_devices(folder).map(|index| folder.join(index.to_string()));
    let pins = folders.flat_map(|folder| names.clone().map(move |name| folder.join(name)));
    let links = pins.filter(|pin| pin.exists()).map(|pin| {
        let detached = DeviceLink::open(&pin).and_then(|link| link.detach());
        detached.map(|()| true).map_err(|error| (pin, error))
    });
    let filters = link_layer::list_devices().into_iter().flat_map(DeviceHook::tc_hooks).map(|hook| {
        clsact::remove_filter(&hook).map_err(|error| (PathBuf::from(format!("device {}", hook.index)), error))
    });
    let (mut removed, mut errors) = (0, Vec::new());
    for outcome in links.chain(filters) {
        match outcome {
            Ok(was_there) => removed += usize::from(was_there),
            Err(error) => errors.push(error),
        }
    }
    (removed, errors)
}
