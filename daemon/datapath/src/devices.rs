//! The programs of packets, at the devices that they are for.
//!
//! Invariant: a device that has programs of ours has them at every moment; new ones replace the old ones in one step.
//! What the programs have to know of a device is written before they are there, and wiped when they are gone. One
//! device that fails stops no other, and is tried again. Programs of others stay, and still run. A device that was not
//! named is left alone.

mod clsact;
mod driver;
mod frames;
mod lengths;
mod link;
mod link_layer;
mod notices;
mod remains;
mod room;
mod spot;
mod tcx;
mod told;
mod work;
mod xdp;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use holdfast_status::datapath::Features;

use crate::abi;
use crate::load::{Layer, PacketPrograms};
use crate::table::Table;

pub(crate) use holdfast_status::datapath::{
    Device, DeviceStatus, HookKind, ShortcutState, Side, XdpState, XdpUse,
};
pub(crate) use lengths::knows_lengths;
pub(crate) use link_layer::layers_of;
pub use notices::driver_notices;
pub(crate) use remains::{are_anywhere, remove_all};
pub use room::POD_DEVICES_MAX;
pub(crate) use tcx::is_there as has_tcx;
pub(crate) use told::value_of;

#[cfg(test)]
pub(crate) use driver::{knows_tags, sends_frames};

use link::Link;
use spot::{Direction, Spot};
use work::{Attempt, WorkQueue};

/// The status of a device that found no room.
fn status_without_room(device: &Device) -> DeviceStatus {
    DeviceStatus {
        device: device.clone(),
        attached: false,
        unpinned: false,
        others: 0,
        shortcut: ShortcutState::NotAttached,
        xdp: XdpState::Unwanted,
        error: Some(room::NO_ROOM.to_owned()),
    }
}

const fn hook_kind(features: Features) -> HookKind {
    if features.tcx { HookKind::Tcx } else { HookKind::Clsact }
}

/// One device and what is known of it.
#[derive(Debug)]
struct DeviceState {
    device: Device,
    // The links in each direction, where there is tcx.
    links: [Option<Link>; 3],
    xdp: xdp::Place,
    // The numbers of the programs that are to be there in each direction, noted when they were last put there: to ask
    // the kernel each second what kind of device it is would be most of the work of a node on which nothing happens.
    own: [Option<u32>; 3],
    attached: bool,
    // Where they serve all the same: whether something could not be pinned.
    unpinned: bool,
    // `None` while they could not be counted.
    others: Option<usize>,
    // In how many rounds programs of others are counted again, and how many rounds lay before the last count.
    others_again: u32,
    others_gap: u32,
    // What the programs were told of the device.
    told: Vec<u8>,
    error: Option<String>,
    // Where a packet begins, or why that is not known, as of the last attempt to put programs there.
    layer: Result<Layer, String>,
    // The attempt to put programs there that is under way.
    attempt: Option<Attempt>,
    // Where something was taken away, until it is put back.
    broken: Vec<Spot>,
    // Whether the programs that are there are to go before others come.
    is_to_be_emptied: bool,
}

impl DeviceState {
    /// How many rounds lie before the next count of others' programs. Of devices of pods that are there already at a
    /// start, not all are counted in the same round for ever.
    fn next_gap(&self) -> u32 {
        let doubled = (2 * self.others_gap).max(1);
        if !matches!(self.device.side, Side::Near | Side::Pod) {
            OTHERS_AGAIN
        } else if doubled < OTHERS_AGAIN_NEAR {
            doubled
        } else if self.others_gap < OTHERS_AGAIN_NEAR {
            OTHERS_AGAIN_NEAR + self.device.index % OTHERS_AGAIN_NEAR
        } else {
            OTHERS_AGAIN_NEAR
        }
    }

    fn link(&mut self, direction: Direction) -> &mut Option<Link> {
        let [way_in, way_out, back] = &mut self.links;
        match direction {
            Direction::In => way_in,
            Direction::Out => way_out,
            Direction::Back => back,
        }
    }

    /// Has the device looked at in the next round, where it is to have the program at its driver: something changed.
    fn look_soon(&mut self) {
        if self.device.xdp != XdpUse::Never {
            self.others_again = 0;
        }
    }

    /// Whether it is looked at in this round. Devices that lead to pods are many, and packets that miss the program of
    /// such a device go through the stack.
    fn is_due(&self) -> bool {
        self.device.side != Side::Near || !self.attached || self.others_again.is_multiple_of(OTHERS_AGAIN)
    }
}

/// How many rounds lie between two counts of others' programs. To ask for filters takes a listing under a lock that all
/// changes of devices share, so each tenth round will do. Devices that lead to pods are many: once a minute will do,
/// and sooner while they are new, because a network plug-in may come to them after us.
const OTHERS_AGAIN: u32 = 10;
const OTHERS_AGAIN_NEAR: u32 = 60;

/// All devices with programs of ours.
#[derive(Debug)]
pub(crate) struct Devices {
    kind: HookKind,
    // Whether packets can pass by the stack.
    lengths: bool,
    // The folder of the links' pins.
    folder: PathBuf,
    programs: Vec<PacketPrograms>,
    // Why there is no program for frames, while none is loaded.
    no_frames: String,
    // The map by which programs know a device.
    entries: Table,
    places: BTreeMap<u32, DeviceState>,
    // Devices that are wanted no more, and still have programs.
    leaving: BTreeMap<u32, DeviceState>,
    work: WorkQueue,
    // At which hooks something was put back since this was asked last.
    mended: Vec<String>,
    // Devices of pods that found no room.
    left_out: Vec<Device>,
    // How many devices of pods have room.
    pods_max: usize,
    repaired: u64,
}

impl Devices {
    /// Takes over what a former daemon left. Where the map knows the device already the programs are replaced at once;
    /// programs at other devices stay until [`Self::set`] says what becomes of them.
    pub(crate) fn adopt(
        features: Features,
        folder: &Path,
        programs: Vec<PacketPrograms>,
        entries: Table,
    ) -> Self {
        let (kind, lengths, folder) = (hook_kind(features), features.lengths, folder.to_owned());
        let places = BTreeMap::new();
        let no_frames = "its program is not loaded".to_owned();
        let (left_out, pods_max) = (Vec::new(), room::pod_devices_max());
        let mut devices = Self {
            kind,
            lengths,
            folder,
            programs,
            no_frames,
            entries,
            places,
            leaving: BTreeMap::new(),
            work: WorkQueue::default(),
            mended: Vec::new(),
            left_out,
            pods_max,
            repaired: 0,
        };
        for index in devices.left() {
            let known = devices.entries.get(&index.to_ne_bytes());
            let mut place = devices.place(told::unnamed(index, known.as_deref()));
            if known.is_some() {
                devices.put(&mut place);
            }
            devices.places.insert(index, place);
        }
        devices
    }

    fn place(&self, device: Device) -> DeviceState {
        let opened = |spot: Spot| Link::open(&self.pin(spot)).ok();
        let xdp = xdp::Place::open(&self.pin_of_xdp(device.index));
        let links = match self.kind {
            HookKind::Tcx => Spot::all(device.index).map(opened),
            HookKind::Clsact => [None, None, None],
        };
        DeviceState {
            device,
            links,
            xdp,
            own: [None; 3],
            attached: false,
            unpinned: false,
            others: None,
            others_again: 0,
            others_gap: 0,
            told: Vec::new(),
            error: None,
            layer: Err("it was not looked at yet".to_owned()),
            attempt: None,
            broken: Vec::new(),
            is_to_be_emptied: false,
        }
    }

    /// Puts other programs at all devices that have some. Where that fails the former program stays, and a round of
    /// looks tries again. Before each device `next` is called.
    pub(crate) fn update(&mut self, programs: Vec<PacketPrograms>, next: impl Fn()) {
        self.programs = programs;
        let (mut places, mut leaving) = (std::mem::take(&mut self.places), std::mem::take(&mut self.leaving));
        let has_some = |place: &&mut DeviceState| place.own.iter().any(Option::is_some);
        for place in places.values_mut().chain(leaving.values_mut()).filter(has_some) {
            next();
            self.put(place);
        }
        (self.places, self.leaving) = (places, leaving);
    }

    /// Counts the programs of others, and tells our own if that decides whether packets pass by the stack.
    fn count_others(&mut self, place: &mut DeviceState) {
        place.others_gap = place.next_gap();
        place.others_again = place.others_gap;
        place.others = self.others(place).ok();
        self.tell_news(place);
    }

    /// Where there are no links, a program at a device needs what network plug-ins want to make there themselves: a pod
    /// with a limit of bandwidth would not start.
    fn has_no_hook_for(&self, device: &Device) -> bool {
        device.side == Side::Near && self.has_no_links_for(device)
    }

    /// What pods answer passes by the stack where there are links.
    fn has_no_links_for(&self, device: &Device) -> bool {
        matches!(device.side, Side::Near | Side::Pod) && self.kind == HookKind::Clsact
    }

    /// Where programs of ours are to be at a device.
    fn spots(&self, device: &Device) -> impl Iterator<Item = Spot> + use<> {
        let (kind, device) = (self.kind, device.clone());
        Spot::all(device.index).into_iter().filter(move |spot| spot.is_of(&device, kind))
    }

    /// Tells the programs of a device if they know it otherwise.
    fn tell_news(&mut self, place: &mut DeviceState) {
        if *abi::bytes(&self.value(place)) != *place.told
            && let Err(error) = self.tell(place)
        {
            place.error = Some(error.to_string());
        }
    }

    /// What the programs have to know of a device.
    fn value(&self, place: &DeviceState) -> abi::packets::types::device {
        let shortcut = self.takes_shortcut(place);
        value_of(&Device { shortcut, ..place.device.clone() }, place.xdp.passes_frames())
    }

    fn takes_shortcut(&self, place: &DeviceState) -> bool {
        self.shortcut(place) == ShortcutState::Taken
    }

    fn shortcut(&self, place: &DeviceState) -> ShortcutState {
        match (place.device.shortcut, self.lengths, place.others) {
            (false, ..) => ShortcutState::Unwanted,
            (true, false, _) => ShortcutState::Unsupported,
            _ if self.has_no_links_for(&place.device) => ShortcutState::Unsupported,
            _ if !place.attached => ShortcutState::NotAttached,
            (true, true, Some(0)) => ShortcutState::Taken,
            _ => ShortcutState::Others,
        }
    }

    /// Tells the programs what they have to know of a device. Of a device without a name they know what a former daemon
    /// told them.
    fn tell(&mut self, place: &mut DeviceState) -> io::Result<()> {
        let device = &place.device;
        if device.name.is_empty() {
            return Ok(());
        }
        let value = self.value(place);
        let put = self.entries.put(&device.index.to_ne_bytes(), abi::bytes(&value));
        put.map_err(|error| io::Error::other(format!("cannot tell the programs of it: {error:#}")))?;
        place.told = abi::bytes(&value).to_vec();
        Ok(())
    }

    /// Takes off the second program of a pod's device that is not to have it any more; the others stay.
    fn take_spare_off(&self, place: &mut DeviceState) {
        let [.., back] = Spot::all(place.device.index);
        if back.is_of(&place.device, self.kind) {
            return;
        }
        if let Some(link) = place.link(back.direction).take() {
            let _ = link.detach();
            let _ = fs::remove_file(self.pin(back));
        }
    }

    fn attach_at(&self, place: &mut DeviceState, spot: Spot) -> io::Result<()> {
        let program = self.program(place, spot)?;
        match self.kind {
            HookKind::Clsact => clsact::put(program, &spot),
            HookKind::Tcx => self.link(place, spot, program),
        }
    }

    /// Updates a link that holds; replaces one that was cut, or that lost its device. One that cannot be pinned serves
    /// as long as this process runs.
    fn link(&self, place: &mut DeviceState, spot: Spot, program: BorrowedFd<'_>) -> io::Result<()> {
        let pin = self.pin(spot);
        let link = place.link(spot.direction);
        let is_here = link.as_ref().is_some_and(|link| tcx::program_at(link, &spot).is_some());
        if let Some(link) = link.as_ref().filter(|_| is_here) {
            link.update(program)?;
            return if pin.exists() { Ok(()) } else { link.keep(&pin) };
        }
        let new = tcx::create(program, &spot)?;
        let kept = new.keep(&pin);
        *link = Some(new);
        kept
    }

    /// Takes out of the map the devices that went while no daemon was there.
    fn forget_unknown(&mut self, wanted: &BTreeMap<u32, &Device>) {
        let entries = self.entries.entries().unwrap_or_default();
        let indices =
            entries.iter().filter_map(|(key, _)| Some(u32::from_ne_bytes(key.as_ref().try_into().ok()?)));
        let is_known = |index: &u32| wanted.contains_key(index) || self.leaving.contains_key(index);
        for index in indices.filter(|index| !is_known(index)).collect::<Vec<_>>() {
            let _ = self.entries.remove(&index.to_ne_bytes());
        }
    }

    /// Whether the program that is to be at that hook is there, and would outlive this daemon.
    fn is_right(&self, place: &DeviceState, spot: Spot) -> bool {
        self.runs(place, spot) && (self.kind == HookKind::Clsact || self.pin(spot).exists())
    }

    /// Whether the program that is to be at that hook is there.
    fn runs(&self, place: &DeviceState, spot: Spot) -> bool {
        let [own_in, own_out, own_back] = place.own;
        let [link_in, link_out, link_back] = &place.links;
        let (own, link) = match spot.direction {
            Direction::In => (own_in, link_in),
            Direction::Out => (own_out, link_out),
            Direction::Back => (own_back, link_back),
        };
        let found = match self.kind {
            HookKind::Clsact => clsact::program_at(&spot),
            HookKind::Tcx => link.as_ref().and_then(|link| tcx::program_at(link, &spot)),
        };
        own.is_some() && found == own
    }

    fn program(&self, place: &DeviceState, spot: Spot) -> io::Result<BorrowedFd<'_>> {
        let layer = place.layer.as_ref().map_err(|error| io::Error::other(error.clone()))?;
        let pair = self.programs.iter().find(|pair| pair.layer == *layer);
        let pair = pair.ok_or_else(|| io::Error::other("its programs are not loaded"))?;
        match (spot.direction, place.device.side) {
            (Direction::In, Side::Near) => Ok(pair.back.as_fd()),
            (Direction::In, _) => Ok(pair.ingress.as_fd()),
            (Direction::Out, Side::Near) => Err(io::Error::other("it has no program for what leaves")),
            (Direction::Out, _) => Ok(pair.egress.as_fd()),
            (Direction::Back, _) => Ok(pair.back.as_fd()),
        }
    }

    fn pin(&self, spot: Spot) -> PathBuf {
        self.folder.join(spot.index.to_string()).join(spot.direction.name())
    }

    /// How many programs and filters of others are at a device. Pods have many devices, so theirs are asked for only
    /// where it matters.
    fn others(&self, place: &DeviceState) -> io::Result<usize> {
        if place.device.side == Side::Pod && !place.device.shortcut {
            return Ok(0);
        }
        let of = |spot: Spot| {
            let linked = if self.kind == HookKind::Tcx { tcx::others(&spot, &place.own)? } else { 0 };
            Ok(linked + clsact::others(&spot)?)
        };
        Spot::both(place.device.index).into_iter().map(of).sum()
    }

    pub(crate) fn kind(&self) -> HookKind {
        self.kind
    }

    /// Whether programs are loaded for all of these devices. A device that is not there needs none, and one that has
    /// its programs needs no others.
    pub(crate) fn are_enough_for(&self, devices: &[Device]) -> bool {
        let is_loaded = |layer| self.programs.iter().any(|pair| pair.layer == layer);
        let is_new = |device: &&Device| self.places.get(&device.index).is_none_or(|place| !place.attached);
        let new = devices.iter().filter(is_new);
        new.filter_map(|device| link_layer::layer_of(device.index).ok()).all(is_loaded)
    }

    /// How often something was put back that had been taken away from outside.
    pub(crate) fn repaired(&self) -> u64 {
        self.repaired
    }

    /// Each device, as it was when it was last looked at.
    pub(crate) fn status(&self) -> Vec<DeviceStatus> {
        let named = self.places.values().filter(|place| !place.device.name.is_empty());
        let status = |place: &DeviceState| DeviceStatus {
            device: place.device.clone(),
            attached: place.attached,
            unpinned: place.unpinned,
            others: place.others.unwrap_or(0),
            shortcut: self.shortcut(place),
            xdp: place.xdp.state().clone(),
            error: place.error.clone(),
        };
        named.map(status).chain(self.left_out.iter().map(status_without_room)).collect()
    }
}

fn failed(attempt: &str, direction: Direction, error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot {attempt} {}: {error}", direction.name()))
}
