//! Simulates the whole engine: random events, accidents and intended losses, faults, crashes, restarts and slow
//! clients, from a seed.
//!
//! Invariant: after every op and step, each client gets an answer that an independent model allows. No list becomes
//! empty without a classification, and no hold outlives its bound. At rest, maps and snapshot equal the model, and
//! nothing is leaked. The same seed gives the same simulation.

pub mod crowd;
mod happenings;
pub mod history;
pub mod hostile;
pub mod model;
pub mod policy;
pub mod population;
mod random;
mod rest;
mod rows;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::change::{Cause, Change};
use holdfast_core::engine::{Engine, SavedSnapshot};
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::hold::ProbeResult;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, MemoryMaps};
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;

use crate::faulty::{Faults, FaultyMaps};
use crate::observing::ObservingMaps;
use history::{History, Memory};
use policy::Rule;
pub use random::Random;
use rows::Rows;
pub use rows::Turned;
use watch::{CLIENTS, SlowClient, Watch};

/// How many slow clients run at once.
const SLOW_CLIENTS_MAX: usize = 3;

/// Small, so that slots are reused soon.
const CAPACITY: Capacity = Capacity { slots: 1 << 12, ports: 1 << 10, services: 64 };

/// A violation, and how to reproduce it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "step {step} of seed {seed}: {what}\nsee it again: simulate --seed {seed} --steps {step} --faults {faults}"
)]
pub struct Violation {
    pub seed: u64,
    pub step: u64,
    /// The highest number of failed ops in a thousand.
    pub faults: u16,
    /// The violation.
    pub what: String,
}

/// The counts of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub steps: u64,
    /// Events that the engine applied.
    pub events: u64,
    /// Ops that had an effect.
    pub ops: u64,
    /// Crashes, each with a restart.
    pub crashes: u64,
    /// How often everything was at rest and compared completely.
    pub rests: u64,
    /// How often a row changed to a verdict and reason.
    pub turned: Turned,
}

type Observed = ObservingMaps<MemoryMaps, Watch>;
type Living = Engine<FaultyMaps<Observed>>;

#[derive(Debug)]
pub struct Simulation {
    engine: Living,
    random: Random,
    faults: u16,
    slow: Vec<SlowClient>,
    resend: Vec<Event>,
    clock: Duration,
    /// How far the wall clock was set ahead or back.
    ahead: i64,
    /// Answers of probes still under way.
    lagging: Vec<ProbeResult>,
    /// The engine has decided since it started.
    is_open: bool,
    snapshot: Arc<Snapshot>,
    /// The saved state for the next process.
    disk: Option<(SavedSnapshot, Memory)>,
    rows: Rows,
    report: Report,
}

/// Runs so many steps.
pub fn simulate(seed: u64, steps: u64, faults: u16) -> Result<Report, Violation> {
    simulate_by(policy::rule, seed, steps, faults)
}

/// Runs so many steps; `rule` decides what becomes of lists without a backend.
pub fn simulate_by(rule: Rule, seed: u64, steps: u64, faults: u16) -> Result<Report, Violation> {
    let fail = |step, what| Violation { seed, step, faults, what };
    let mut simulation = Simulation::new(rule, seed, faults).map_err(|what| fail(0, what))?;
    for step in 1..=steps {
        simulation.step().map_err(|what| fail(step, what))?;
    }
    simulation.end().map_err(|what| fail(steps, what))
}

impl Simulation {
    pub fn new(rule: Rule, seed: u64, faults: u16) -> Result<Self, String> {
        let mut simulation = Self {
            engine: start(empty_maps(rule, seed), seed)?,
            random: Random::new(seed),
            faults,
            slow: Vec::new(),
            resend: Vec::new(),
            clock: Duration::ZERO,
            ahead: 0,
            lagging: Vec::new(),
            is_open: false,
            snapshot: Arc::default(),
            disk: None,
            rows: Rows::default(),
            report: Report::default(),
        };
        simulation.send_everything();
        Ok(simulation)
    }

    /// Runs one random step.
    pub fn step(&mut self) -> Result<(), String> {
        self.report.steps += 1;
        match self.random.below(10_000) {
            0..4_500 => self.happen(),
            4_500..8_700 => self.turn(),
            8_700..9_700 => self.dial(),
            9_700..9_930 => self.change_faults(),
            9_930..9_980 => self.crash()?,
            9_980..9_998 => self.rest()?,
            _ => self.clear()?,
        }
        self.verdict()
    }

    /// Comes to rest, deletes everything, and returns the counts.
    pub fn end(mut self) -> Result<Report, String> {
        self.rest()?;
        self.clear()?;
        self.verdict()?;
        self.report.ops = self.watch().ops;
        self.report.turned = self.rows.turned;
        Ok(self.report)
    }

    fn verdict(&mut self) -> Result<(), String> {
        self.watch().violation.take().map_or(Ok(()), Err)
    }

    fn maps_and_watch(&mut self) -> (&mut MemoryMaps, &mut Watch) {
        self.engine.maps_mut().inner_mut().both_mut()
    }

    fn watch(&mut self) -> &mut Watch {
        self.maps_and_watch().1
    }

    fn now(&self) -> ClockReading {
        let seconds = i64::try_from(self.clock.as_secs()).unwrap_or(i64::MAX);
        ClockReading { wall: Timestamp(1_000_000_000 + seconds + self.ahead), mono: self.clock }
    }

    /// Changes some object and delivers the event; or a source continues its first list.
    fn happen(&mut self) {
        if self.resend.is_empty() {
            return match self.random.below(1_000) {
                0 => self.lose_everything(),
                1..40 => self.probe(),
                40..55 => self.rename_port(),
                55..75 => self.claim(),
                75..77 => self.lose_namespace(),
                77..87 => self.finish(),
                _ => {
                    let event = self.change();
                    self.tell(event);
                }
            };
        }
        for _ in 0..1 + self.random.below(12) {
            let Some(event) = self.resend.pop() else { break };
            self.tell(event);
        }
        // The model has only complete worlds; partial syncs have tests of their own.
        if self.resend.iter().all(|event| matches!(event, Event::Synced(_))) {
            std::mem::take(&mut self.resend).into_iter().for_each(|event| self.tell(event));
        }
        let done = self.resend.is_empty();
        self.watch().may_write = done;
    }

    fn tell(&mut self, event: Event) {
        self.report.events += 1;
        self.watch().model.history.hear(&event);
        self.engine.apply(event);
    }

    /// The engine takes a step.
    fn turn(&mut self) {
        let pause = self.random.below(60);
        self.clock += Duration::from_millis(u64::try_from(pause * pause).unwrap_or(0));
        match self.random.below(500) {
            0 => self.ahead += i64::try_from(self.random.below(8_000)).unwrap_or(0) - 4_000,
            1..6 => self.clock += Duration::from_secs(self.random.number() % 700),
            _ => {}
        }
        self.advance();
    }

    fn advance(&mut self) -> Arc<Snapshot> {
        let now = self.now();
        let was_closed = !self.is_open;
        let undecided = was_closed.then(|| self.watch().model.clone());
        self.watch().begin(now);
        let mut changes = Vec::new();
        let snapshot = self.engine.step(now, &mut |change| changes.push(change));
        self.is_open = snapshot.programmed;
        if let Some(undecided) = undecided.filter(|_| !self.is_open) {
            self.watch().model = undecided;
        }
        let is_at_rest = snapshot.fill.retries == 0 && self.engine.next_due(now.mono) != Some(now.mono);
        let (maps, watch) = self.engine.maps_mut().inner_mut().both_mut();
        watch.end(maps, is_at_rest);
        if was_closed && self.is_open {
            self.slow.iter_mut().for_each(|it| it.adopt(watch));
        }
        self.slow.iter_mut().for_each(|it| it.wait(watch));
        if snapshot.counters.impossible > 0 {
            watch.blame(|| "a step was left out, because what it was about was not there".to_owned());
        }
        for change in &changes {
            if let Some(what) = foreign_cause(change, &watch.model.history) {
                watch.blame(|| what);
            }
        }
        if self.is_open {
            watch.model.history.claims.clear();
            self.rows.look(&snapshot, now.wall, watch);
            self.write_down(&snapshot);
        } else {
            self.rows.pass_by(now.wall);
        }
        self.snapshot = Arc::clone(&snapshot);
        snapshot
    }

    /// Sometimes saves the current state for the next restart.
    fn write_down(&mut self, snapshot: &Snapshot) {
        if self.random.chance(50) {
            let memory = self.watch().model.history.memory();
            self.disk = Some((SavedSnapshot::from(snapshot), memory));
        }
    }

    /// A slow client starts or ends.
    fn dial(&mut self) {
        let which = self.random.below(SLOW_CLIENTS_MAX);
        if which < self.slow.len() {
            let client = self.slow.swap_remove(which);
            let (maps, watch) = self.maps_and_watch();
            return client.end(maps, watch);
        }
        let choices = self.watch().dialled.len();
        let position = self.random.below(choices);
        let client = if self.random.chance(500) { CLIENTS[0] } else { CLIENTS[1] };
        let has_word = self.random.chance(500);
        let (maps, watch) = self.maps_and_watch();
        let begun = SlowClient::begin(maps, watch, position, client, has_word);
        self.slow.extend(begun);
    }

    fn change_faults(&mut self) {
        let share = [0, 0, 10, 100].get(self.random.below(4)).copied().unwrap_or(0);
        let per_mille = u16::try_from(u32::from(self.faults) * share / 100).unwrap_or(0);
        self.watch().faulty |= per_mille > 0;
        self.engine.maps_mut().set_per_mille(per_mille);
    }

    /// The process dies, maybe within a step; the world goes on; a new one starts with the same maps.
    fn crash(&mut self) -> Result<(), String> {
        self.report.crashes += 1;
        self.watch().faulty = true;
        let left = u32::try_from(self.random.below(8)).unwrap_or(0);
        self.engine.maps_mut().inner_mut().stop_after(Some(left));
        let mut disk = self.disk.take();
        self.turn();
        self.engine.maps_mut().inner_mut().stop_after(None);
        for _ in 0..self.random.below(4) {
            self.change();
        }
        let dead = std::mem::replace(&mut self.engine, start(empty_maps(policy::rule, 0), 0)?);
        self.engine = start(dead.into_maps(), self.random.number())?;
        self.is_open = false;
        disk = disk.filter(|_| self.random.chance(700));
        let (remembered, memory) = disk.clone().unzip();
        self.rows.restart(remembered.as_ref());
        self.lagging.clear();
        let now = self.now();
        self.watch().model.restart(memory.unwrap_or_default(), now);
        self.send_everything();
        if let Some(remembered) = remembered {
            self.engine.restore(remembered, now);
            // An engine with restored state may start before its sources deliver.
            while !self.resend.is_empty() {
                self.happen();
            }
        }
        self.disk = disk;
        Ok(())
    }

    /// Every source starts with its complete list, in any order.
    fn send_everything(&mut self) {
        let facts = self.watch().model.facts.clone();
        let services = facts.services.into_values().map(Event::ServiceApplied);
        let slices = facts.slices.into_values().map(Event::SliceApplied);
        let others = [Event::NodeApplied(facts.node), Event::SettingsApplied(facts.settings)];
        let mut objects: Vec<_> = services.chain(slices).chain(others).collect();
        self.random.shuffle(&mut objects);
        // Taken from the end.
        self.resend = Source::ALL.map(Event::Synced).into_iter().chain(objects).collect();
        self.watch().may_write = false;
    }
}

fn empty_maps(rule: Rule, seed: u64) -> FaultyMaps<Observed> {
    let maps = ObservingMaps::new(MemoryMaps::new(CAPACITY), Watch::new(rule));
    FaultyMaps::new(maps, Faults { seed, per_mille: 0 })
        .hearing(|maps, action| maps.both_mut().1.refused(action))
}

fn start(maps: FaultyMaps<Observed>, seed: u64) -> Result<Living, String> {
    let (engine, errors) =
        Engine::start(maps, Seed(seed.into()), &Source::ALL).map_err(|error| error.to_string())?;
    if errors.is_empty() { Ok(engine) } else { Err(format!("found at the start: {errors:?}")) }
}

/// Every cause of an op must name the op's own service.
fn foreign_cause(change: &Change, history: &History) -> Option<String> {
    let own = |cause: &Cause| match cause {
        Cause::ServiceApplied(facts) => facts.key == change.service,
        Cause::ServiceDeleted(key, _) => *key == change.service,
        Cause::SliceApplied(facts) => facts.key.source == change.service.source,
        Cause::SliceLeft(facts) => facts.key.source == change.service.source,
        Cause::SliceDeleted(key, _) => key.source == change.service.source,
        Cause::ClaimWon(_, other) | Cause::ClaimLost(_, other) => *other != change.service,
        Cause::Probed(probed) => probed.service == change.service,
        Cause::AddressClaimed(address, by) => {
            history.claims.contains(&(change.service.clone(), *address, by.clone()))
        }
        // No apiserver answers who has an address in these simulations.
        Cause::AddressReused(_) => false,
        Cause::MassLoss { .. } => history.joined.contains(&change.service),
        Cause::Drained(turned) => turned.drain.service().is_none_or(|named| *named == change.service.name),
        Cause::NodeApplied
        | Cause::ListenersApplied
        | Cause::SettingsApplied
        | Cause::HoldDue
        | Cause::Retry
        | Cause::Restored { .. }
        | Cause::ReadersLeft => true,
    };
    let justified = !change.causes.is_empty() && change.causes.iter().all(own);
    (!justified)
        .then(|| format!("{} changed by {} ops, because of {:?}", change.service, change.ops, change.causes))
}
