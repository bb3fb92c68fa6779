//! The programs for frames at the drivers of all devices.
//!
//! Invariant: before a program goes, the programs of all devices know that its device sends nothing for them any more.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use super::{DeviceState, Devices, entry};
use crate::abi;
use crate::load::LinkLayer;

/// The name of the pin of the link at a device's driver.
pub(super) const XDP_PIN: &str = "xdp";

impl Devices {
    /// Puts the program at the driver where it is to be, or takes it away. Of a device without a name it is not known
    /// whether it is to be there: what a former daemon left stays.
    pub(super) fn apply_xdp(&mut self, place: &mut DeviceState) {
        if !place.device.name.is_empty() && place.xdp.must_detach(place.device.xdp) {
            self.detach_xdp(place);
        }
        let DeviceState { device, xdp, .. } = place;
        match self.xdp_program() {
            Ok(program) if device.name.is_empty() => xdp.replace_program(device.index, program),
            Err(_) if device.name.is_empty() => {}
            program => xdp.ensure_attached(device.xdp, device.index, program, &self.xdp_pin(device.index)),
        }
    }

    /// Puts back the program at the driver, and looks whether frames may still pass there.
    pub(super) fn repair_xdp(&mut self, place: &mut DeviceState) -> Option<String> {
        let is_due = place.next_foreign_check == 0;
        let DeviceState { device, xdp, .. } = &mut *place;
        if device.name.is_empty() {
            return None;
        }
        let (index, pin) = (device.index, self.xdp_pin(device.index));
        let is_mended = xdp.repair(device.xdp, index, self.xdp_program(), (&pin, is_due));
        if xdp.is_ineffective() {
            self.detach_xdp(place);
        }
        self.refresh_entry(place);
        is_mended.then(|| format!("{} {XDP_PIN}", place.device.name))
    }

    /// Looks at once whether frames may still pass at each driver that has the program.
    pub(crate) fn check_drivers(&mut self) {
        let mut places = std::mem::take(&mut self.attached_devices);
        for place in places.values_mut().filter(|place| place.xdp.is_attached()) {
            place.xdp.refresh_state(place.device.index);
            self.refresh_entry(place);
        }
        self.attached_devices = places;
    }

    /// Takes the program from the driver. Before that the programs of other devices are told that it sends nothing for
    /// them any more.
    pub(super) fn detach_xdp(&mut self, place: &mut DeviceState) {
        let index = place.device.index;
        if let Some(told) = self.entries.get(&index.to_ne_bytes())
            && let Some(stopped) = entry::clear_xdp_flag(&told)
        {
            let _ = self.entries.put(&index.to_ne_bytes(), abi::as_bytes(&stopped));
        }
        place.written_entry.clear();
        place.xdp.detach(&self.xdp_pin(index));
    }

    fn xdp_program(&self) -> Result<BorrowedFd<'_>, &String> {
        let of_frames = self.programs.iter().find(|pair| pair.layer == LinkLayer::Ethernet);
        of_frames.map_or(Err(&self.no_xdp_reason), |pair| pair.xdp.as_ref().map(AsFd::as_fd))
    }

    pub(super) fn xdp_pin(&self, index: u32) -> PathBuf {
        self.folder.join(index.to_string()).join(XDP_PIN)
    }
}
