//! Attaches XDP programs to the drivers of all devices.
//!
//! Invariant: before a program detaches, its device's entry forbids redirecting frames to it.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use super::{DeviceState, Devices, XdpUse, entry};
use crate::abi;
use crate::load::XdpProgram;

pub(super) const XDP_PIN: &str = "xdp";

impl Devices {
    /// Attaches or detaches the XDP program as wanted. A device without a name keeps a former daemon's program.
    pub(super) fn apply_xdp(&mut self, state: &mut DeviceState) {
        if !state.device.name.is_empty() && state.xdp.must_detach(state.device.xdp) {
            self.detach_xdp(state);
        }
        let DeviceState { device, xdp, .. } = state;
        if !device.name.is_empty() && device.xdp == XdpUse::Never {
            xdp.disable();
        } else if !device.name.is_empty() {
            xdp.ensure_attached(device.index, self.xdp_program(), &self.xdp_pin(device.index));
        } else if xdp.is_attached()
            && let Ok(program) = self.xdp_program()
        {
            xdp.replace_program(device.index, program);
        }
    }

    /// Repairs the XDP program, and checks whether it may still redirect frames.
    pub(super) fn repair_xdp(&mut self, state: &mut DeviceState) -> Option<String> {
        let is_due = state.next_foreign_check == 0;
        let DeviceState { device, xdp, .. } = &mut *state;
        if device.name.is_empty() {
            return None;
        }
        let (index, pin) = (device.index, self.xdp_pin(device.index));
        let is_repaired =
            device.xdp != XdpUse::Never && xdp.repair(index, self.xdp_program(), (&pin, is_due));
        if xdp.is_ineffective() {
            self.detach_xdp(state);
        }
        self.refresh_entry(state);
        is_repaired.then(|| format!("{} {XDP_PIN}", state.device.name))
    }

    /// Checks at once whether each driver with a program may still redirect frames.
    pub(crate) fn check_drivers(&mut self) {
        let mut states = std::mem::take(&mut self.attached_devices);
        for state in states.values_mut().filter(|state| state.xdp.is_attached()) {
            state.xdp.refresh_state(state.device.index);
            self.refresh_entry(state);
        }
        self.attached_devices = states;
    }

    /// Detaches the program from the driver. Before that it clears the flag in the entry, so that other devices'
    /// programs stop redirecting to this one.
    pub(super) fn detach_xdp(&mut self, state: &mut DeviceState) {
        let index = state.device.index;
        if let Some(value) = self.entries.get(&index.to_ne_bytes())
            && let Some(stopped) = entry::clear_xdp_flag(&value)
        {
            let _ = self.entries.put(&index.to_ne_bytes(), abi::as_bytes(&stopped));
        }
        state.written_entry.clear();
        state.xdp.detach(&self.xdp_pin(index));
    }

    /// The program for drivers, which loads when the first device wants it. An error: why there is none.
    fn xdp_program(&self) -> Result<BorrowedFd<'_>, &String> {
        let program = self.programs.iter().find_map(|programs| programs.xdp.as_ref());
        program.map_or(Err(&self.no_xdp_reason), XdpProgram::load)
    }

    pub(super) fn xdp_pin(&self, index: u32) -> PathBuf {
        self.folder.join(index.to_string()).join(XDP_PIN)
    }
}
