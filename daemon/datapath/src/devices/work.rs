//! What is still to be done at devices, in which order, and each step of it.
//!
//! Invariant: a step waits for the kernel once. The kernel takes some ten milliseconds to put a program at a device or
//! to take one away, because it waits until no processor runs what was there before; the caller does other work between
//! two steps. Devices that lead to other hosts come first. Then come looks, which are cheap and find what is missing,
//! then devices of pods, and withdrawals last. What the programs know of a device that has them is told at once.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::spot::Spot;
use super::{Device, DeviceState, Devices, HookKind, Side, clsact, failed, link_layer, room};
use crate::bpf_call;

/// So many devices may wait for others before their programs are taken away. Each keeps open files until then, and pods
/// that come and go all the time would put off the end of each other.
const LEAVING_MAX: usize = 64;

/// What is still to be done at devices that are wanted.
#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    puts: BTreeSet<Put>,
    // The number from which the round of looks goes on; `None`: no round is under way.
    round: Option<u32>,
}

/// A device that is to get its programs; the most urgent one is the first in order. A device that has programs already
/// needs no more than other words as a rule, and comes before one that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Put {
    is_pod_device: bool,
    is_new: bool,
    index: u32,
}

impl WorkQueue {
    fn add(&mut self, place: &DeviceState) {
        let (is_pod_device, is_new) = (room::is_pod_device(&place.device), !place.attached);
        self.puts.insert(Put { is_pod_device, is_new, index: place.device.index });
    }

    fn has(&self, index: u32) -> bool {
        puts(index).iter().any(|put| self.puts.contains(put))
    }

    fn forget(&mut self, index: u32) {
        for put in puts(index) {
            self.puts.remove(&put);
        }
    }
}

/// Every way in which a device may stand in the queue.
fn puts(index: u32) -> [Put; 4] {
    [(false, false), (false, true), (true, false), (true, true)].map(|(is_pod_device, is_new)| Put {
        is_pod_device,
        is_new,
        index,
    })
}

/// The attempt to put all programs of a device in place, as far as it has come.
#[derive(Debug)]
pub(super) struct Attempt {
    // Where programs are still to be attached, the next one last.
    missing: Vec<Spot>,
    is_told: bool,
    outcome: io::Result<()>,
}

impl Devices {
    /// Notes that programs are to be at these devices, and at no others. [`Self::go_on`] does what follows from it;
    /// [`Self::status`] tells how far that has come.
    pub(crate) fn set(&mut self, devices: &[Device]) {
        let has_room = |index| self.places.contains_key(&index);
        let (wanted, left_out) = room::admit(devices, has_room, self.pods_max);
        self.left_out = left_out;
        let is_gone = |index: &u32| !wanted.contains_key(index);
        let gone: Vec<u32> = self.places.keys().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|index| self.leave(index));
        self.forget_unknown(&wanted);
        wanted.into_values().for_each(|device| self.want(device));
    }

    /// Has a device lose its programs when nothing else is to be done. Until then, answers of pods behind it go through
    /// the stack.
    fn leave(&mut self, index: u32) {
        let Some(mut place) = self.places.remove(&index) else { return };
        self.work.forget(index);
        place.attempt = None;
        if place.device.side == Side::Near {
            self.forget_device(&mut place);
        }
        self.leaving.insert(index, place);
    }

    /// Has a device get its programs. Programs that are there already learn at once what has changed.
    fn want(&mut self, device: &Device) {
        let known = self.places.remove(&device.index).or_else(|| self.leaving.remove(&device.index));
        let mut place = known.unwrap_or_else(|| self.place(device.clone()));
        if place.attached && place.device == *device {
            place.look_soon();
        } else {
            // The programs of another side would stay beside the only one that such a device has.
            place.is_to_be_emptied |= place.device.side != Side::Near && device.side == Side::Near;
            let is_same_side = place.device.side == device.side;
            (place.device, place.attempt) = (device.clone(), None);
            if place.attached && is_same_side {
                self.tell_news(&mut place);
            }
            self.work.add(&place);
        }
        self.places.insert(device.index, place);
    }

    /// Begins a round of looks at all devices, unless one is under way: it finds what was taken away from outside and
    /// what failed.
    pub(crate) fn begin_round(&mut self) {
        self.work.round.get_or_insert(0);
    }

    /// Takes the hooks at which something was put back since this was called last.
    pub(crate) fn take_mended(&mut self) -> Vec<String> {
        std::mem::take(&mut self.mended)
    }

    /// Does what is to be done, at least one step, until `is_over`. `true`: there is more to do.
    pub(crate) fn go_on(&mut self, is_over: impl Fn() -> bool) -> bool {
        while self.take_step() {
            if is_over() {
                break;
            }
        }
        self.work.round.is_some() || !self.work.puts.is_empty() || !self.leaving.is_empty()
    }

    /// Whether a device that leads to other hosts still waits for its programs.
    pub(crate) fn awaits_uplink(&self) -> bool {
        self.work.puts.first().is_some_and(|put| !put.is_pod_device)
    }

    /// Takes the next step. `false`: there is nothing to do.
    fn take_step(&mut self) -> bool {
        let put = self.work.puts.first().copied();
        match (put, self.work.round) {
            (Some(put), _) if !put.is_pod_device => self.take_put(put),
            (_, Some(from)) => self.take_look(from),
            (Some(put), None) if self.leaving.len() <= LEAVING_MAX => self.take_put(put),
            _ => return self.take_leaving(),
        }
        true
    }

    fn take_look(&mut self, from: u32) {
        let next = self.places.range(from..).next().map(|(index, _)| *index);
        self.work.round = next.and_then(|index| index.checked_add(1));
        let _ = next.map(|index| self.at(index, Self::look_at));
    }

    fn take_put(&mut self, put: Put) {
        if self.at(put.index, Self::put_some).unwrap_or(true) {
            self.work.puts.remove(&put);
        }
    }

    /// `false`: no device waits to lose its programs.
    fn take_leaving(&mut self) -> bool {
        let Some((index, mut place)) = self.leaving.pop_first() else { return false };
        if !self.withdraw_some(&mut place) {
            self.leaving.insert(index, place);
        }
        true
    }

    fn at<T>(&mut self, index: u32, act: impl FnOnce(&mut Self, &mut DeviceState) -> T) -> Option<T> {
        let mut place = self.places.remove(&index)?;
        let done = act(self, &mut place);
        self.places.insert(index, place);
        Some(done)
    }

    /// Looks whether the programs of a device are there, and notes what is to be put back.
    fn look_at(&mut self, place: &mut DeviceState) {
        if self.has_no_hook_for(&place.device) {
            return;
        }
        if place.is_due() && !self.work.has(place.device.index) {
            let broken: Vec<_> =
                self.spots(&place.device).filter(|spot| !self.is_right(place, *spot)).collect();
            if !broken.is_empty() || !place.attached {
                place.broken = if place.attached { broken } else { Vec::new() };
                self.work.add(place);
            }
        }
        if let Some(mended) = self.mend_xdp(place) {
            self.note_mended([mended]);
        }
        if place.others_again == 0 {
            self.count_others(place);
        }
        place.others_again = place.others_again.saturating_sub(1);
    }

    fn note_mended(&mut self, mended: impl IntoIterator<Item = String>) {
        let before = self.mended.len();
        self.mended.extend(mended);
        self.repaired = self.repaired.saturating_add((self.mended.len() - before) as u64);
    }

    /// Tells the programs what they have to know of a device, then attaches them there. A failure is kept with the
    /// device.
    pub(super) fn put(&mut self, place: &mut DeviceState) {
        place.attempt = None;
        while !self.put_some(place) {}
    }

    /// Takes one step towards having all programs of a device in place. `true`: it was the last one.
    fn put_some(&mut self, place: &mut DeviceState) -> bool {
        if place.is_to_be_emptied {
            place.is_to_be_emptied = !self.withdraw_some(place);
            return false;
        }
        if self.has_no_hook_for(&place.device) {
            return true;
        }
        let mut attempt = place.attempt.take().unwrap_or_else(|| self.begin(place));
        if let Some(spot) = attempt.missing.pop() {
            let done = self.attach_at(place, spot);
            let tried = if self.runs(place, spot) { "pin" } else { "attach" };
            let done = done.map_err(|error| failed(tried, spot.direction, &error));
            attempt.outcome = attempt.outcome.and(done);
        }
        if attempt.missing.is_empty() {
            self.finish(place, attempt);
            return true;
        }
        place.attempt = Some(attempt);
        false
    }

    fn begin(&mut self, place: &mut DeviceState) -> Attempt {
        let index = place.device.index;
        place.layer = link_layer::layer_of(index).map_err(|error| error.to_string());
        let number = |spot| bpf_call::program_number(self.program(place, spot).ok()?).ok();
        place.own = Spot::all(index).map(number);
        let outcome = self.tell(place);
        let is_told = outcome.is_ok();
        let mut missing = Vec::new();
        if is_told {
            self.take_spare_off(place);
            missing.extend(self.spots(&place.device).filter(|spot| !self.is_right(place, *spot)));
            missing.reverse();
        }
        Attempt { missing, is_told, outcome }
    }

    fn finish(&mut self, place: &mut DeviceState, attempt: Attempt) {
        let is_there = self.spots(&place.device).all(|spot| self.runs(place, spot));
        place.attached = attempt.is_told && is_there;
        place.unpinned = place.attached && attempt.outcome.is_err();
        place.error = attempt.outcome.err().map(|error| error.to_string());
        self.put_xdp(place);
        match place.others {
            None if place.device.shortcut => self.count_others(place),
            _ => self.tell_news(place),
        }
        let broken = std::mem::take(&mut place.broken);
        let mended = broken.into_iter().filter(|spot| place.attached && self.is_right(place, *spot));
        let mended = mended.map(|spot| format!("{} {}", place.device.name, spot.direction.name()));
        self.note_mended(mended.collect::<Vec<_>>());
    }

    /// Takes one program of a device away. `true`: none is left, and the programs know the device no more. What the
    /// kernel does not detach now is detached when its link goes.
    fn withdraw_some(&mut self, place: &mut DeviceState) -> bool {
        place.attached = false;
        if place.xdp.is_there() {
            self.clear_driver(place);
            return false;
        }
        if let Some(link) = place.links.iter_mut().find_map(Option::take) {
            let _ = link.detach();
            return false;
        }
        let index = place.device.index;
        if self.kind == HookKind::Clsact {
            for spot in Spot::both(index) {
                let _ = clsact::remove(&spot);
            }
        }
        let _ = fs::remove_dir_all(self.folder.join(index.to_string()));
        self.forget_device(place);
        true
    }

    /// Has the programs know a device no more.
    fn forget_device(&mut self, place: &mut DeviceState) {
        let _ = self.entries.remove(&place.device.index.to_ne_bytes());
        place.told.clear();
        (place.attached, place.others) = (false, None);
    }
}
