//! Packets beside sockets: programs at devices, over the same tables.
//!
//! Invariant: a failure here leaves sockets served; it is kept as text, and what failed is tried again, ever more
//! seldom. The programs of packets read the generation that is written, or the status says that they do not.

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
use crate::load::{self, LinkLayer, PacketPrograms};
use crate::map::{self, Map, MapHandles};
use crate::packets::{self, AdoptedFlows, PacketOptions, PacketSwitches};

/// The longest wait for the next attempt, in looks. It is one look after the first failure, and twice as long after
/// each further one: loading costs a good part of a second, and what the kernel refused once it refuses again.
const RETRY_LOOKS_MAX: u32 = 256;

/// What is to be done for packets, and how far it has come.
#[derive(Debug, Default)]
pub(super) struct PacketTranslation {
    pub(super) options: Option<PacketOptions>,
    // The devices that were asked for last; `None`: none were yet, so what a former daemon left stays.
    desired_devices: Option<Vec<Device>>,
    pub(super) running: Option<RunningPackets>,
    // The programs that are loaded beside those of sockets, until they are taken.
    pub(super) load_thread: Option<PacketLoadThread>,
    // Whether programs at devices read tables that are no longer written, or are a former daemon's.
    is_behind: bool,
    failure: Option<String>,
    retry: RetryTimer,
    // Whether what a former daemon left was taken away, where packets are not to be translated.
    is_withdrawn: bool,
    // The change of size of the table of flows that is under way.
    pub(super) resizing: Option<FlowResize>,
    // Why the last change of size failed; nothing is tried again before another size is asked for.
    pub(super) resize_failure: Option<ResizeFailure>,
    pub(super) given_up: EvictedFlows,
}

/// What there is while packets are translated.
#[derive(Debug)]
pub(super) struct RunningPackets {
    pub(super) handles: MapHandles,
    ports: Bitmap,
    pub(super) devices: Devices,
}

/// When to try again.
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

    /// Notes a frontend that has come: if it is for all addresses of the node, the bit of its port is set, and never
    /// taken back.
    pub(super) fn note_inserted(&mut self, key: &FrontendKey) {
        if let Some(running) = self.running.as_mut().filter(|_| key.address.is_unspecified()) {
            running.ports.set(key.port.get().into());
        }
    }

    /// The link layers that programs have to be loaded for. The kernel's verifier takes half a second for each.
    pub(super) fn link_layers(&self) -> Vec<LinkLayer> {
        devices::query_layers(self.desired_devices.as_deref().unwrap_or_default())
    }

    /// Whether these programs are for the link layers of all devices.
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

    /// The maps of packets, those of flows among them; `None`: packets are not translated.
    pub(super) fn handles(&self) -> Option<&MapHandles> {
        self.running.as_ref().map(|running| &running.handles)
    }

    /// The ports of this node that clients are given.
    pub(super) fn snat_ports(&self) -> Vec<RangeInclusive<u16>> {
        self.options.iter().flat_map(|options| options.snat_ports.clone()).collect()
    }

    /// What programs of packets are loaded with when tables have moved: link layers, maps of packets, switches. `None`:
    /// packets are not translated.
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
    /// Translates packets too from now on, if that is asked for and sockets are served. A failure is kept for the
    /// status, and [`Self::repair`] tries again. If it is not asked for, takes from devices what a former daemon left
    /// there.
    pub fn serve_packets(&mut self) {
        if self.packets.options.is_none() && !self.packets.is_withdrawn && self.is_serving() {
            self.packets.is_withdrawn = true;
            self.detach_packets();
        }
        let is_wanted = self.packets.options.is_some() && self.packets.running.is_none();
        if is_wanted && self.is_serving() && self.packets.retry.tick() {
            let begun = self.start_packets();
            self.packets.is_behind = begun.is_err() && devices::has_any_attached(&self.device_pins());
            self.packets.record_outcome(begun);
        }
    }

    /// Sets the devices at which packets are translated from now on. [`Self::continue_devices`] does what follows from it.
    pub fn set_devices(&mut self, devices: &[Device]) {
        self.packets.desired_devices = Some(devices.to_vec());
        if self.packets.running.as_ref().is_some_and(|running| !running.devices.covers_layers(devices)) {
            self.retry_packet_load();
        }
        if let Some(running) = &mut self.packets.running {
            running.devices.set_devices(devices);
        }
    }

    /// Does what is to be done at devices, at least one step of some ten milliseconds, until `is_over`. `true`: there
    /// is more to do.
    pub fn tend_devices(&mut self, is_over: impl Fn() -> bool) -> bool {
        self.packets.running.as_mut().is_some_and(|running| running.devices.run_steps(is_over))
    }

    /// Looks at once whether the drivers of devices still do what their programs need.
    pub fn check_drivers(&mut self) {
        if let Some(running) = &mut self.packets.running {
            running.devices.check_drivers();
        }
    }

    /// Whether a device that leads to other hosts still waits for its programs.
    pub fn awaits_uplink(&self) -> bool {
        self.packets.running.as_ref().is_some_and(|running| running.devices.awaits_uplink())
    }

    /// How packets are translated; `None`: they are not to be.
    pub fn packet_status(&self) -> Option<PacketStatus> {
        self.packets.status()
    }

    pub(super) fn is_serving(&self) -> bool {
        self.attached.as_ref().is_some_and(|attached| attached.links.are_attached())
    }

    /// Takes from devices what a former daemon left there. Its flows stay for a later daemon that translates packets.
    fn detach_packets(&self) {
        let Some(attached) = &self.attached else { return };
        let found = attached.pins.adopt_packets().ok();
        if let Some(entries) = found.and_then(|found| open_counted_table(&found, Map::Devices).ok()) {
            let mut devices = Devices::adopt(self.features, &self.device_pins(), Vec::new(), entries);
            devices.set_devices(&[]);
            while devices.run_steps(|| false) {}
        }
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
            // Told before anything is loaded, which may fail: former programs that left new clients to another proxy
            // (`drain`) serve all clients again.
            packets::write_settings(&found, &options, 0)?;
        }
        let first = match self.packets.load_thread.take().filter(|_| self.growths == 0) {
            Some(first) => first,
            None => {
                let sockets = self.shared.handles().iter().chain(self.generation.handles());
                PacketLoadThread::start(self.packets.link_layers(), &options, sockets.chain(&found))?
            }
        };
        let mut handles = packet_maps(&first.maps)?;
        if are_new {
            packets::release_first_numbers(&handles)?;
        }
        if former.contains_key(&Map::Devices) && !found.contains_key(&Map::Devices) {
            packets::copy_devices(&former, &handles)?;
        }
        let programs = first.join()?;
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
        Ok(())
    }

    /// Notes at which ports and frontends packets of a former daemon's flows arrive, once all of these flows were
    /// looked at.
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

    /// Loads all programs of packets anew, because tables have moved. Until that works the old programs stay, and are
    /// behind.
    pub(super) fn move_packets(&mut self) {
        if self.packets.running.is_some() {
            self.packets.is_behind = true;
            self.retry_packet_load();
        }
    }

    /// Loads all programs of packets anew, for other tables or for further devices. Until that works the old programs
    /// stay.
    fn retry_packet_load(&mut self) {
        let loaded = self.reload_packets();
        self.packets.record_outcome(loaded);
    }

    /// Puts in place the programs that were loaded for tables that have just moved. If none were loaded, or not all
    /// that are needed, they are loaded anew; if the load failed, the old programs are behind.
    pub(super) fn replace_packets(&mut self, loaded: Option<Result<Vec<PacketPrograms>, StartError>>) {
        let is_enough = matches!(&loaded, Some(Ok(programs)) if self.packets.covers_layers(programs));
        let Some(running) = &mut self.packets.running else { return };
        match loaded {
            Some(Ok(programs)) if is_enough => {
                running.devices.replace_programs(programs, || ());
                self.packets.is_behind = false;
                self.packets.record_outcome(Ok(()));
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
        let Some(running) = &mut self.packets.running else { return Ok(()) };
        let all = self.shared.handles().iter().chain(self.generation.handles()).chain(&running.handles);
        let (programs, _) = load::load_packets(&layers, &map::clone_handles(all)?, (0, &switches))?;
        running.devices.replace_programs(programs, || ());
        self.packets.is_behind = false;
        Ok(())
    }

    /// Does what could not be done yet, and puts back what was taken away from outside.
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

/// Copies of those maps that are for packets alone.
fn packet_maps(maps: &MapHandles) -> Result<MapHandles, StartError> {
    let own = Map::packet_maps().chain(Map::flow_maps());
    map::clone_handles(own.filter_map(|map| maps.get_key_value(&map)))
}
