//! The programs of packets, at the devices that they are for.
//!
//! Invariant: a device that has programs of ours has them at every moment; new ones replace the old ones in one step.
//! What the programs have to know of a device is written before they are there, and wiped when they are gone. One
//! device that fails stops no other, and is tried again. Programs of others stay, and still run. A device that was not
//! named is left alone.

mod capacity;
mod check_mtu;
mod cleanup;
mod clsact;
mod driver;
mod driver_monitor;
mod entry;
mod hook;
mod link;
mod link_layer;
mod tcx;
mod work_queue;
mod xdp;
mod xdp_attach;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use holdfast_status::datapath::Features;

use crate::abi;
use crate::load::{LinkLayer, PacketPrograms};
use crate::table::Table;

pub use capacity::POD_DEVICES_MAX;
pub(crate) use check_mtu::has_check_mtu;
pub(crate) use cleanup::{has_any_attached, remove_all};
pub use driver_monitor::subscribe_driver_changes;
pub(crate) use entry::encode_device;
pub(crate) use holdfast_status::datapath::{
    Device, DeviceSide, DeviceStatus, FastPathState, HookKind, XdpState, XdpUse,
};
pub(crate) use link_layer::query_layers;
pub(crate) use tcx::is_supported as has_tcx;

#[cfg(test)]
pub(crate) use driver::{has_xdp_xmit, keeps_vlan_tags};

use hook::{DeviceHook, Direction};
use link::DeviceLink;
use work_queue::{AttachAttempt, WorkQueue};

/// The status of a device that found no room.
fn status_over_limit(device: &Device) -> DeviceStatus {
    DeviceStatus {
        device: device.clone(),
        attached: false,
        unpinned: false,
        foreign_programs: 0,
        fast_path: FastPathState::NotAttached,
        xdp: XdpState::Disabled,
        error: Some(capacity::OVER_LIMIT.to_owned()),
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
    links: [Option<DeviceLink>; 3],
    xdp: xdp::XdpAttachment,
    // The numbers of the programs that are to be there in each direction, noted when they were last put there: to ask
    // the kernel each second what kind of device it is would be most of the work of a node on which nothing happens.
    own: [Option<u32>; 3],
    attached: bool,
    // Where they serve all the same: whether something could not be pinned.
    unpinned: bool,
    // `None` while they could not be counted.
    foreign_count: Option<usize>,
    // In how many rounds programs of others are counted again, and how many rounds lay before the last count.
    next_foreign_check: u32,
    foreign_check_gap: u32,
    // What the programs were told of the device.
    written_entry: Vec<u8>,
    error: Option<String>,
    // Where a packet begins, or why that is not known, as of the last attempt to put programs there.
    layer: Result<LinkLayer, String>,
    // The attempt to put programs there that is under way.
    attempt: Option<AttachAttempt>,
    // Where something was taken away, until it is put back.
    broken: Vec<DeviceHook>,
    // Whether the programs that are there are to go before others come.
    must_detach_first: bool,
}

impl DeviceState {
    /// How many rounds lie before the next count of others' programs. Of devices of pods that are there already at a
    /// start, not all are counted in the same round for ever.
    fn next_check_gap(&self) -> u32 {
        let doubled = (2 * self.foreign_check_gap).max(1);
        if !matches!(self.device.side, DeviceSide::LocalPods | DeviceSide::Pod) {
            FOREIGN_CHECK_ROUNDS
        } else if doubled < FOREIGN_CHECK_ROUNDS_LOCAL {
            doubled
        } else if self.foreign_check_gap < FOREIGN_CHECK_ROUNDS_LOCAL {
            FOREIGN_CHECK_ROUNDS_LOCAL + self.device.index % FOREIGN_CHECK_ROUNDS_LOCAL
        } else {
            FOREIGN_CHECK_ROUNDS_LOCAL
        }
    }

    fn link_mut(&mut self, direction: Direction) -> &mut Option<DeviceLink> {
        let [way_in, way_out, back] = &mut self.links;
        match direction {
            Direction::Ingress => way_in,
            Direction::Egress => way_out,
            Direction::PodEgress => back,
        }
    }

    /// Has the device looked at in the next round, where it is to have the program at its driver: something changed.
    fn schedule_check(&mut self) {
        if self.device.xdp != XdpUse::Never {
            self.next_foreign_check = 0;
        }
    }

    /// Whether it is looked at in this round. Devices that lead to pods are many, and packets that miss the program of
    /// such a device go through the stack.
    fn is_check_due(&self) -> bool {
        self.device.side != DeviceSide::LocalPods
            || !self.attached
            || self.next_foreign_check.is_multiple_of(FOREIGN_CHECK_ROUNDS)
    }
}

/// How many rounds lie between two counts of others' programs. To ask for filters takes a listing under a lock that all
/// changes of devices share, so each tenth round will do. Devices that lead to pods are many: once a minute will do,
/// and sooner while they are new, because a network plug-in may come to them after us.
const FOREIGN_CHECK_ROUNDS: u32 = 10;
const FOREIGN_CHECK_ROUNDS_LOCAL: u32 = 60;

/// All devices with programs of ours.
#[derive(Debug)]
pub(crate) struct Devices {
    kind: HookKind,
    // Whether packets can pass by the stack.
    has_check_mtu: bool,
    // The folder of the links' pins.
    folder: PathBuf,
    programs: Vec<PacketPrograms>,
    // Why there is no program for frames, while none is loaded.
    no_xdp_reason: String,
    // The map by which programs know a device.
    entries: Table,
    attached_devices: BTreeMap<u32, DeviceState>,
    // Devices that are wanted no more, and still have programs.
    leaving: BTreeMap<u32, DeviceState>,
    queue: WorkQueue,
    // At which hooks something was put back since this was asked last.
    repaired_hooks: Vec<String>,
    // Devices of pods that found no room.
    rejected: Vec<Device>,
    // How many devices of pods have room.
    pods_max: usize,
    repaired: u64,
}

impl Devices {
    /// Takes over what a former daemon left. Where the map knows the device already the programs are replaced at once;
    /// programs at other devices stay until [`Self::set_devices`] says what becomes of them.
    pub(crate) fn adopt(
        features: Features,
        folder: &Path,
        programs: Vec<PacketPrograms>,
        entries: Table,
    ) -> Self {
        let (kind, lengths, folder) = (hook_kind(features), features.lengths, folder.to_owned());
        let places = BTreeMap::new();
        let no_frames = "its program is not loaded".to_owned();
        let (left_out, pods_max) = (Vec::new(), capacity::pod_devices_max());
        let mut devices = Self {
            kind,
            has_check_mtu: lengths,
            folder,
            programs,
            no_xdp_reason: no_frames,
            entries,
            attached_devices: places,
            leaving: BTreeMap::new(),
            queue: WorkQueue::default(),
            repaired_hooks: Vec::new(),
            rejected: left_out,
            pods_max,
            repaired: 0,
        };
        for index in devices.attached_indices() {
            let known = devices.entries.get(&index.to_ne_bytes());
            let mut place = devices.open_device(entry::decode_device(index, known.as_deref()));
            if known.is_some() {
                devices.attach_device(&mut place);
            }
            devices.attached_devices.insert(index, place);
        }
        devices
    }

    fn open_device(&self, device: Device) -> DeviceState {
        let opened = |spot: DeviceHook| DeviceLink::open(&self.hook_pin(spot)).ok();
        let xdp = xdp::XdpAttachment::open(&self.xdp_pin(device.index));
        let links = match self.kind {
            HookKind::Tcx => DeviceHook::for_device(device.index).map(opened),
            HookKind::Clsact => [None, None, None],
        };
        DeviceState {
            device,
            links,
            xdp,
            own: [None; 3],
            attached: false,
            unpinned: false,
            foreign_count: None,
            next_foreign_check: 0,
            foreign_check_gap: 0,
            written_entry: Vec::new(),
            error: None,
            layer: Err("it was not looked at yet".to_owned()),
            attempt: None,
            broken: Vec::new(),
            must_detach_first: false,
        }
    }

    /// Puts other programs at all devices that have some. Where that fails the former program stays, and a round of
    /// looks tries again. Before each device `next` is called.
    pub(crate) fn replace_programs(&mut self, programs: Vec<PacketPrograms>, next: impl Fn()) {
        self.programs = programs;
        let (mut places, mut leaving) =
            (std::mem::take(&mut self.attached_devices), std::mem::take(&mut self.leaving));
        let has_some = |place: &&mut DeviceState| place.own.iter().any(Option::is_some);
        for place in places.values_mut().chain(leaving.values_mut()).filter(has_some) {
            next();
            self.attach_device(place);
        }
        (self.attached_devices, self.leaving) = (places, leaving);
    }

    /// Counts the programs of others, and tells our own if that decides whether packets pass by the stack.
    fn update_foreign_count(&mut self, place: &mut DeviceState) {
        place.foreign_check_gap = place.next_check_gap();
        place.next_foreign_check = place.foreign_check_gap;
        place.foreign_count = self.count_foreign(place).ok();
        self.refresh_entry(place);
    }

    /// Where there are no links, a program at a device needs what network plug-ins want to make there themselves: a pod
    /// with a limit of bandwidth would not start.
    fn lacks_hook(&self, device: &Device) -> bool {
        device.side == DeviceSide::LocalPods && self.lacks_links(device)
    }

    /// What pods answer passes by the stack where there are links.
    fn lacks_links(&self, device: &Device) -> bool {
        matches!(device.side, DeviceSide::LocalPods | DeviceSide::Pod) && self.kind == HookKind::Clsact
    }

    /// Where programs of ours are to be at a device.
    fn device_hooks(&self, device: &Device) -> impl Iterator<Item = DeviceHook> + use<> {
        let (kind, device) = (self.kind, device.clone());
        DeviceHook::for_device(device.index).into_iter().filter(move |spot| spot.applies_to(&device, kind))
    }

    /// Tells the programs of a device if they know it otherwise.
    fn refresh_entry(&mut self, place: &mut DeviceState) {
        if *abi::as_bytes(&self.entry_value(place)) != *place.written_entry
            && let Err(error) = self.write_entry(place)
        {
            place.error = Some(error.to_string());
        }
    }

    /// What the programs have to know of a device.
    fn entry_value(&self, place: &DeviceState) -> abi::packets::types::device {
        let shortcut = self.uses_fast_path(place);
        encode_device(&Device { fast_path: shortcut, ..place.device.clone() }, place.xdp.passes_frames())
    }

    fn uses_fast_path(&self, place: &DeviceState) -> bool {
        self.shortcut_state(place) == FastPathState::Active
    }

    fn shortcut_state(&self, place: &DeviceState) -> FastPathState {
        match (place.device.fast_path, self.has_check_mtu, place.foreign_count) {
            (false, ..) => FastPathState::Disabled,
            (true, false, _) => FastPathState::Unsupported,
            _ if self.lacks_links(&place.device) => FastPathState::Unsupported,
            _ if !place.attached => FastPathState::NotAttached,
            (true, true, Some(0)) => FastPathState::Active,
            _ => FastPathState::ForeignPrograms,
        }
    }

    /// Tells the programs what they have to know of a device. Of a device without a name they know what a former daemon
    /// told them.
    fn write_entry(&mut self, place: &mut DeviceState) -> io::Result<()> {
        let device = &place.device;
        if device.name.is_empty() {
            return Ok(());
        }
        let value = self.entry_value(place);
        let put = self.entries.put(&device.index.to_ne_bytes(), abi::as_bytes(&value));
        put.map_err(|error| io::Error::other(format!("cannot tell the programs of it: {error:#}")))?;
        place.written_entry = abi::as_bytes(&value).to_vec();
        Ok(())
    }

    /// Takes off the second program of a pod's device that is not to have it any more; the others stay.
    fn detach_spare(&self, place: &mut DeviceState) {
        let [.., back] = DeviceHook::for_device(place.device.index);
        if back.applies_to(&place.device, self.kind) {
            return;
        }
        if let Some(link) = place.link_mut(back.direction).take() {
            let _ = link.detach();
            let _ = fs::remove_file(self.hook_pin(back));
        }
    }

    fn attach_program(&self, place: &mut DeviceState, spot: DeviceHook) -> io::Result<()> {
        let program = self.select_program(place, spot)?;
        match self.kind {
            HookKind::Clsact => clsact::attach_filter(program, &spot),
            HookKind::Tcx => self.attach_link(place, spot, program),
        }
    }

    /// Updates a link that holds; replaces one that was cut, or that lost its device. One that cannot be pinned serves
    /// as long as this process runs.
    fn attach_link(
        &self,
        place: &mut DeviceState,
        spot: DeviceHook,
        program: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let pin = self.hook_pin(spot);
        let link = place.link_mut(spot.direction);
        let is_here = link.as_ref().is_some_and(|link| tcx::program_at(link, &spot).is_some());
        if let Some(link) = link.as_ref().filter(|_| is_here) {
            link.update(program)?;
            return if pin.exists() { Ok(()) } else { link.replace_pin(&pin) };
        }
        let new = tcx::create_link(program, &spot)?;
        let kept = new.replace_pin(&pin);
        *link = Some(new);
        kept
    }

    /// Takes out of the map the devices that went while no daemon was there.
    fn remove_unknown(&mut self, wanted: &BTreeMap<u32, &Device>) {
        let entries = self.entries.entries().unwrap_or_default();
        let indices =
            entries.iter().filter_map(|(key, _)| Some(u32::from_ne_bytes(key.as_ref().try_into().ok()?)));
        let is_known = |index: &u32| wanted.contains_key(index) || self.leaving.contains_key(index);
        for index in indices.filter(|index| !is_known(index)).collect::<Vec<_>>() {
            let _ = self.entries.remove(&index.to_ne_bytes());
        }
    }

    /// Whether the program that is to be at that hook is there, and would outlive this daemon.
    fn is_intact(&self, place: &DeviceState, spot: DeviceHook) -> bool {
        self.is_attached(place, spot) && (self.kind == HookKind::Clsact || self.hook_pin(spot).exists())
    }

    /// Whether the program that is to be at that hook is there.
    fn is_attached(&self, place: &DeviceState, spot: DeviceHook) -> bool {
        let [own_in, own_out, own_back] = place.own;
        let [link_in, link_out, link_back] = &place.links;
        let (own, link) = match spot.direction {
            Direction::Ingress => (own_in, link_in),
            Direction::Egress => (own_out, link_out),
            Direction::PodEgress => (own_back, link_back),
        };
        let found = match self.kind {
            HookKind::Clsact => clsact::program_at(&spot),
            HookKind::Tcx => link.as_ref().and_then(|link| tcx::program_at(link, &spot)),
        };
        own.is_some() && found == own
    }

    fn select_program(&self, place: &DeviceState, spot: DeviceHook) -> io::Result<BorrowedFd<'_>> {
        let layer = place.layer.as_ref().map_err(|error| io::Error::other(error.clone()))?;
        let pair = self.programs.iter().find(|pair| pair.layer == *layer);
        let pair = pair.ok_or_else(|| io::Error::other("its programs are not loaded"))?;
        match (spot.direction, place.device.side) {
            (Direction::Ingress, DeviceSide::LocalPods) => Ok(pair.pod_egress.as_fd()),
            (Direction::Ingress, _) => Ok(pair.ingress.as_fd()),
            (Direction::Egress, DeviceSide::LocalPods) => {
                Err(io::Error::other("it has no program for what leaves"))
            }
            (Direction::Egress, _) => Ok(pair.egress.as_fd()),
            (Direction::PodEgress, _) => Ok(pair.pod_egress.as_fd()),
        }
    }

    fn hook_pin(&self, spot: DeviceHook) -> PathBuf {
        self.folder.join(spot.index.to_string()).join(spot.direction.name())
    }

    /// How many programs and filters of others are at a device. Pods have many devices, so theirs are asked for only
    /// where it matters.
    fn count_foreign(&self, place: &DeviceState) -> io::Result<usize> {
        if place.device.side == DeviceSide::Pod && !place.device.fast_path {
            return Ok(0);
        }
        let of = |spot: DeviceHook| {
            let linked = if self.kind == HookKind::Tcx { tcx::count_foreign(&spot, &place.own)? } else { 0 };
            Ok(linked + clsact::count_foreign(&spot)?)
        };
        DeviceHook::tc_hooks(place.device.index).into_iter().map(of).sum()
    }

    pub(crate) fn kind(&self) -> HookKind {
        self.kind
    }

    /// Whether programs are loaded for all of these devices. A device that is not there needs none, and one that has
    /// its programs needs no others.
    pub(crate) fn covers_layers(&self, devices: &[Device]) -> bool {
        let is_loaded = |layer| self.programs.iter().any(|pair| pair.layer == layer);
        let is_new =
            |device: &&Device| self.attached_devices.get(&device.index).is_none_or(|place| !place.attached);
        let new = devices.iter().filter(is_new);
        new.filter_map(|device| link_layer::query_layer(device.index).ok()).all(is_loaded)
    }

    /// How often something was put back that had been taken away from outside.
    pub(crate) fn repair_count(&self) -> u64 {
        self.repaired
    }

    /// Each device, as it was when it was last looked at.
    pub(crate) fn status(&self) -> Vec<DeviceStatus> {
        let named = self.attached_devices.values().filter(|place| !place.device.name.is_empty());
        let status = |place: &DeviceState| DeviceStatus {
            device: place.device.clone(),
            attached: place.attached,
            unpinned: place.unpinned,
            foreign_programs: place.foreign_count.unwrap_or(0),
            fast_path: self.shortcut_state(place),
            xdp: place.xdp.state().clone(),
            error: place.error.clone(),
        };
        named.map(status).chain(self.rejected.iter().map(status_over_limit)).collect()
    }
}

fn hook_error(attempt: &str, direction: Direction, error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot {attempt} {}: {error}", direction.name()))
}
