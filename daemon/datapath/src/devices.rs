//! The packet programs and the devices that they are attached to.
//!
//! Invariant: a device with programs of ours has them at every moment; new ones replace old ones in one step. A
//! device's entry is written before its programs attach, and removed after they detach. A device that fails stops no
//! other and is retried. Foreign programs stay and still run. A device that is not named is left alone.

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

#[derive(Debug)]
struct DeviceState {
    device: Device,
    // The links in each direction, with tcx.
    links: [Option<DeviceLink>; 3],
    xdp: xdp::XdpAttachment,
    // The ids of the programs for each direction, as of the last attach. Asking the kernel each second for the device's
    // type would be most of the work of an idle node.
    own: [Option<u32>; 3],
    attached: bool,
    // The programs run, but something could not be pinned.
    unpinned: bool,
    // `None` if the count failed.
    foreign_count: Option<usize>,
    // Rounds until foreign programs are counted again, and the rounds between the last two counts.
    next_foreign_check: u32,
    foreign_check_gap: u32,
    written_entry: Vec<u8>,
    error: Option<String>,
    // The link layer, or why it is unknown, as of the last attach attempt.
    layer: Result<LinkLayer, String>,
    attempt: Option<AttachAttempt>,
    // Hooks that lost their program, until it is attached again.
    broken: Vec<DeviceHook>,
    // Whether the present programs must detach before others attach.
    must_detach_first: bool,
}

impl DeviceState {
    /// Rounds until the next count of foreign programs. It spreads pods' devices that exist at a start over different
    /// rounds.
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

    /// Schedules a check of a device with an XDP program for the next round, because something changed.
    fn schedule_check(&mut self) {
        if self.device.xdp != XdpUse::Never {
            self.next_foreign_check = 0;
        }
    }

    /// Whether this round checks the device. Devices of pods are many, and packets that miss such a device's program
    /// take the stack.
    fn is_check_due(&self) -> bool {
        self.device.side != DeviceSide::LocalPods
            || !self.attached
            || self.next_foreign_check.is_multiple_of(FOREIGN_CHECK_ROUNDS)
    }
}

/// Rounds between two counts of foreign programs. Listing filters takes a lock that all device changes share, so every
/// tenth round is enough. Devices of pods are many and are counted once a minute, but sooner while new, because a
/// network plug-in may attach after us.
const FOREIGN_CHECK_ROUNDS: u32 = 10;
const FOREIGN_CHECK_ROUNDS_LOCAL: u32 = 60;

#[derive(Debug)]
pub(crate) struct Devices {
    kind: HookKind,
    // Whether packets can bypass the stack.
    has_check_mtu: bool,
    folder: PathBuf,
    programs: Vec<PacketPrograms>,
    // Why there is no XDP program, while none is loaded.
    no_xdp_reason: String,
    entries: Table,
    attached_devices: BTreeMap<u32, DeviceState>,
    // Devices that still have programs but are not wanted any more.
    leaving: BTreeMap<u32, DeviceState>,
    queue: WorkQueue,
    // Hooks repaired since the last call of `take_repaired`.
    repaired_hooks: Vec<String>,
    rejected: Vec<Device>,
    pods_max: usize,
    repaired: u64,
}

impl Devices {
    /// Adopts a former daemon's devices. A device with an entry gets the new programs at once; the programs of other
    /// devices stay until [`Self::set_devices`] decides.
    pub(crate) fn adopt(
        features: Features,
        folder: &Path,
        programs: Vec<PacketPrograms>,
        entries: Table,
    ) -> Self {
        let (kind, has_check_mtu, folder) = (hook_kind(features), features.lengths, folder.to_owned());
        let no_xdp_reason = "its program is not loaded".to_owned();
        let pods_max = capacity::pod_devices_max();
        let mut devices = Self {
            kind,
            has_check_mtu,
            folder,
            programs,
            no_xdp_reason,
            entries,
            attached_devices: BTreeMap::new(),
            leaving: BTreeMap::new(),
            queue: WorkQueue::default(),
            repaired_hooks: Vec::new(),
            rejected: Vec::new(),
            pods_max,
            repaired: 0,
        };
        for index in devices.attached_indices() {
            let entry = devices.entries.get(&index.to_ne_bytes());
            let mut state = devices.open_device(entry::decode_device(index, entry.as_deref()));
            if entry.is_some() {
                devices.attach_device(&mut state);
            }
            devices.attached_devices.insert(index, state);
        }
        devices
    }

    fn open_device(&self, device: Device) -> DeviceState {
        let open = |hook: DeviceHook| DeviceLink::open(&self.hook_pin(hook)).ok();
        let xdp = xdp::XdpAttachment::open(&self.xdp_pin(device.index));
        let links = match self.kind {
            HookKind::Tcx => DeviceHook::for_device(device.index).map(open),
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
            layer: Err("it was not checked yet".to_owned()),
            attempt: None,
            broken: Vec::new(),
            must_detach_first: false,
        }
    }

    pub(crate) fn programs(&self) -> &[PacketPrograms] {
        &self.programs
    }

    /// Attaches other programs to all devices that have some. After a failure the former program stays, and the next
    /// check round retries. Calls `next` before each device.
    pub(crate) fn replace_programs(&mut self, programs: Vec<PacketPrograms>, next: impl Fn()) {
        self.programs = programs;
        let (mut states, mut leaving) =
            (std::mem::take(&mut self.attached_devices), std::mem::take(&mut self.leaving));
        let has_some = |state: &&mut DeviceState| state.own.iter().any(Option::is_some);
        for state in states.values_mut().chain(leaving.values_mut()).filter(has_some) {
            next();
            self.attach_device(state);
        }
        (self.attached_devices, self.leaving) = (states, leaving);
    }

    /// Counts foreign programs, and updates the device's entry if that decides about the fast path.
    fn update_foreign_count(&mut self, state: &mut DeviceState) {
        state.foreign_check_gap = state.next_check_gap();
        state.next_foreign_check = state.foreign_check_gap;
        state.foreign_count = self.count_foreign(state).ok();
        self.refresh_entry(state);
    }

    /// Whether a program would block a network plug-in. Without links it needs the same qdisc that plug-ins create, and
    /// a pod with a bandwidth limit would not start.
    fn lacks_hook(&self, device: &Device) -> bool {
        device.side == DeviceSide::LocalPods && self.lacks_links(device)
    }

    /// Replies of pods take the fast path only with links.
    fn lacks_links(&self, device: &Device) -> bool {
        matches!(device.side, DeviceSide::LocalPods | DeviceSide::Pod) && self.kind == HookKind::Clsact
    }

    /// The hooks of a device where programs of ours belong.
    fn device_hooks(&self, device: &Device) -> impl Iterator<Item = DeviceHook> + use<> {
        let (kind, device) = (self.kind, device.clone());
        DeviceHook::for_device(device.index).into_iter().filter(move |hook| hook.applies_to(&device, kind))
    }

    /// Rewrites a device's entry if it changed.
    fn refresh_entry(&mut self, state: &mut DeviceState) {
        if *abi::as_bytes(&self.entry_value(state)) != *state.written_entry
            && let Err(error) = self.write_entry(state)
        {
            state.error = Some(error.to_string());
        }
    }

    fn entry_value(&self, state: &DeviceState) -> abi::packets::types::device {
        let fast_path = self.uses_fast_path(state);
        encode_device(&Device { fast_path, ..state.device.clone() }, state.xdp.passes_frames())
    }

    fn uses_fast_path(&self, state: &DeviceState) -> bool {
        self.shortcut_state(state) == FastPathState::Active
    }

    fn shortcut_state(&self, state: &DeviceState) -> FastPathState {
        match (state.device.fast_path, self.has_check_mtu, state.foreign_count) {
            (false, ..) => FastPathState::Disabled,
            (true, false, _) => FastPathState::Unsupported,
            _ if self.lacks_links(&state.device) => FastPathState::Unsupported,
            _ if !state.attached => FastPathState::NotAttached,
            (true, true, Some(0)) => FastPathState::Active,
            _ => FastPathState::ForeignPrograms,
        }
    }

    /// Writes the entry of a device. A device without a name keeps a former daemon's entry.
    fn write_entry(&mut self, state: &mut DeviceState) -> io::Result<()> {
        let device = &state.device;
        if device.name.is_empty() {
            return Ok(());
        }
        let value = self.entry_value(state);
        let put = self.entries.put(&device.index.to_ne_bytes(), abi::as_bytes(&value));
        put.map_err(|error| io::Error::other(format!("cannot write its map entry: {error:#}")))?;
        state.written_entry = abi::as_bytes(&value).to_vec();
        Ok(())
    }

    /// Detaches the pod egress program from a device that must not have it any more; the others stay.
    fn detach_spare(&self, state: &mut DeviceState) {
        let [.., pod_egress] = DeviceHook::for_device(state.device.index);
        if pod_egress.applies_to(&state.device, self.kind) {
            return;
        }
        if let Some(link) = state.link_mut(pod_egress.direction).take() {
            let _ = link.detach();
            let _ = fs::remove_file(self.hook_pin(pod_egress));
        }
    }

    fn attach_program(&self, state: &mut DeviceState, hook: DeviceHook) -> io::Result<()> {
        let program = self.select_program(state, hook)?;
        match self.kind {
            HookKind::Clsact => clsact::attach_filter(program, &hook),
            HookKind::Tcx => self.attach_link(state, hook, program),
        }
    }

    /// Updates an intact link. Replaces one that is detached or lost its device. A link that cannot be pinned serves as
    /// long as this process runs.
    fn attach_link(
        &self,
        state: &mut DeviceState,
        hook: DeviceHook,
        program: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let pin = self.hook_pin(hook);
        let link = state.link_mut(hook.direction);
        let is_intact = link.as_ref().is_some_and(|link| tcx::program_at(link, &hook).is_some());
        if let Some(link) = link.as_ref().filter(|_| is_intact) {
            link.update(program)?;
            return if pin.exists() { Ok(()) } else { link.replace_pin(&pin) };
        }
        let new = tcx::create_link(program, &hook)?;
        let pinned = new.replace_pin(&pin);
        *link = Some(new);
        pinned
    }

    /// Removes the entries of devices that vanished while no daemon ran.
    fn remove_unknown(&mut self, wanted: &BTreeMap<u32, &Device>) {
        let entries = self.entries.entries().unwrap_or_default();
        let indices =
            entries.iter().filter_map(|(key, _)| Some(u32::from_ne_bytes(key.as_ref().try_into().ok()?)));
        let is_known = |index: &u32| wanted.contains_key(index) || self.leaving.contains_key(index);
        for index in indices.filter(|index| !is_known(index)).collect::<Vec<_>>() {
            let _ = self.entries.remove(&index.to_ne_bytes());
        }
    }

    /// Whether our program is attached to that hook and would outlive this daemon.
    fn is_intact(&self, state: &DeviceState, hook: DeviceHook) -> bool {
        self.is_attached(state, hook) && (self.kind == HookKind::Clsact || self.hook_pin(hook).exists())
    }

    fn is_attached(&self, state: &DeviceState, hook: DeviceHook) -> bool {
        let [own_in, own_out, own_back] = state.own;
        let [link_in, link_out, link_back] = &state.links;
        let (own, link) = match hook.direction {
            Direction::Ingress => (own_in, link_in),
            Direction::Egress => (own_out, link_out),
            Direction::PodEgress => (own_back, link_back),
        };
        let found = match self.kind {
            HookKind::Clsact => clsact::program_at(&hook),
            HookKind::Tcx => link.as_ref().and_then(|link| tcx::program_at(link, &hook)),
        };
        own.is_some() && found == own
    }

    fn select_program(&self, state: &DeviceState, hook: DeviceHook) -> io::Result<BorrowedFd<'_>> {
        let layer = state.layer.as_ref().map_err(|error| io::Error::other(error.clone()))?;
        let pair = self.programs.iter().find(|pair| pair.layer == *layer);
        let pair = pair.ok_or_else(|| io::Error::other("its programs are not loaded"))?;
        match (hook.direction, state.device.side) {
            (Direction::Ingress, DeviceSide::LocalPods) => Ok(pair.pod_egress.as_fd()),
            (Direction::Ingress, _) => Ok(pair.ingress.as_fd()),
            (Direction::Egress, DeviceSide::LocalPods) => Err(io::Error::other("it has no egress program")),
            (Direction::Egress, _) => Ok(pair.egress.as_fd()),
            (Direction::PodEgress, _) => Ok(pair.pod_egress.as_fd()),
        }
    }

    fn hook_pin(&self, hook: DeviceHook) -> PathBuf {
        self.folder.join(hook.index.to_string()).join(hook.direction.name())
    }

    /// Counts foreign programs and filters at a device. Pods have many devices, so theirs are counted only for the fast
    /// path.
    fn count_foreign(&self, state: &DeviceState) -> io::Result<usize> {
        if state.device.side == DeviceSide::Pod && !state.device.fast_path {
            return Ok(0);
        }
        let count = |hook: DeviceHook| {
            let linked = if self.kind == HookKind::Tcx { tcx::count_foreign(&hook, &state.own)? } else { 0 };
            Ok(linked + clsact::count_foreign(&hook)?)
        };
        DeviceHook::tc_hooks(state.device.index).into_iter().map(count).sum()
    }

    pub(crate) fn kind(&self) -> HookKind {
        self.kind
    }

    /// Whether programs are loaded for all of these devices. A missing device needs none, and an attached one has its
    /// own.
    pub(crate) fn covers_layers(&self, devices: &[Device]) -> bool {
        let is_loaded = |layer| self.programs.iter().any(|pair| pair.layer == layer);
        let is_new =
            |device: &&Device| self.attached_devices.get(&device.index).is_none_or(|state| !state.attached);
        let new = devices.iter().filter(is_new);
        new.filter_map(|device| link_layer::query_layer(device.index).ok()).all(is_loaded)
    }

    /// How many programs were attached again after something else removed them.
    pub(crate) fn repair_count(&self) -> u64 {
        self.repaired
    }

    pub(crate) fn status(&self) -> Vec<DeviceStatus> {
        let named = self.attached_devices.values().filter(|state| !state.device.name.is_empty());
        let status = |state: &DeviceState| DeviceStatus {
            device: state.device.clone(),
            attached: state.attached,
            unpinned: state.unpinned,
            foreign_programs: state.foreign_count.unwrap_or(0),
            fast_path: self.shortcut_state(state),
            xdp: state.xdp.state().clone(),
            error: state.error.clone(),
        };
        named.map(status).chain(self.rejected.iter().map(status_over_limit)).collect()
    }
}

fn hook_error(attempt: &str, direction: Direction, error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot {attempt} {}: {error}", direction.name()))
}
