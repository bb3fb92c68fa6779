//! The queue of work at devices, and each step of it.
//!
//! Invariant: a step waits for the kernel once. Attaching or detaching a program takes about ten milliseconds, because
//! the kernel waits until no processor runs the old one; the caller does other work between steps. The order: devices
//! that lead to other hosts, checks (cheap, they find what is missing), devices of pods, detaching. A change to the
//! entry of an attached device is written at once.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::hook::DeviceHook;
use super::{Device, DeviceSide, DeviceState, Devices, HookKind, capacity, clsact, hook_error, link_layer};
use crate::bpf_syscall;

/// How many devices may wait to be detached. Each keeps files open until then, and pods that keep coming and going
/// would delay it without end.
const LEAVING_MAX: usize = 64;

/// The pending work at wanted devices.
#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    jobs: BTreeSet<AttachJob>,
    // The index at which the check round continues; `None`: no round is running.
    round: Option<u32>,
}

/// A device to attach; the most urgent sorts first. An attached device usually needs only a new entry, so it comes
/// before a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AttachJob {
    is_pod_device: bool,
    is_new: bool,
    index: u32,
}

impl WorkQueue {
    fn add_job(&mut self, state: &DeviceState) {
        let (is_pod_device, is_new) = (capacity::is_pod_device(&state.device), !state.attached);
        self.jobs.insert(AttachJob { is_pod_device, is_new, index: state.device.index });
    }

    fn has_job(&self, index: u32) -> bool {
        possible_jobs(index).iter().any(|put| self.jobs.contains(put))
    }

    fn remove_jobs(&mut self, index: u32) {
        for put in possible_jobs(index) {
            self.jobs.remove(&put);
        }
    }
}

fn possible_jobs(index: u32) -> [AttachJob; 4] {
    [(false, false), (false, true), (true, false), (true, true)].map(|(is_pod_device, is_new)| AttachJob {
        is_pod_device,
        is_new,
        index,
    })
}

/// The progress of attaching all programs of a device.
#[derive(Debug)]
pub(super) struct AttachAttempt {
    // The hooks still to attach, the next one last.
    missing: Vec<DeviceHook>,
    is_entry_written: bool,
    outcome: io::Result<()>,
}

impl Devices {
    /// Sets the devices that have programs. [`Self::run_steps`] does the work; [`Self::status`] shows the progress.
    pub(crate) fn set_devices(&mut self, devices: &[Device]) {
        let has_room = |index| self.attached_devices.contains_key(&index);
        let (wanted, left_out) = capacity::admit_devices(devices, has_room, self.pods_max);
        self.rejected = left_out;
        let is_gone = |index: &u32| !wanted.contains_key(index);
        let gone: Vec<u32> = self.attached_devices.keys().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|index| self.schedule_detach(index));
        self.remove_unknown(&wanted);
        wanted.into_values().for_each(|device| self.schedule_attach(device));
    }

    /// Schedules a device's detaching for when nothing else is to do. A pod's replies take the stack from now on.
    fn schedule_detach(&mut self, index: u32) {
        let Some(mut state) = self.attached_devices.remove(&index) else { return };
        self.queue.remove_jobs(index);
        state.attempt = None;
        if state.device.side == DeviceSide::LocalPods {
            self.remove_entry(&mut state);
        }
        self.leaving.insert(index, state);
    }

    /// Schedules a device's attaching. Attached programs see a changed entry at once.
    fn schedule_attach(&mut self, device: &Device) {
        let known =
            self.attached_devices.remove(&device.index).or_else(|| self.leaving.remove(&device.index));
        let mut state = known.unwrap_or_else(|| self.open_device(device.clone()));
        if state.attached && state.device == *device {
            state.schedule_check();
        } else {
            // A local pods' device has one program; those of the former side would stay next to it.
            state.must_detach_first |=
                state.device.side != DeviceSide::LocalPods && device.side == DeviceSide::LocalPods;
            let is_same_side = state.device.side == device.side;
            (state.device, state.attempt) = (device.clone(), None);
            if state.attached && is_same_side {
                self.refresh_entry(&mut state);
            }
            self.queue.add_job(&state);
        }
        self.attached_devices.insert(device.index, state);
    }

    /// Begins a round of checks at all devices, unless one is running. It finds programs that something else removed,
    /// and failed devices.
    pub(crate) fn begin_check_round(&mut self) {
        self.queue.round.get_or_insert(0);
    }

    /// Takes the hooks repaired since the last call.
    pub(crate) fn take_repaired(&mut self) -> Vec<String> {
        std::mem::take(&mut self.repaired_hooks)
    }

    /// Runs at least one step, until `is_over`. `true`: work is left.
    pub(crate) fn run_steps(&mut self, is_over: impl Fn() -> bool) -> bool {
        while self.run_step() {
            if is_over() {
                break;
            }
        }
        self.queue.round.is_some() || !self.queue.jobs.is_empty() || !self.leaving.is_empty()
    }

    /// Whether a device that leads to other hosts still waits for its programs.
    pub(crate) fn awaits_uplink(&self) -> bool {
        self.queue.jobs.first().is_some_and(|put| !put.is_pod_device)
    }

    /// Runs the next step. `false`: there is none.
    fn run_step(&mut self) -> bool {
        let put = self.queue.jobs.first().copied();
        match (put, self.queue.round) {
            (Some(put), _) if !put.is_pod_device => self.run_attach(put),
            (_, Some(from)) => self.run_check(from),
            (Some(put), None) if self.leaving.len() <= LEAVING_MAX => self.run_attach(put),
            _ => return self.run_detach(),
        }
        true
    }

    fn run_check(&mut self, from: u32) {
        let next = self.attached_devices.range(from..).next().map(|(index, _)| *index);
        self.queue.round = next.and_then(|index| index.checked_add(1));
        let _ = next.map(|index| self.with_device(index, Self::check_device));
    }

    fn run_attach(&mut self, put: AttachJob) {
        if self.with_device(put.index, Self::attach_next).unwrap_or(true) {
            self.queue.jobs.remove(&put);
        }
    }

    /// `false`: no device waits to be detached.
    fn run_detach(&mut self) -> bool {
        let Some((index, mut state)) = self.leaving.pop_first() else { return false };
        if !self.detach_next(&mut state) {
            self.leaving.insert(index, state);
        }
        true
    }

    fn with_device<T>(
        &mut self,
        index: u32,
        act: impl FnOnce(&mut Self, &mut DeviceState) -> T,
    ) -> Option<T> {
        let mut state = self.attached_devices.remove(&index)?;
        let done = act(self, &mut state);
        self.attached_devices.insert(index, state);
        Some(done)
    }

    /// Checks the programs of a device, and queues what to repair.
    fn check_device(&mut self, state: &mut DeviceState) {
        if self.lacks_hook(&state.device) {
            return;
        }
        if state.is_check_due() && !self.queue.has_job(state.device.index) {
            let broken: Vec<_> =
                self.device_hooks(&state.device).filter(|hook| !self.is_intact(state, *hook)).collect();
            if !broken.is_empty() || !state.attached {
                state.broken = if state.attached { broken } else { Vec::new() };
                self.queue.add_job(state);
            }
        }
        if let Some(repaired) = self.repair_xdp(state) {
            self.record_repaired([repaired]);
        }
        if state.next_foreign_check == 0 {
            self.update_foreign_count(state);
        }
        state.next_foreign_check = state.next_foreign_check.saturating_sub(1);
    }

    fn record_repaired(&mut self, repaired: impl IntoIterator<Item = String>) {
        let before = self.repaired_hooks.len();
        self.repaired_hooks.extend(repaired);
        self.repaired = self.repaired.saturating_add((self.repaired_hooks.len() - before) as u64);
    }

    /// Writes a device's entry, then attaches its programs. The device's state keeps a failure.
    pub(super) fn attach_device(&mut self, state: &mut DeviceState) {
        state.attempt = None;
        while !self.attach_next(state) {}
    }

    /// Attaches one program of a device. `true`: it was the last one.
    fn attach_next(&mut self, state: &mut DeviceState) -> bool {
        if state.must_detach_first {
            state.must_detach_first = !self.detach_next(state);
            return false;
        }
        if self.lacks_hook(&state.device) {
            return true;
        }
        let mut attempt = state.attempt.take().unwrap_or_else(|| self.begin_attempt(state));
        if let Some(hook) = attempt.missing.pop() {
            let done = self.attach_program(state, hook);
            let tried = if self.is_attached(state, hook) { "pin" } else { "attach" };
            let done = done.map_err(|error| hook_error(tried, hook.direction, &error));
            attempt.outcome = attempt.outcome.and(done);
        }
        if attempt.missing.is_empty() {
            self.finish_attempt(state, attempt);
            return true;
        }
        state.attempt = Some(attempt);
        false
    }

    fn begin_attempt(&mut self, state: &mut DeviceState) -> AttachAttempt {
        let index = state.device.index;
        state.layer = link_layer::query_layer(index).map_err(|error| error.to_string());
        let id = |hook| bpf_syscall::object_id(self.select_program(state, hook).ok()?).ok();
        state.own = DeviceHook::for_device(index).map(id);
        let outcome = self.write_entry(state);
        let is_entry_written = outcome.is_ok();
        let mut missing = Vec::new();
        if is_entry_written {
            self.detach_spare(state);
            missing.extend(self.device_hooks(&state.device).filter(|hook| !self.is_intact(state, *hook)));
            missing.reverse();
        }
        AttachAttempt { missing, is_entry_written, outcome }
    }

    fn finish_attempt(&mut self, state: &mut DeviceState, attempt: AttachAttempt) {
        let is_attached = self.device_hooks(&state.device).all(|hook| self.is_attached(state, hook));
        state.attached = attempt.is_entry_written && is_attached;
        state.unpinned = state.attached && attempt.outcome.is_err();
        state.error = attempt.outcome.err().map(|error| error.to_string());
        self.apply_xdp(state);
        match state.foreign_count {
            None if state.device.fast_path => self.update_foreign_count(state),
            _ => self.refresh_entry(state),
        }
        let broken = std::mem::take(&mut state.broken);
        let repaired = broken.into_iter().filter(|hook| state.attached && self.is_intact(state, *hook));
        let repaired = repaired.map(|hook| format!("{} {}", state.device.name, hook.direction.name()));
        self.record_repaired(repaired.collect::<Vec<_>>());
    }

    /// Detaches one program of a device. `true`: none is left, and the device has no entry. Programs that fail to
    /// detach now do so when their link closes.
    fn detach_next(&mut self, state: &mut DeviceState) -> bool {
        state.attached = false;
        if state.xdp.is_attached() {
            self.detach_xdp(state);
            return false;
        }
        if let Some(link) = state.links.iter_mut().find_map(Option::take) {
            let _ = link.detach();
            return false;
        }
        let index = state.device.index;
        if self.kind == HookKind::Clsact {
            for hook in DeviceHook::tc_hooks(index) {
                let _ = clsact::remove_filter(&hook);
            }
        }
        let _ = fs::remove_dir_all(self.folder.join(index.to_string()));
        self.remove_entry(state);
        true
    }

    fn remove_entry(&mut self, state: &mut DeviceState) {
        let _ = self.entries.remove(&state.device.index.to_ne_bytes());
        state.written_entry.clear();
        (state.attached, state.foreign_count) = (false, None);
    }
}
