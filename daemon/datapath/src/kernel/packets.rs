//! Packet programs at devices, over the same tables as the socket programs.
//!
//! Invariant: a failure here leaves sockets served; it is stored as text and retried ever less often. Packet programs
//! read the generation that is written, or the status says that they are behind.

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use holdfast_core::keys::FrontendKey;
use holdfast_status::datapath::{EvictedFlows, PacketStatus};
use libbpf_rs::{MapCore, MapHandle};

use super::KernelMaps;
use super::packet_load_thread::{self, PacketLoadThread};
use super::repair::RepairReport;
use super::resize::{FlowResize, ResizeFailure};
use crate::bitmap::Bitmap;
use crate::devices::{self, Device, Devices};
use crate::error::StartError;
use crate::generation::open_counted_table;
use crate::load::{self, LinkLayer, LoadedPackets, PacketPrograms, ProgramMaps};
use crate::map::{self, Map, MapHandles};
use crate::packets::{self, AdoptedFlows, PacketOptions, PacketSwitches};
use crate::pins::{ProgramKind, ProgramSetName};

/// The longest wait for the next attempt, in looks. The wait doubles after each failure: loading takes a good part of a
/// second, and the kernel usually refuses again.
const RETRY_LOOKS_MAX: u32 = 256;

/// The desired state of packet translation, and its progress.
#[derive(Debug, Default)]
pub(super) struct PacketTranslation {
    pub(super) options: Option<PacketOptions>,
    // The devices set last; `None`: none yet, so those of a former daemon stay.
    desired_devices: Option<Vec<Device>>,
    pub(super) running: Option<RunningPackets>,
    // The programs loading in parallel with the socket programs, until they are taken.
    pub(super) load_thread: Option<PacketLoadThread>,
    // Whether programs at devices read outdated tables, or are a former daemon's.
    is_behind: bool,
    failure: Option<String>,
    retry: RetryTimer,
    // Whether a former daemon's programs were removed, if packets are not to be translated.
    is_withdrawn: bool,
    pub(super) resizing: Option<FlowResize>,
    // Why the last resize failed; only another size is tried.
    pub(super) resize_failure: Option<ResizeFailure>,
    pub(super) given_up: EvictedFlows,
}

/// The state while packets are translated.
#[derive(Debug)]
pub(super) struct RunningPackets {
    pub(super) handles: MapHandles,
    ports: Bitmap,
    pub(super) devices: Devices,
}

/// Counts the looks until the next attempt.
#[derive(Debug, Default)]
struct RetryTimer {
    pause: u32,
    left: u32,
}

impl RetryTimer {
    fn tick(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    fn record_failure(&mut self) {
        self.pause = self.pause.saturating_mul(2).clamp(1, RETRY_LOOKS_MAX);
        self.left = self.pause;
    }
}

impl PacketTranslation {
    pub(super) fn new(options: Option<PacketOptions>) -> Self {
        Self { options, ..Self::default() }
    }

    /// Notes a new frontend. If it is for all node addresses, its port's bit is set for good.
    pub(super) fn note_inserted(&mut self, key: &FrontendKey) {
        if let Some(running) = self.running.as_mut().filter(|_| key.address.is_unspecified()) {
            running.ports.set(key.port.get().into());
        }
    }

    /// The link layers that need programs. The verifier takes half a second for each.
    pub(super) fn link_layers(&self) -> Vec<LinkLayer> {
        devices::query_layers(self.desired_devices.as_deref().unwrap_or_default())
    }

    /// Whether these programs cover the link layers of all devices.
    pub(super) fn covers_layers(&self, programs: &[PacketPrograms]) -> bool {
        self.link_layers().into_iter().all(|layer| programs.iter().any(|pair| pair.layer == layer))
    }

    fn record_outcome(&mut self, outcome: Result<(), StartError>) {
        match outcome {
            Ok(()) => (self.failure, self.retry) = (None, RetryTimer::default()),
            Err(error) => {
                self.failure = Some(error.to_string());
                self.retry.record_failure();
            }
        }
    }

    /// The maps of packets, including flows; `None`: packets are not translated.
    pub(super) fn handles(&self) -> Option<&MapHandles> {
        self.running.as_ref().map(|running| &running.handles)
    }

    pub(super) fn snat_ports(&self) -> Vec<RangeInclusive<u16>> {
        self.options.iter().flat_map(|options| options.snat_ports.clone()).collect()
    }

    /// The inputs for reloading packet programs after tables moved: link layers, packet maps, switches. `None`: packets
    /// are not translated.
    pub(super) fn load_inputs(
        &self,
    ) -> Result<Option<(Vec<LinkLayer>, MapHandles, PacketSwitches)>, StartError> {
        let Some(running) = &self.running else { return Ok(None) };
        Ok(Some((self.link_layers(), map::clone_handles(&running.handles)?, self.switches())))
    }

    fn switches(&self) -> PacketSwitches {
        self.options.as_ref().map(|options| options.switches.clone()).unwrap_or_default()
    }

    pub(super) fn status(&self) -> Option<PacketStatus> {
        let flows_wanted = self.options.as_ref()?.flows;
        let devices = self.running.as_ref().map(|running| &running.devices);
        Some(PacketStatus {
            flows: self
                .running
                .as_ref()
                .map_or(0, |running| running.handles.get(&Map::Flows).map_or(0, MapHandle::max_entries)),
            flows_wanted,
            flows_failure: self.resize_failure.as_ref().map(|it| it.reason.clone()),
            flows_evicted: self.given_up,
            hooks: devices.map(Devices::kind),
            failure: self.failure.clone(),
            behind: self.is_behind,
            repaired: devices.map_or(0, Devices::repair_count),
            devices: devices.map(Devices::status).unwrap_or_default(),
            switches: self.switches(),
        })
    }
}

impl KernelMaps {
    /// Starts to translate packets, if configured and sockets are served. The status shows a failure, and
    /// [`Self::repair`] retries. If not configured, removes a former daemon's programs from devices.
    pub fn serve_packets(&mut self) {
        if self.packets.options.is_none() && !self.packets.is_withdrawn && self.is_serving() {
            self.packets.is_withdrawn = true;
            self.detach_packets();
        }
        let must_start = self.packets.options.is_some() && self.packets.running.is_none();
        if must_start && self.is_serving() && self.packets.retry.tick() {
            let outcome = self.start_packets();
            self.packets.is_behind = outcome.is_err() && devices::has_any_attached(&self.device_pins());
            self.packets.record_outcome(outcome);
        }
    }

    /// Sets the devices at which packets are translated. [`Self::tend_devices`] does the work.
    pub fn set_devices(&mut self, devices: &[Device]) {
        self.packets.desired_devices = Some(devices.to_vec());
        if self.packets.running.as_ref().is_some_and(|running| !running.devices.covers_layers(devices)) {
            self.retry_packet_load();
        }
        if let Some(running) = &mut self.packets.running {
            running.devices.set_devices(devices);
        }
    }

    /// Works at devices until `is_over`, at least one step of about ten milliseconds. `true`: work is left.
    pub fn tend_devices(&mut self, is_over: impl Fn() -> bool) -> bool {
        self.packets.running.as_mut().is_some_and(|running| running.devices.run_steps(is_over))
    }

    /// Checks at once whether the devices' drivers still support their programs.
    pub fn check_drivers(&mut self) {
        if let Some(running) = &mut self.packets.running {
            running.devices.check_drivers();
        }
    }

    /// Whether a device that leads to other hosts still waits for its programs.
    pub fn awaits_uplink(&self) -> bool {
        self.packets.running.as_ref().is_some_and(|running| running.devices.awaits_uplink())
    }

    /// The status of packet translation; `None`: it is not configured.
    pub fn packet_status(&self) -> Option<PacketStatus> {
        self.packets.status()
    }

    pub(super) fn is_serving(&self) -> bool {
        self.attached.as_ref().is_some_and(|attached| attached.links.are_attached())
    }

    /// Removes a former daemon's programs from devices. Its flows stay for a later daemon that translates packets.
    fn detach_packets(&self) {
        let Some(attached) = &self.attached else { return };
        let found = attached.pins.adopt_packets().ok();
        if let Some(entries) = found.and_then(|found| open_counted_table(&found, Map::Devices).ok()) {
            let mut devices = Devices::adopt(self.features, &self.device_pins(), Vec::new(), entries);
            devices.set_devices(&[]);
            while devices.run_steps(|| false) {}
        }
        attached.pins.remove_programs(ProgramKind::Packets);
    }

    fn start_packets(&mut self) -> Result<(), StartError> {
        let Some((attached, options)) = self.attached.as_ref().zip(self.packets.options.clone()) else {
            return Ok(());
        };
        let found = packet_load_thread::adopt_maps(&attached.pins)?;
        let former = attached.pins.adopt_packets()?;
        for (map, _) in packets::MIN_ENTRIES.iter().filter(|(map, _)| !found.contains_key(map)) {
            attached.pins.remove_packet_map(*map)?;
        }
        let are_new = !found.contains_key(&Map::Flows);
        if are_new {
            attached.pins.remove_flows()?;
        }
        if found.contains_key(&Map::PacketSettings) {
            // Written before loading, which may fail: after `drain`, the former programs left new clients to another
            // proxy, and now serve all clients again.
            packets::write_settings(&found, &options, 0)?;
        }
        let first = match self.packets.load_thread.take().filter(|_| self.growths == 0) {
            Some(first) => first,
            None => {
                let sockets = self.shared.handles().iter().chain(self.generation.handles());
                let given = sockets.chain(&found);
                PacketLoadThread::start(self.packets.link_layers(), &options, given, &attached.pins)?
            }
        };
        let mut handles = packet_maps(&first.maps)?;
        if are_new {
            packets::release_first_numbers(&handles)?;
        }
        if former.contains_key(&Map::Devices) && !found.contains_key(&Map::Devices) {
            packets::copy_devices(&former, &handles)?;
        }
        let LoadedPackets { programs, maps: own } = first.join()?;
        packets::write_settings(&handles, &options, 0)?;
        let mut ports = packets::open_port_bitmap(&handles, &options, self.shared.node_ports())?;
        if !are_new {
            ports.set_all_if_empty();
            self.shared.keep_found_blocks();
        }
        self.sources.attach_maps(&handles)?;
        attached.pins.pin_packets(&mut handles)?;
        let entries = open_counted_table(&handles, Map::Devices)?;
        let mut devices = Devices::adopt(self.features, &self.device_pins(), programs, entries);
        if let Some(wanted) = &self.packets.desired_devices {
            devices.set_devices(wanted);
        }
        self.packets.running = Some(RunningPackets { handles, ports, devices });
        self.pin_packet_programs(&own);
        Ok(())
    }

    /// Pins the programs that serve, with their own maps, for the next start.
    pub(super) fn pin_packet_programs(&self, own: &ProgramMaps) {
        let (Some(attached), Some(running)) = (&self.attached, &self.packets.running) else { return };
        match self.packet_set_name(&running.handles) {
            Some(name) => {
                attached.pins.pin_programs(&name, &load::list_packet_set(running.devices.programs(), own));
            }
            None => attached.pins.remove_programs(ProgramKind::Packets),
        }
    }

    fn packet_set_name(&self, own: &MapHandles) -> Option<ProgramSetName> {
        let all = self.shared.handles().iter().chain(self.generation.handles()).chain(own);
        packet_load_thread::packet_set_name(&self.packets.switches(), &map::clone_handles(all).ok()?)
    }

    /// Records the ingress ports and frontends of a former daemon's flows, after the first sweep.
    pub(super) fn record_adopted(&mut self, adopted: AdoptedFlows) {
        if let Some(running) = &mut self.packets.running {
            adopted.ports.iter().for_each(|port| running.ports.set(u32::from(*port)));
            running.ports.clear_adopted();
        }
        self.shared.record_flows(adopted.frontends);
    }

    fn device_pins(&self) -> PathBuf {
        self.attached.as_ref().map(|attached| attached.pins.device_link_folder()).unwrap_or_default()
    }

    /// Reloads all packet programs, because tables have moved. Until that succeeds the old programs stay, and are
    /// behind.
    pub(super) fn move_packets(&mut self) {
        if self.packets.running.is_some() {
            self.packets.is_behind = true;
            self.retry_packet_load();
        }
    }

    /// Reloads all packet programs, for other tables or more devices. Until that succeeds the old programs stay.
    fn retry_packet_load(&mut self) {
        let loaded = self.reload_packets();
        self.packets.record_outcome(loaded);
    }

    /// Attaches the programs loaded for tables that have just moved. If they are missing or incomplete, it loads them
    /// again; if their load failed, the old programs are behind.
    pub(super) fn replace_packets(&mut self, loaded: Option<Result<LoadedPackets, StartError>>) {
        let is_enough = matches!(&loaded, Some(Ok(loaded)) if self.packets.covers_layers(&loaded.programs));
        let Some(running) = &mut self.packets.running else { return };
        match loaded {
            Some(Ok(LoadedPackets { programs, maps })) if is_enough => {
                running.devices.replace_programs(programs, || ());
                self.packets.is_behind = false;
                self.packets.record_outcome(Ok(()));
                self.pin_packet_programs(&maps);
            }
            Some(Err(error)) => {
                self.packets.is_behind = true;
                self.packets.record_outcome(Err(error));
            }
            _ => self.move_packets(),
        }
    }

    fn reload_packets(&mut self) -> Result<(), StartError> {
        let layers = self.packets.link_layers();
        let switches = self.packets.switches();
        let (Some(attached), Some(running)) = (&self.attached, &mut self.packets.running) else {
            return Ok(());
        };
        let all = self.shared.handles().iter().chain(self.generation.handles()).chain(&running.handles);
        let all = map::clone_handles(all)?;
        let found = packet_load_thread::packet_set_name(&switches, &all)
            .and_then(|name| attached.pins.find_programs(&name));
        let (loaded, _) = load::load_packets(&layers, &all, (0, &switches), found.as_ref())?;
        running.devices.replace_programs(loaded.programs, || ());
        self.packets.is_behind = false;
        self.pin_packet_programs(&loaded.maps);
        Ok(())
    }

    /// Retries what failed, and repairs what something else removed.
    pub(super) fn repair_packets(&mut self, repaired: &mut RepairReport) -> Result<(), StartError> {
        self.serve_packets();
        let has_failed = self.packets.running.is_some() && self.packets.failure.is_some();
        if has_failed && self.packets.retry.tick() {
            self.retry_packet_load();
        }
        let (Some(running), Some(attached)) = (&mut self.packets.running, &self.attached) else {
            return Ok(());
        };
        repaired.bits |= running.ports.repair();
        repaired.devices = running.devices.take_repaired();
        running.devices.begin_check_round();
        if attached.pins.is_packet_pin_missing() {
            attached.pins.pin_packets(&mut map::clone_handles(&running.handles)?)?;
            repaired.pins = true;
        }
        Ok(())
    }
}

/// Clones the maps that only packets use.
fn packet_maps(maps: &MapHandles) -> Result<MapHandles, StartError> {
    let own = Map::packet_maps().chain(Map::flow_maps());
    map::clone_handles(own.filter_map(|map| maps.get_key_value(&map)))
}
