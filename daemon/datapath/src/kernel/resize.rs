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
use super::flows::Flows;
use crate::error::StartError;
use crate::flows::{FlowTable, Moving};
use crate::generation::view;
use crate::load::{self, Layer, PacketPrograms};
use crate::map::{self, Handles, Map};
use crate::packets;
use crate::packets::PacketSwitches;

/// How long the thread works in one piece. Afterwards it rests `REST` times as long, so it takes a tenth of a processor
/// at most.
const SLICE: Duration = Duration::from_millis(5);
const REST: u32 = 9;

/// The most passes over the table. A pass that changes no more than `SMALL_TABLE_BACKENDS_MAX` flows is the last one: the rest is
/// milliseconds of work.
const PASSES_MAX: u32 = 4;
const FEW: u64 = 1_000;

/// The most seconds that flows stand still, whatever becomes of this process; from when a device gets other programs
/// anew.
const STILL_MOST: u32 = 3;

/// The programs move within this time or not at all: flows go on a second after it at the earliest.
const MOVED_WITHIN: Duration = Duration::from_secs(1);

/// The longest wait until programs that are under way are through with their packets; they are so long before.
const GRACE_MOST: Duration = Duration::from_secs(1);
const GRACE_LOOK: Duration = Duration::from_micros(200);

/// When a change that failed is tried again: a busy machine may have failed it. Each time twice as long passes, because
/// each try loads all programs.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
const AGAIN_AFTER_MOST: Duration = Duration::from_secs(600);

/// How many flow numbers are handed out while flows stand still; the sweep goes on with the rest.
const NUMBERS_FIRST: u32 = 4096;

/// A table that is filled, and programs that read it.
struct Filled {
    moving: Moving,
    // The maps of flows, and no others.
    handles: Handles,
    programs: Vec<PacketPrograms>,
}

/// What the thread needs to fill a table.
struct Order {
    layers: Vec<Layer>,
    // All maps but those of flows.
    maps: Handles,
    flows: u32,
    switches: PacketSwitches,
    from: FlowTable,
    // Leads nowhere once the table is not wanted any more.
    wanted: Weak<()>,
}

/// The thread that fills a table of so many flows.
#[derive(Debug)]
pub(super) struct Resizing {
    flows: u32,
    // How often the maps had grown when the thread began.
    growths: u32,
    thread: JoinHandle<Result<Filled, StartError>>,
    _wanted: Arc<()>,
}

/// Why the table did not get its size, and when that is tried again.
#[derive(Debug)]
pub(super) struct ResizeFailure {
    pub(super) why: String,
    at: Instant,
    wait: Duration,
}

impl ResizeFailure {
    fn new(error: &StartError, before: Option<Self>) -> Self {
        let wait = before.map_or(AGAIN_AFTER, |it| (it.wait * 2).min(AGAIN_AFTER_MOST));
        Self { why: error.to_string(), at: Instant::now(), wait }
    }

    fn is_over(&self) -> bool {
        self.at.elapsed() >= self.wait
    }
}

impl Order {
    fn carry_out(self) -> Result<Filled, StartError> {
        let (programs, maps) = load::packets_at(&self.layers, &self.maps, (self.flows, &self.switches))?;
        let handles = map::copies(Map::of_flows().filter_map(|map| maps.get_key_value(&map)))?;
        let mut moving = Moving::new(self.from.clone(), FlowTable::new(&maps)?);
        for _ in 0..PASSES_MAX {
            if self.pass(&mut moving)? <= FEW {
                break;
            }
        }
        Ok(Filled { moving, handles, programs })
    }

    fn pass(&self, moving: &mut Moving) -> Result<u64, StartError> {
        loop {
            let began = Instant::now();
            if let Some(changed) = moving.some(began + SLICE).map_err(StartError::loading)? {
                return Ok(changed);
            }
            if self.wanted.strong_count() == 0 {
                return Err(failed("nobody wants it any more"));
            }
            std::thread::sleep(began.elapsed() * REST);
        }
    }
}

const NO_PACKETS: &str = "packets are not translated any more";

/// The second at which flows go on that stand still from now on, if they are told nothing else before.
fn go_on_at() -> u32 {
    FlowTable::since_boot().saturating_add(STILL_MOST)
}

fn failed(why: &str) -> StartError {
    StartError::loading(std::io::Error::other(why.to_owned()).into())
}

impl KernelMaps {
    /// Sets how many flows there may be. Flows go on while the table gets that size, which takes a while; a smaller
    /// table leaves out the flows that are least worth keeping.
    pub fn set_flows(&mut self, flows: u32) {
        if let Some(options) = &mut self.packets.options
            && options.flows != flows
        {
            options.flows = flows;
            self.packets.resize_failure = None;
        }
    }

    /// Takes the next step of a change of the table's size. To be called about once a second.
    pub(super) fn follow_size(&mut self) {
        let wanted = self.packets.options.as_ref().map(|options| options.flows);
        let Some((wanted, has)) = wanted.zip(self.flows.as_ref().map(|flows| flows.table.max())) else {
            return;
        };
        let resizing = self.packets.resizing.take().filter(|resizing| resizing.flows == wanted);
        let done = match resizing {
            Some(resizing) if resizing.thread.is_finished() => {
                self.conclude_resizing(resizing).map(|()| self.packets.resize_failure = None)
            }
            Some(resizing) => {
                self.packets.resizing = Some(resizing);
                Ok(())
            }
            None if has != wanted && self.may_resize() => self.begin_resizing(wanted),
            None => Ok(()),
        };
        if let Err(error) = done {
            let before = self.packets.resize_failure.take();
            self.packets.resize_failure = Some(ResizeFailure::new(&error, before));
        }
    }

    /// Whether a change of size may begin: none has just failed, all that a former daemon left in the table is known,
    /// and each number is in use or can be had.
    fn may_resize(&self) -> bool {
        let is_known = |flows: &Flows| flows.sweeping.swept().passes > 0 && flows.table.hand_out_is_over();
        self.packets.resize_failure.as_ref().is_none_or(ResizeFailure::is_over)
            && self.flows.as_ref().is_some_and(is_known)
    }

    fn begin_resizing(&mut self, flows: u32) -> Result<(), StartError> {
        let (Some((layers, own, switches)), Some(Flows { table, .. })) =
            (self.packets.to_load()?, &self.flows)
        else {
            return Ok(());
        };
        let wanted = Arc::new(());
        let order = Order {
            layers,
            maps: self.with_those_of_packets(own.iter().filter(|(map, _)| !map.is_of_flows()))?,
            flows,
            switches,
            from: table.clone(),
            wanted: Arc::downgrade(&wanted),
        };
        let builder = std::thread::Builder::new().name("resize".to_owned());
        let thread =
            builder.spawn(|| order.carry_out()).map_err(|error| StartError::loading(error.into()))?;
        self.packets.resizing = Some(Resizing { flows, growths: self.growths, thread, _wanted: wanted });
        Ok(())
    }

    fn with_those_of_packets<'a>(
        &'a self,
        own: impl Iterator<Item = (&'a Map, &'a MapHandle)>,
    ) -> Result<Handles, StartError> {
        map::copies(self.shared.handles().iter().chain(self.generation.handles()).chain(own))
    }

    fn conclude_resizing(&mut self, Resizing { growths, thread, .. }: Resizing) -> Result<(), StartError> {
        let mut filled = thread.join().unwrap_or_else(|_| Err(failed("the thread has ended")))?;
        if growths != self.growths || !self.packets.are_enough(&filled.programs) {
            filled.programs = self.programs_for(&filled.handles)?;
        }
        let Some(Flows { sweeping, .. }) = self.flows.take() else { return Ok(()) };
        let (mut kept_free, swept) = sweeping.stop();
        let switched = self.stand_still().and_then(|until| self.switch(&mut filled, until));
        if let Some(kept_free) = kept_free.as_mut().filter(|_| switched.is_ok()) {
            kept_free.move_to(filled.moving.table().clone());
        }
        let switched = self.go_on().and(switched);
        if switched.is_ok() {
            self.packets.given_up.add(filled.moving.conclude());
        }
        // If the thread gives no ports back that it kept free, the next call of `follow_flows` opens the table anew.
        self.flows = kept_free.map(|kept_free| Flows::start(kept_free, swept)).transpose()?;
        switched
    }

    /// Loads programs for a filled table once more, because other tables have moved or devices need further programs.
    fn programs_for(&self, flows: &Handles) -> Result<Vec<PacketPrograms>, StartError> {
        let Some((layers, own, switches)) = self.packets.to_load()? else { return Ok(Vec::new()) };
        let others = own.iter().filter(|(map, _)| !map.is_of_flows());
        let maps = self.with_those_of_packets(others.chain(flows))?;
        Ok(load::packets_at(&layers, &maps, (0, &switches))?.0)
    }

    /// Has flows stand still, and waits until programs that are under way are through with their packets. Gives until
    /// when the programs may be moved.
    fn stand_still(&mut self) -> Result<Instant, StartError> {
        let until = Instant::now() + MOVED_WITHIN;
        self.tell_packets(go_on_at())?;
        let grace = self.grace.begin();
        let began = Instant::now();
        while !self.grace.is_over(grace) {
            if began.elapsed() > GRACE_MOST {
                return Err(failed("the kernel does not tell when programs are through with their packets"));
            }
            std::thread::sleep(GRACE_LOOK);
        }
        Ok(until)
    }

    fn go_on(&self) -> Result<(), StartError> {
        self.tell_packets(0)
    }

    fn tell_packets(&self, drains: u32) -> Result<(), StartError> {
        let (Some(running), Some(options)) = (&self.packets.running, &self.packets.options) else {
            return Ok(());
        };
        packets::tell(&running.handles, options, drains)
    }

    /// Moves pins and programs to the new table, while flows stand still: until the last device has other programs,
    /// however many there are, because what began by the former ones would be lost. An error: nothing reads the new
    /// table.
    fn switch(&mut self, filled: &mut Filled, until: Instant) -> Result<(), StartError> {
        let mut copies = map::copies(&filled.handles)?;
        let (Some(running), Some(options)) = (&self.packets.running, &self.packets.options) else {
            return Err(failed(NO_PACKETS));
        };
        let (settings, options) = (view(&running.handles, Map::PacketSettings)?, options.clone());
        self.pin(filled, until)?;
        let Some(running) = &mut self.packets.running else { return Ok(()) };
        running.handles.append(&mut copies);
        let stand_still = || packets::tell_by(&settings, &options, go_on_at());
        running.devices.update(std::mem::take(&mut filled.programs), stand_still);
        // The programs that are being made for a growth read the old table.
        self.ahead = super::ahead::Ahead::Nothing;
        Ok(())
    }

    /// Makes the pins lead to the new table. Its numbers are noted before anything else is done: the next start goes on
    /// with them, whatever becomes of this process.
    fn pin(&self, Filled { moving, handles, .. }: &mut Filled, until: Instant) -> Result<(), StartError> {
        let (Some(_), Some(attached)) = (&self.packets.running, &self.attached) else {
            return Err(failed(NO_PACKETS));
        };
        moving.finish().and_then(|()| moving.hand_out(NUMBERS_FIRST)).map_err(StartError::loading)?;
        if Instant::now() >= until {
            return Err(failed("flows would have stood still for too long"));
        }
        moving.hand_out_no_more();
        attached.pins.replace_flows(handles)?;
        moving.note_numbers();
        Ok(())
    }
}

#[cfg(test)]
impl KernelMaps {
    /// Has a change to the size that is asked for fail, as on a machine that is too busy for it.
    pub(super) fn fail_resizing(&mut self) {
        let flows = self.packets.options.as_ref().unwrap().flows;
        let thread = std::thread::spawn(|| Err(failed("the machine is busy")));
        let (growths, _wanted) = (self.growths, Arc::new(()));
        self.packets.resizing = Some(Resizing { flows, growths, thread, _wanted });
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
        let _ = self.flows.take().unwrap().sweeping.stop();
        let until = self.stand_still().unwrap();
        self.tell_packets(2).unwrap();
        self.switch(&mut filled, until).unwrap();
    }

    /// Goes on with a change of size until the pins lead to the new table, and no further.
    pub(super) fn resize_as_far_as_pins(&mut self) {
        let resizing = self.packets.resizing.take().unwrap();
        let mut filled = resizing.thread.join().unwrap().unwrap();
        let _ = self.flows.take().unwrap().sweeping.stop();
        let until = self.stand_still().unwrap();
        self.pin(&mut filled, until).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_failed_is_tried_again_ever_less_often() {
        let mut failure = ResizeFailure::new(&failed("busy"), None);
        let mut waits = vec![failure.wait.as_secs()];
        for _ in 0..7 {
            assert!(!failure.is_over());
            failure = ResizeFailure::new(&failed("busy"), Some(failure));
            waits.push(failure.wait.as_secs());
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
        assert!(ResizeFailure { wait: Duration::ZERO, ..failure }.is_over());
    }
}
