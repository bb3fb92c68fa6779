//! The programs for frames at the drivers of all devices.
//!
//! Invariant: before a program goes, the programs of all devices know that its device sends nothing for them any more.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use super::{DeviceState, Devices, told};
use crate::abi;
use crate::load::Layer;

/// The name of the pin of the link at a device's driver.
pub(super) const XDP: &str = "xdp";

impl Devices {
    /// Puts the program at the driver where it is to be, or takes it away. Of a device without a name it is not known
    /// whether it is to be there: what a former daemon left stays.
    pub(super) fn put_xdp(&mut self, place: &mut DeviceState) {
        if !place.device.name.is_empty() && place.xdp.is_to_go(place.device.xdp) {
            self.clear_driver(place);
        }
        let DeviceState { device, xdp, .. } = place;
        match self.program_of_xdp() {
            Ok(program) if device.name.is_empty() => xdp.replace(device.index, program),
            Err(_) if device.name.is_empty() => {}
            program => xdp.put(device.xdp, device.index, program, &self.pin_of_xdp(device.index)),
        }
    }

    /// Puts back the program at the driver, and looks whether frames may still pass there.
    pub(super) fn mend_xdp(&mut self, place: &mut DeviceState) -> Option<String> {
        let is_due = place.others_again == 0;
        let DeviceState { device, xdp, .. } = &mut *place;
        if device.name.is_empty() {
            return None;
        }
        let (index, pin) = (device.index, self.pin_of_xdp(device.index));
        let is_mended = xdp.mend(device.xdp, index, self.program_of_xdp(), (&pin, is_due));
        if xdp.is_in_vain() {
            self.clear_driver(place);
        }
        self.tell_news(place);
        is_mended.then(|| format!("{} {XDP}", place.device.name))
    }

    /// Looks at once whether frames may still pass at each driver that has the program.
    pub(crate) fn look_at_drivers(&mut self) {
        let mut places = std::mem::take(&mut self.places);
        for place in places.values_mut().filter(|place| place.xdp.is_there()) {
            place.xdp.look_now(place.device.index);
            self.tell_news(place);
        }
        self.places = places;
    }

    /// Takes the program from the driver. Before that the programs of other devices are told that it sends nothing for
    /// them any more.
    pub(super) fn clear_driver(&mut self, place: &mut DeviceState) {
        let index = place.device.index;
        if let Some(told) = self.entries.get(&index.to_ne_bytes())
            && let Some(stopped) = told::without_frames(&told)
        {
            let _ = self.entries.put(&index.to_ne_bytes(), abi::bytes(&stopped));
        }
        place.told.clear();
        place.xdp.withdraw(&self.pin_of_xdp(index));
    }

    fn program_of_xdp(&self) -> Result<BorrowedFd<'_>, &String> {
        let of_frames = self.programs.iter().find(|pair| pair.layer == Layer::Ethernet);
        of_frames.map_or(Err(&self.no_frames), |pair| pair.xdp.as_ref().map(AsFd::as_fd))
    }

    pub(super) fn pin_of_xdp(&self, index: u32) -> PathBuf {
        self.folder.join(index.to_string()).join(XDP)
    }
}
