//! Replaces the flow table by one of another size while clients continue.
//!
//! Invariant: one table translates packets. Another one is filled meanwhile; at the end flows pause for a moment, the
//! last changes are copied, and programs over the new table replace the old ones. A failure or crash before that
//! changes nothing. Paused flows resume by themselves, even if this process has died.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;

use super::KernelMaps;
use super::flows::FlowTracking;
use crate::error::StartError;
use crate::flows::{FlowMigration, FlowTable};
use crate::generation::map_array;
use crate::load::{self, LinkLayer, LoadedPackets};
use crate::map::{self, Map, MapHandles};
use crate::packets;
use crate::packets::PacketSwitches;

/// How long the thread works at a time. Then it rests [`REST`] times as long, so it takes at most a tenth of a
/// processor.
const SLICE: Duration = Duration::from_millis(5);
const REST: u32 = 9;

/// The most passes over the table. A pass with at most [`LAST_PASS_CHANGES`] changes is the last one: the rest takes
/// milliseconds.
const PASSES_MAX: u32 = 4;
const LAST_PASS_CHANGES: u64 = 1_000;

/// The most seconds that flows pause, whatever happens to this process; counted anew from each device's new programs.
const PAUSE_SECONDS_MAX: u32 = 3;

/// The time limit for the move: flows resume a second after it at the earliest.
const MOVE_TIME_MAX: Duration = Duration::from_secs(1);

/// The longest wait for running programs to finish their packets; they rarely take this long.
const GRACE_MAX: Duration = Duration::from_secs(1);
const GRACE_LOOK: Duration = Duration::from_micros(200);

/// The delay before a failed resize is retried, as a busy machine may be the cause. It doubles each time, because each
/// attempt loads all programs.
const RETRY_AFTER: Duration = Duration::from_secs(10);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// How many record numbers are released while flows pause; the sweep releases the rest.
const NUMBERS_FIRST: u32 = 4096;

struct FilledTable {
    migration: FlowMigration,
    // Only the maps of flows.
    handles: MapHandles,
    loaded: LoadedPackets,
}

struct ResizeOrder {
    layers: Vec<LinkLayer>,
    maps: MapHandles,
    flows: u32,
    switches: PacketSwitches,
    from: FlowTable,
    // Dangling once the resize is not wanted any more.
    wanted: Weak<()>,
}

/// The thread that fills a table for so many flows.
#[derive(Debug)]
pub(super) struct FlowResize {
    flows: u32,
    growths: u32,
    thread: JoinHandle<Result<FilledTable, StartError>>,
    _wanted: Arc<()>,
}

/// Why a resize failed, and when it is retried.
#[derive(Debug)]
pub(super) struct ResizeFailure {
    pub(super) reason: String,
    at: Instant,
    wait: Duration,
}

impl ResizeFailure {
    fn new(error: &StartError, before: Option<Self>) -> Self {
        let wait = before.map_or(RETRY_AFTER, |it| (it.wait * 2).min(RETRY_AFTER_MAX));
        Self { reason: error.to_string(), at: Instant::now(), wait }
    }

    fn is_retry_due(&self) -> bool {
        self.at.elapsed() >= self.wait
    }
}

impl ResizeOrder {
    fn fill_table(self) -> Result<FilledTable, StartError> {
        let (loaded, maps) =
            load::load_packets(&self.layers, &self.maps, (self.flows, &self.switches), None)?;
        let handles = map::clone_handles(Map::flow_maps().filter_map(|map| maps.get_key_value(&map)))?;
        let mut migration = FlowMigration::new(self.from.clone(), FlowTable::new(&maps)?);
        for _ in 0..PASSES_MAX {
            if self.run_pass(&mut migration)? <= LAST_PASS_CHANGES {
                break;
            }
        }
        Ok(FilledTable { migration, handles, loaded })
    }

    fn run_pass(&self, migration: &mut FlowMigration) -> Result<u64, StartError> {
        loop {
            let began = Instant::now();
            if let Some(changed) = migration.run_pass(began + SLICE).map_err(StartError::from_load)? {
                return Ok(changed);
            }
            if self.wanted.strong_count() == 0 {
                return Err(resize_error("another size is wanted"));
            }
            std::thread::sleep(began.elapsed() * REST);
        }
    }
}

const NO_PACKETS: &str = "packets are not translated any more";

/// The second at which flows resume by themselves if paused now.
fn resume_time() -> u32 {
    FlowTable::monotonic_seconds().saturating_add(PAUSE_SECONDS_MAX)
}

fn resize_error(why: &str) -> StartError {
    StartError::from_load(std::io::Error::other(why.to_owned()).into())
}

impl KernelMaps {
    /// Sets the flow table's size. Clients continue while it is resized, which takes a while; a smaller table evicts
    /// flows by rank.
    pub fn set_flow_capacity(&mut self, flows: u32) {
        if let Some(options) = &mut self.packets.options
            && options.flows != flows
        {
            options.flows = flows;
            self.packets.resize_failure = None;
        }
    }

    /// Runs the next step of a resize. Call it about once a second.
    pub(super) fn update_size(&mut self) {
        let wanted = self.packets.options.as_ref().map(|options| options.flows);
        let Some((wanted, current)) = wanted.zip(self.flows.as_ref().map(|flows| flows.table.capacity()))
        else {
            return;
        };
        let resizing = self.packets.resizing.take().filter(|resizing| resizing.flows == wanted);
        let done = match resizing {
            Some(resizing) if resizing.thread.is_finished() => {
                self.finish_resize(resizing).map(|()| self.packets.resize_failure = None)
            }
            Some(resizing) => {
                self.packets.resizing = Some(resizing);
                Ok(())
            }
            None if current != wanted && self.can_resize() => self.begin_resize(wanted),
            None => Ok(()),
        };
        if let Err(error) = done {
            let before = self.packets.resize_failure.take();
            self.packets.resize_failure = Some(ResizeFailure::new(&error, before));
        }
    }

    /// Whether a resize may begin: no recent failure, a complete first sweep, and all record numbers released.
    fn can_resize(&self) -> bool {
        let is_swept =
            |flows: &FlowTracking| flows.sweep.progress().passes > 0 && flows.table.are_numbers_released();
        self.packets.resize_failure.as_ref().is_none_or(ResizeFailure::is_retry_due)
            && self.flows.as_ref().is_some_and(is_swept)
    }

    fn begin_resize(&mut self, flows: u32) -> Result<(), StartError> {
        let (Some((layers, own, switches)), Some(FlowTracking { table, .. })) =
            (self.packets.load_inputs()?, &self.flows)
        else {
            return Ok(());
        };
        let wanted = Arc::new(());
        let order = ResizeOrder {
            layers,
            maps: self.with_packet_maps(own.iter().filter(|(map, _)| !map.is_flow_map()))?,
            flows,
            switches,
            from: table.clone(),
            wanted: Arc::downgrade(&wanted),
        };
        let builder = std::thread::Builder::new().name("resize".to_owned());
        let thread =
            builder.spawn(|| order.fill_table()).map_err(|error| StartError::from_load(error.into()))?;
        self.packets.resizing = Some(FlowResize { flows, growths: self.growths, thread, _wanted: wanted });
        Ok(())
    }

    fn with_packet_maps<'a>(
        &'a self,
        own: impl Iterator<Item = (&'a Map, &'a MapHandle)>,
    ) -> Result<MapHandles, StartError> {
        map::clone_handles(self.shared.handles().iter().chain(self.generation.handles()).chain(own))
    }

    fn finish_resize(&mut self, FlowResize { growths, thread, .. }: FlowResize) -> Result<(), StartError> {
        let mut filled = thread.join().unwrap_or_else(|_| Err(resize_error("the thread has ended")))?;
        if growths != self.growths || !self.packets.covers_layers(&filled.loaded.programs) {
            filled.loaded = self.load_programs_for(&filled.handles)?;
        }
        let Some(FlowTracking { sweep, .. }) = self.flows.take() else { return Ok(()) };
        let (mut reserved_ports, swept) = sweep.stop();
        let switched = self.pause_flows().and_then(|until| self.switch_table(&mut filled, until));
        if let Some(reserved_ports) = reserved_ports.as_mut().filter(|_| switched.is_ok()) {
            reserved_ports.move_to_table(filled.migration.table().clone());
        }
        let resumed = self.resume_flows();
        if switched.is_ok() {
            self.pin_packet_programs(&filled.loaded.maps);
        }
        let switched = resumed.and(switched);
        if switched.is_ok() {
            self.packets.given_up.add(filled.migration.finish_counts());
        }
        // If the sweep thread failed, `update_flows` opens the table anew.
        self.flows = reserved_ports.map(|it| FlowTracking::start(it, swept)).transpose()?;
        switched
    }

    /// Loads programs for a filled table again, because tables have moved or devices need more programs.
    fn load_programs_for(&self, flows: &MapHandles) -> Result<LoadedPackets, StartError> {
        let Some((layers, own, switches)) = self.packets.load_inputs()? else {
            return Err(resize_error(NO_PACKETS));
        };
        let others = own.iter().filter(|(map, _)| !map.is_flow_map());
        let maps = self.with_packet_maps(others.chain(flows))?;
        Ok(load::load_packets(&layers, &maps, (0, &switches), None)?.0)
    }

    /// Pauses flows, and waits until running programs have finished their packets. Returns the time limit for moving
    /// programs.
    fn pause_flows(&mut self) -> Result<Instant, StartError> {
        let until = Instant::now() + MOVE_TIME_MAX;
        self.write_settings(resume_time())?;
        let grace = self.grace.begin();
        let began = Instant::now();
        while !self.grace.is_over(grace) {
            if began.elapsed() > GRACE_MAX {
                return Err(resize_error("the kernel did not report that running programs have ended"));
            }
            std::thread::sleep(GRACE_LOOK);
        }
        Ok(until)
    }

    fn resume_flows(&self) -> Result<(), StartError> {
        self.write_settings(0)
    }

    fn write_settings(&self, drains: u32) -> Result<(), StartError> {
        let (Some(running), Some(options)) = (&self.packets.running, &self.packets.options) else {
            return Ok(());
        };
        packets::write_settings(&running.handles, options, drains)
    }

    /// Moves pins and programs to the new table while flows pause. The pause lasts until the last device has its new
    /// programs, because a flow opened by an old one would be lost. After an error nothing reads the new table.
    fn switch_table(&mut self, filled: &mut FilledTable, until: Instant) -> Result<(), StartError> {
        let mut copies = map::clone_handles(&filled.handles)?;
        let (Some(running), Some(options)) = (&self.packets.running, &self.packets.options) else {
            return Err(resize_error(NO_PACKETS));
        };
        let (settings, options) = (map_array(&running.handles, Map::PacketSettings)?, options.clone());
        self.pin_table(filled, until)?;
        let Some(running) = &mut self.packets.running else { return Ok(()) };
        running.handles.append(&mut copies);
        let extend_pause = || packets::write_settings_to(&settings, &options, resume_time());
        running.devices.replace_programs(std::mem::take(&mut filled.loaded.programs), extend_pause);
        // A prebuild's programs read the old table.
        self.prebuild = super::prebuild::Prebuild::Idle;
        Ok(())
    }

    /// Pins the new table. It marks its numbers first: the next start continues with them, whatever happens to this
    /// process.
    fn pin_table(
        &self,
        FilledTable { migration, handles, .. }: &mut FilledTable,
        until: Instant,
    ) -> Result<(), StartError> {
        let (Some(_), Some(attached)) = (&self.packets.running, &self.attached) else {
            return Err(resize_error(NO_PACKETS));
        };
        migration
            .run_last_pass()
            .and_then(|()| migration.release_numbers(NUMBERS_FIRST))
            .map_err(StartError::from_load)?;
        if Instant::now() >= until {
            return Err(resize_error("flows would have paused for too long"));
        }
        migration.mark_all_released();
        attached.pins.replace_flows(handles)?;
        migration.record_released();
        Ok(())
    }
}

#[cfg(test)]
impl KernelMaps {
    /// Lets a resize to the wanted size fail, as on a busy machine.
    pub(super) fn fail_resize(&mut self) {
        let flows = self.packets.options.as_ref().unwrap().flows;
        let thread = std::thread::spawn(|| Err(resize_error("the machine is busy")));
        let (growths, _wanted) = (self.growths, Arc::new(()));
        self.packets.resizing = Some(FlowResize { flows, growths, thread, _wanted });
    }

    /// Ends the delay of a failed resize.
    pub(super) fn end_wait_for_size(&mut self) {
        self.packets.resize_failure.as_mut().unwrap().wait = Duration::ZERO;
    }

    /// Moves all programs to the new table as if that had taken until long after flows resumed. Does not resume flows.
    pub(super) fn resize_slowly(&mut self) {
        let resizing = self.packets.resizing.take().unwrap();
        let mut filled = resizing.thread.join().unwrap().unwrap();
        let _ = self.flows.take().unwrap().sweep.stop();
        let until = self.pause_flows().unwrap();
        self.write_settings(2).unwrap();
        self.switch_table(&mut filled, until).unwrap();
    }

    /// Runs a resize until the pins lead to the new table.
    pub(super) fn resize_as_far_as_pins(&mut self) {
        let resizing = self.packets.resizing.take().unwrap();
        let mut filled = resizing.thread.join().unwrap().unwrap();
        let _ = self.flows.take().unwrap().sweep.stop();
        let until = self.pause_flows().unwrap();
        self.pin_table(&mut filled, until).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_resize_is_retried_ever_less_often() {
        let mut failure = ResizeFailure::new(&resize_error("busy"), None);
        let mut waits = vec![failure.wait.as_secs()];
        for _ in 0..7 {
            assert!(!failure.is_retry_due());
            failure = ResizeFailure::new(&resize_error("busy"), Some(failure));
            waits.push(failure.wait.as_secs());
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
        assert!(ResizeFailure { wait: Duration::ZERO, ..failure }.is_retry_due());
    }
}
