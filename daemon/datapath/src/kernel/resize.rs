//! The table of flows in another size, while clients go on.
//!
//! Invariant: packets are translated by one table. The other one is filled beside; at the end flows stand still for a
//! moment, what has changed is brought along, and the programs that read the other table take the place of the former
//! ones. A failure or a crash before that leaves all as it was. Flows that stand still go on by themselves, also where
//! this process has died.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;

use super::KernelMaps;
use super::flows::FlowTracking;
use crate::error::StartError;
use crate::flows::{FlowMigration, FlowTable};
use crate::generation::map_array;
use crate::load::{self, LinkLayer, PacketPrograms};
use crate::map::{self, Map, MapHandles};
use crate::packets;
use crate::packets::PacketSwitches;

/// How long the thread works in one piece. Afterwards it rests `CLEAR_REST` times as long, so it takes a tenth of a processor
/// at most.
const SLICE: Duration = Duration::from_millis(5);
const REST: u32 = 9;

/// The most passes over the table. A pass that changes no more than `SMALL_TABLE_BACKENDS_MAX` flows is the last one: the rest is
/// milliseconds of work.
const PASSES_MAX: u32 = 4;
const LAST_PASS_CHANGES: u64 = 1_000;

/// The most seconds that flows stand still, whatever becomes of this process; from when a device gets other programs
/// anew.
const PAUSE_SECONDS_MAX: u32 = 3;

/// The programs move within this time or not at all: flows go on a second after it at the earliest.
const MOVE_TIME_MAX: Duration = Duration::from_secs(1);

/// The longest wait until programs that are under way are through with their packets; they are so long before.
const GRACE_MAX: Duration = Duration::from_secs(1);
const GRACE_LOOK: Duration = Duration::from_micros(200);

/// When a change that failed is tried again: a busy machine may have failed it. Each time twice as long passes, because
/// each try loads all programs.
const RETRY_AFTER: Duration = Duration::from_secs(10);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// How many flow numbers are handed out while flows stand still; the sweep goes on with the rest.
const NUMBERS_FIRST: u32 = 4096;

/// A table that is filled, and programs that read it.
struct FilledTable {
    moving: FlowMigration,
    // The maps of flows, and no others.
    handles: MapHandles,
    programs: Vec<PacketPrograms>,
}

/// What the thread needs to fill a table.
struct ResizeOrder {
    layers: Vec<LinkLayer>,
    // All maps but those of flows.
    maps: MapHandles,
    flows: u32,
    switches: PacketSwitches,
    from: FlowTable,
    // Leads nowhere once the table is not wanted any more.
    wanted: Weak<()>,
}

/// The thread that fills a table of so many flows.
#[derive(Debug)]
pub(super) struct FlowResize {
    flows: u32,
    // How often the maps had grown when the thread began.
    growths: u32,
    thread: JoinHandle<Result<FilledTable, StartError>>,
    _wanted: Arc<()>,
}

/// Why the table did not get its size, and when that is tried again.
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
        let (programs, maps) = load::load_packets(&self.layers, &self.maps, (self.flows, &self.switches))?;
        let handles = map::clone_handles(Map::flow_maps().filter_map(|map| maps.get_key_value(&map)))?;
        let mut moving = FlowMigration::new(self.from.clone(), FlowTable::new(&maps)?);
        for _ in 0..PASSES_MAX {
            if self.run_pass(&mut moving)? <= LAST_PASS_CHANGES {
                break;
            }
        }
        Ok(FilledTable { moving, handles, programs })
    }

    fn run_pass(&self, moving: &mut FlowMigration) -> Result<u64, StartError> {
        loop {
            let began = Instant::now();
            if let Some(changed) = moving.run_pass(began + SLICE).map_err(StartError::from_load)? {
                return Ok(changed);
            }
            if self.wanted.strong_count() == 0 {
                return Err(resize_error("nobody wants it any more"));
            }
            std::thread::sleep(began.elapsed() * REST);
        }
    }
}

const NO_PACKETS: &str = "packets are not translated any more";

/// The second at which flows go on that stand still from now on, if they are told nothing else before.
fn resume_time() -> u32 {
    FlowTable::monotonic_seconds().saturating_add(PAUSE_SECONDS_MAX)
}

fn resize_error(why: &str) -> StartError {
    StartError::from_load(std::io::Error::other(why.to_owned()).into())
}

impl KernelMaps {
    /// Sets how many flows there may be. Flows go on while the table gets that size, which takes a while; a smaller
    /// table leaves out the flows that are least worth keeping.
    pub fn set_flow_capacity(&mut self, flows: u32) {
        if let Some(options) = &mut self.packets.options
            && options.flows != flows
        {
            options.flows = flows;
            self.packets.resize_failure = None;
        }
    }

    /// Takes the next step of a change of the table's size. To be called about once a second.
    pub(super) fn update_size(&mut self) {
        let wanted = self.packets.options.as_ref().map(|options| options.flows);
        let Some((wanted, has)) = wanted.zip(self.flows.as_ref().map(|flows| flows.table.capacity())) else {
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
            None if has != wanted && self.can_resize() => self.begin_resize(wanted),
            None => Ok(()),
        };
        if let Err(error) = done {
            let before = self.packets.resize_failure.take();
            self.packets.resize_failure = Some(ResizeFailure::new(&error, before));
        }
    }

    /// Whether a change of size may begin: none has just failed, all that a former daemon left in the table is known,
    /// and each number is in use or can be had.
    fn can_resize(&self) -> bool {
        let is_known =
            |flows: &FlowTracking| flows.sweep.progress().passes > 0 && flows.table.are_numbers_released();
        self.packets.resize_failure.as_ref().is_none_or(ResizeFailure::is_retry_due)
            && self.flows.as_ref().is_some_and(is_known)
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
        if growths != self.growths || !self.packets.covers_layers(&filled.programs) {
            filled.programs = self.load_programs_for(&filled.handles)?;
        }
        let Some(FlowTracking { sweep: sweeping, .. }) = self.flows.take() else { return Ok(()) };
        let (mut kept_free, swept) = sweeping.stop();
        let switched = self.pause_flows().and_then(|until| self.switch_table(&mut filled, until));
        if let Some(kept_free) = kept_free.as_mut().filter(|_| switched.is_ok()) {
            kept_free.move_to_table(filled.moving.table().clone());
        }
        let switched = self.resume_flows().and(switched);
        if switched.is_ok() {
            self.packets.given_up.add(filled.moving.finish_counts());
        }
        // If the thread gives no ports back that it kept free, the next call of `follow_flows` opens the table anew.
        self.flows = kept_free.map(|kept_free| FlowTracking::start(kept_free, swept)).transpose()?;
        switched
    }

    /// Loads programs for a filled table once more, because other tables have moved or devices need further programs.
    fn load_programs_for(&self, flows: &MapHandles) -> Result<Vec<PacketPrograms>, StartError> {
        let Some((layers, own, switches)) = self.packets.load_inputs()? else { return Ok(Vec::new()) };
        let others = own.iter().filter(|(map, _)| !map.is_flow_map());
        let maps = self.with_packet_maps(others.chain(flows))?;
        Ok(load::load_packets(&layers, &maps, (0, &switches))?.0)
    }

    /// Has flows stand still, and waits until programs that are under way are through with their packets. Gives until
    /// when the programs may be moved.
    fn pause_flows(&mut self) -> Result<Instant, StartError> {
        let until = Instant::now() + MOVE_TIME_MAX;
        self.write_settings(resume_time())?;
        let grace = self.grace.begin();
        let began = Instant::now();
        while !self.grace.is_over(grace) {
            if began.elapsed() > GRACE_MAX {
                return Err(resize_error(
                    "the kernel does not tell when programs are through with their packets",
                ));
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

    /// Moves pins and programs to the new table, while flows stand still: until the last device has other programs,
    /// however many there are, because what began by the former ones would be lost. An error: nothing reads the new
    /// table.
    fn switch_table(&mut self, filled: &mut FilledTable, until: Instant) -> Result<(), StartError> {
        let mut copies = map::clone_handles(&filled.handles)?;
        let (Some(running), Some(options)) = (&self.packets.running, &self.packets.options) else {
            return Err(resize_error(NO_PACKETS));
        };
        let (settings, options) = (map_array(&running.handles, Map::PacketSettings)?, options.clone());
        self.pin_table(filled, until)?;
        let Some(running) = &mut self.packets.running else { return Ok(()) };
        running.handles.append(&mut copies);
        let stand_still = || packets::write_settings_to(&settings, &options, resume_time());
        running.devices.replace_programs(std::mem::take(&mut filled.programs), stand_still);
        // The programs that are being made for a growth read the old table.
        self.prebuild = super::prebuild::Prebuild::Idle;
        Ok(())
    }

    /// Makes the pins lead to the new table. Its numbers are noted before anything else is done: the next start goes on
    /// with them, whatever becomes of this process.
    fn pin_table(
        &self,
        FilledTable { moving, handles, .. }: &mut FilledTable,
        until: Instant,
    ) -> Result<(), StartError> {
        let (Some(_), Some(attached)) = (&self.packets.running, &self.attached) else {
            return Err(resize_error(NO_PACKETS));
        };
        moving
            .run_last_pass()
            .and_then(|()| moving.release_numbers(NUMBERS_FIRST))
            .map_err(StartError::from_load)?;
        if Instant::now() >= until {
            return Err(resize_error("flows would have stood still for too long"));
        }
        moving.mark_all_released();
        attached.pins.replace_flows(handles)?;
        moving.record_released();
        Ok(())
    }
}

#[cfg(test)]
impl KernelMaps {
    /// Has a change to the size that is asked for fail, as on a machine that is too busy for it.
    pub(super) fn fail_resize(&mut self) {
        let flows = self.packets.options.as_ref().unwrap().flows;
        let thread = std::thread::spawn(|| Err(resize_error("the machine is busy")));
        let (growths, _wanted) = (self.growths, Arc::new(()));
        self.packets.resizing = Some(FlowResize { flows, growths, thread, _wanted });
    }

    /// Has the time come at which a change that failed is tried again.
    pub(super) fn end_wait_for_size(&mut self) {
        self.packets.resize_failure.as_mut().unwrap().wait = Duration::ZERO;
    }

    /// Moves all programs to the new table as if that had taken until long after flows went on. Flows are not told to
    /// go on.
    pub(super) fn resize_slowly(&mut self) {
        let resizing = self.packets.resizing.take().unwrap();
        let mut filled = resizing.thread.join().unwrap().unwrap();
        let _ = self.flows.take().unwrap().sweep.stop();
        let until = self.pause_flows().unwrap();
        self.write_settings(2).unwrap();
        self.switch_table(&mut filled, until).unwrap();
    }

    /// Goes on with a change of size until the pins lead to the new table, and no further.
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
    fn a_change_that_failed_is_tried_again_ever_less_often() {
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
