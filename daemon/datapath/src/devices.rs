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
mod remains;
mod spot;
mod tcx;
mod told;
mod xdp;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use crate::abi;
use crate::bpf_call;
use crate::features::Features;
use crate::load::PacketPrograms;
use crate::table::Table;

pub use driver::Mode;
pub(crate) use lengths::knows_lengths;
pub(crate) use link_layer::layers_of;
pub(crate) use remains::{are_anywhere, remove_all};
pub(crate) use tcx::is_there as has_tcx;
pub(crate) use told::value_of;
pub use xdp::{XdpState, XdpUse};

#[cfg(test)]
pub(crate) use driver::{knows_tags, sends_frames};

use link::Link;
use spot::{Direction, Spot};

/// The senders of the packets that come in by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Hosts outside of this node.
    Outer,
    /// A pod of this node.
    Pod,
    /// Backends of other nodes, and no client.
    Backends,
    /// Pods of this node, and no client: their answers pass by the stack, for which one program looks at what comes in.
    Near,
}

/// A device at which packets are translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number in this network namespace.
    pub index: u32,
    /// What people call it. It may change.
    pub name: String,
    /// The senders of the packets that come in by it.
    pub side: Side,
    /// The address that backends of other nodes see instead of an IPv4 client's, when packets leave by this device; a
    /// pod that reaches itself sees it too.
    pub address4: Option<Ipv4Addr>,
    /// As above, of IPv6.
    pub address6: Option<Ipv6Addr>,
    /// So many first bits of `address4` are those of this node's own pods behind the device, which see a client's own
    /// address; 0: only backends of other nodes are behind it.
    pub near4: u8,
    /// As above, of `address6`.
    pub near6: u8,
    /// Answers to clients that came by it are routed by the address that they bear, and not by the backend's.
    pub by_address: bool,
    /// Packets between it and other such devices pass by the stack, where nothing but the two hooks needs them.
    pub shortcut: bool,
    /// Of a device that leads to a pod: packets can be given to its other end right away, because nothing waits for
    /// them at this one. Of another device: what comes by it bears nothing of this node that a pod must not see.
    pub peer: bool,
    /// Whether packets that pass by the stack there are to do so at its driver.
    pub xdp: XdpUse,
    /// Whether the kernel finds the way of a packet that comes by it without a look at its ports: of IPv4, and of IPv6,
    /// where a label counts as ports do.
    pub plain: [bool; 2],
    /// Whether a segment of no flow that comes by it may be of a connection that another node has let in, and of none
    /// that another proxy of this node has.
    pub joins: bool,
    /// Whether policies of IPsec are to see what the stack sends and takes: then nothing goes by it to another node as
    /// it came, and nothing is taken so.
    pub secured: bool,
    /// Whether it is a bridge: filters of the stack may have seen its packets at the ports.
    pub bridge: bool,
    /// Whether it is a virtual switch, behind which pods of this node are beside those of others, and no way out.
    pub switch: bool,
}

impl Device {
    /// A device of which nothing more is known.
    pub fn new(index: u32, name: &str, side: Side) -> Self {
        Self {
            index,
            name: name.to_owned(),
            side,
            address4: None,
            address6: None,
            near4: 0,
            near6: 0,
            by_address: false,
            shortcut: false,
            peer: false,
            xdp: XdpUse::Never,
            plain: [false; 2],
            joins: false,
            secured: false,
            bridge: false,
            switch: false,
        }
    }
}

/// A device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    pub device: Device,
    /// Whether the programs are in place.
    pub attached: bool,
    /// Whether they are, but without their pins: they end with this process.
    pub unpinned: bool,
    /// How many programs and filters of others are there too; they are not counted at a device of class pod where
    /// packets are not to pass by the stack.
    pub others: usize,
    /// Whether packets pass by the stack there.
    pub shortcut: ShortcutState,
    /// Whether those that do pass by it at the driver.
    pub xdp: XdpState,
    /// Why a program is not in place, or has no pin.
    pub error: Option<String>,
}

/// Whether packets pass by the stack at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortcutState {
    /// They do.
    Taken,
    /// They are not to.
    Unwanted,
    /// This kernel does not tell programs which packets are too long for their way (before Linux 5.12), or has no links
    /// for programs at devices of pods (before Linux 6.6).
    Unsupported,
    /// Programs or filters of others are at the device, and are to see all packets; or they could not be counted.
    Others,
    /// Our own programs are not there.
    NotAttached,
}

/// What programs hang by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// By links of their own (Linux 6.6).
    Tcx,
    /// By a filter among those of others.
    Clsact,
}

impl HookKind {
    pub(crate) const fn of(features: Features) -> Self {
        if features.tcx { Self::Tcx } else { Self::Clsact }
    }
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
        let (kind, lengths, folder) = (HookKind::of(features), features.lengths, folder.to_owned());
        let places = BTreeMap::new();
        let no_frames = "its program is not loaded".to_owned();
        let mut devices = Self { kind, lengths, folder, programs, no_frames, entries, places, repaired: 0 };
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
        }
    }

    /// Has programs at these devices and at no others from now on. [`Self::status`] tells at which of them programs are
    /// attached.
    pub(crate) fn set(&mut self, devices: &[Device]) {
        let wanted: BTreeMap<u32, &Device> = devices.iter().map(|device| (device.index, device)).collect();
        let gone: Vec<u32> =
            self.places.keys().copied().filter(|index| !wanted.contains_key(index)).collect();
        gone.into_iter().for_each(|index| self.withdraw(index));
        self.forget_unknown(&wanted);
        for (index, device) in wanted {
            let is_right = |place: &DeviceState| place.attached && place.device == *device;
            if let Some(place) = self.places.get_mut(&index).filter(|place| is_right(place)) {
                place.look_soon();
                continue;
            }
            let has_spare =
                |place: &DeviceState| place.device.side != Side::Near && device.side == Side::Near;
            if self.places.get(&index).is_some_and(has_spare) {
                self.withdraw(index);
            }
            let mut place = self.places.remove(&index).unwrap_or_else(|| self.place(device.clone()));
            place.device = device.clone();
            self.put(&mut place);
            self.places.insert(index, place);
        }
    }

    /// Puts other programs at all devices. Where that fails the former program stays, and [`Self::repair`] tries again.
    /// Before each device `next` is called.
    pub(crate) fn update(&mut self, programs: Vec<PacketPrograms>, next: impl Fn()) {
        self.programs = programs;
        self.each(|devices, place| {
            next();
            devices.put(place);
        });
    }

    /// Puts back what was taken away from outside, tries again what failed, and says at which hooks something was
    /// mended.
    pub(crate) fn repair(&mut self) -> Vec<String> {
        let mut mended = Vec::new();
        self.each(|devices, place| {
            if devices.has_no_hook_for(&place.device) {
                return;
            }
            if place.is_due() {
                mended.extend(devices.mend(place));
            }
            mended.extend(devices.mend_xdp(place));
            if place.others_again == 0 {
                devices.count_others(place);
            }
            place.others_again = place.others_again.saturating_sub(1);
        });
        self.repaired = self.repaired.saturating_add(mended.len() as u64);
        mended
    }

    /// Puts back what is not there, and says where something was taken away.
    fn mend(&mut self, place: &mut DeviceState) -> Vec<String> {
        let was_attached = place.attached;
        let spots = self.spots(&place.device);
        let broken: Vec<_> = spots.filter(|spot| !self.is_right(place, *spot)).collect();
        if !broken.is_empty() || !was_attached {
            self.put(place);
        }
        let told = was_attached && place.attached;
        let mended = broken.into_iter().filter(|spot| told && self.is_right(place, *spot));
        mended.map(|spot| format!("{} {}", place.device.name, spot.direction.name())).collect()
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
        value_of(&Device { shortcut, ..place.device.clone() }, place.xdp.mode())
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

    fn each(&mut self, mut act: impl FnMut(&mut Self, &mut DeviceState)) {
        let mut places = std::mem::take(&mut self.places);
        places.values_mut().for_each(|place| act(self, place));
        self.places = places;
    }

    /// Tells the programs what they have to know of a device, then attaches them there. A failure is kept with the
    /// device.
    fn put(&mut self, place: &mut DeviceState) {
        if self.has_no_hook_for(&place.device) {
            return;
        }
        place.own = Spot::all(place.device.index)
            .map(|spot| bpf_call::program_number(self.program(place.device.side, spot).ok()?).ok());
        let told = self.tell(place);
        let is_told = told.is_ok();
        let put = told.and_then(|()| self.attach(place));
        place.attached = is_told && self.spots(&place.device).all(|spot| self.runs(place, spot));
        place.unpinned = place.attached && put.is_err();
        place.error = put.err().map(|error| error.to_string());
        self.put_xdp(place);
        match place.others {
            None if place.device.shortcut => self.count_others(place),
            _ => self.tell_news(place),
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

    /// Attaches all programs, or as far as it goes.
    fn attach(&self, place: &mut DeviceState) -> io::Result<()> {
        let mut attached = Ok(());
        self.take_spare_off(place);
        for spot in self.spots(&place.device) {
            if !self.is_right(place, spot) {
                let done = self.attach_at(place, spot);
                let attempt = if self.runs(place, spot) { "pin" } else { "attach" };
                attached = attached.and(done.map_err(|error| failed(attempt, spot.direction, &error)));
            }
        }
        attached
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
        let program = self.program(place.device.side, spot)?;
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

    /// Detaches the programs of a device, then forgets it. What the kernel does not detach now is detached when its
    /// link goes.
    fn withdraw(&mut self, index: u32) {
        let Some(mut place) = self.places.remove(&index) else { return };
        self.clear_driver(&mut place);
        for spot in Spot::both(index) {
            if self.kind == HookKind::Clsact {
                let _ = clsact::remove(&spot);
            }
        }
        place.links.iter().flatten().for_each(|link| drop(link.detach()));
        let _ = fs::remove_dir_all(self.folder.join(index.to_string()));
        let _ = self.entries.remove(&index.to_ne_bytes());
    }

    /// Takes out of the map the devices that went while no daemon was there.
    fn forget_unknown(&mut self, wanted: &BTreeMap<u32, &Device>) {
        let entries = self.entries.entries().unwrap_or_default();
        let indices =
            entries.iter().filter_map(|(key, _)| Some(u32::from_ne_bytes(key.as_ref().try_into().ok()?)));
        for index in indices.filter(|index| !wanted.contains_key(index)) {
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

    fn program(&self, side: Side, spot: Spot) -> io::Result<BorrowedFd<'_>> {
        let layer = link_layer::layer_of(spot.index)?;
        let pair = self.programs.iter().find(|pair| pair.layer == layer);
        let pair = pair.ok_or_else(|| io::Error::other("its programs are not loaded"))?;
        match (spot.direction, side) {
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

    /// Whether programs are loaded for all of these devices. A device that is not there needs none.
    pub(crate) fn are_enough_for(&self, devices: &[Device]) -> bool {
        let is_loaded = |layer| self.programs.iter().any(|pair| pair.layer == layer);
        layers_of(devices).into_iter().all(is_loaded)
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
        named.map(status).collect()
    }
}

fn failed(attempt: &str, direction: Direction, error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot {attempt} {}: {error}", direction.name()))
}
