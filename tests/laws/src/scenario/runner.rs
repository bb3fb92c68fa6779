//! Runs a scenario: an engine over some maps, and a clock that the scenario advances.
//!
//! Invariant: after each step the engine runs until nothing is due, so maps that sometimes fail end like good ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine::{Engine, SavedSnapshot};
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::hold::{ProbeAnswer, ProbeResult};
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, Maps, MemoryMaps};
use holdfast_core::op::Dump;
use holdfast_core::snapshot::{PortView, Snapshot};
use holdfast_core::time::{ClockReading, Uptime};

use super::daemon::Daemon;
use super::outside::Outside;
use super::text::{Command, ScenarioError};
use super::{View, clients, maps, show};
use crate::faulty::{Faults, FaultyMaps};

/// The wall clock at the start of each scenario.
const START: Timestamp = Timestamp(1_767_870_715);

/// Engine steps until nothing is due: far beyond any run of bad luck.
const STEPS_MAX: usize = 10_000;

/// The engine's longest wait. An op due only then has failed ten times in a row: that is no bad luck and shows as an
/// error.
const HOPELESS: Duration = Duration::from_secs(30);

/// Makes one kind of maps, empty and separate. Kernel maps implement it too.
pub trait MapMaker {
    /// The kind, for messages.
    fn name(&self) -> String;
    fn make(&self) -> Result<Box<dyn Maps>, String>;
}

/// Maps in memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory;

impl MapMaker for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn make(&self) -> Result<Box<dyn Maps>, String> {
        Ok(Box::new(MemoryMaps::new(Capacity::default())))
    }
}

/// Maps in memory of which one op in ten fails.
#[derive(Clone, Copy, Debug)]
pub struct FaultyMemory {
    /// The seed of the sequence of faults.
    pub seed: u64,
}

impl MapMaker for FaultyMemory {
    fn name(&self) -> String {
        format!("faulty memory (seed {})", self.seed)
    }

    fn make(&self) -> Result<Box<dyn Maps>, String> {
        let maps = MemoryMaps::new(Capacity::default());
        Ok(Box::new(FaultyMaps::new(maps, Faults { seed: self.seed, per_mille: 100 })))
    }
}

/// The daemon with everything around it.
#[allow(missing_debug_implementations)] // the maps are whatever a maker made
pub struct Runner<'a> {
    daemon: &'a dyn Daemon,
    outside: Outside,
    sources: Vec<Source>,
    // `None` only during a restart.
    engine: Option<Engine<Box<dyn Maps>>>,
    snapshot: Arc<Snapshot>,
    /// The queries about held lists that sources have answered, as in the snapshot.
    answered: BTreeMap<Source, Uptime>,
    mono: Duration,
    wall: Timestamp,
}

impl<'a> Runner<'a> {
    /// Starts a daemon with nothing to serve.
    pub fn start(
        daemon: &'a dyn Daemon,
        maker: &dyn MapMaker,
        sources: BTreeSet<Source>,
    ) -> Result<Self, ScenarioError> {
        let at_start = |message| ScenarioError { line: 0, message };
        let maps = maker.make().map_err(at_start)?;
        let mut runner = Self {
            daemon,
            outside: Outside::default(),
            sources: sources.into_iter().collect(),
            engine: None,
            snapshot: Arc::default(),
            answered: BTreeMap::new(),
            mono: Duration::ZERO,
            wall: START,
        };
        runner.boot(maps).map_err(at_start)?;
        Ok(runner)
    }

    /// Runs one step of a scenario.
    pub fn take(&mut self, command: &Command) -> Result<(), String> {
        match command {
            Command::Time(time) => {
                self.mono += *time;
                self.wall.0 += i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
                self.run_until_idle()
            }
            Command::Restart => {
                let maps = self.engine.take().ok_or("no engine")?.into_maps();
                self.boot(maps)
            }
            Command::Probe(service, backend, answer) => {
                let probed = self.probed(service, *backend, *answer)?;
                self.apply(vec![Event::Probed(Box::new(probed))])
            }
            Command::Interrupted => {
                self.apply(self.sources.iter().map(|source| Event::Interrupted(*source)).collect())
            }
            Command::KeepRunning | Command::Show(_) => Ok(()),
            other => {
                let group = self.outside.take(other, self.daemon)?;
                self.apply(group)
            }
        }
    }

    /// The output of a `show` step.
    pub fn show(&mut self, view: View) -> Result<String, String> {
        Ok(match view {
            View::Frontends => show::frontends(&self.snapshot),
            View::Backends => show::backends(&self.snapshot),
            View::Services => show::services(&self.snapshot),
            View::Balancers => show::balancers(&self.snapshot),
            View::Rejected => show::rejected(&self.snapshot),
            View::Maps => maps::maps(&self.dump()?),
            View::From(client) => clients::from(&self.dump()?, client),
        })
    }

    fn dump(&mut self) -> Result<Dump, String> {
        let engine = self.engine.as_mut().ok_or("no engine")?;
        engine.maps_mut().dump().map_err(|error| error.to_string())
    }

    /// Deletes everything outside; then nothing may be left in tables, maps and allocators.
    pub fn clear(&mut self) -> Result<(), String> {
        let group = self.outside.clear();
        self.apply(group)?;
        let left = self.show(View::Maps)? + &self.show(View::Services)?;
        let fill = self.snapshot.fill;
        if left.is_empty() && (fill.frontends, fill.ports, fill.slots) == (0, 0, [0; 2]) {
            return Ok(());
        }
        Err(format!("everything is deleted, and this is left: {fill:?}\n{left}"))
    }

    fn boot(&mut self, maps: Box<dyn Maps>) -> Result<(), String> {
        let started = Engine::start(maps, Seed(0), &self.sources);
        let (mut engine, unknown) = started.map_err(|error| error.to_string())?;
        if !unknown.is_empty() {
            return Err(format!("the maps hold what was never written: {unknown:?}"));
        }
        engine.restore_drains(Arc::new(self.daemon.drains_written_down(self.outside.drains())?));
        if let Some(remembered) = self.written_down()? {
            engine.restore(remembered, ClockReading { wall: self.wall, mono: self.mono });
        }
        self.engine = Some(engine);
        self.answered.clear();
        let mut group = self.outside.all()?;
        group.extend(self.sources.iter().map(|source| Event::Synced(*source)));
        self.apply(group)
    }

    /// The saved state of the former process.
    fn written_down(&self) -> Result<Option<SavedSnapshot>, String> {
        self.snapshot.programmed.then(|| self.daemon.written_down(&self.snapshot)).transpose()
    }

    /// Only held backends are probed, so the snapshot shows the backend's port.
    fn probed(&self, service: &str, backend: SocketAddr, answer: ProbeAnswer) -> Result<ProbeResult, String> {
        let holds = |port: &&PortView| {
            let hold = port.hold.as_ref();
            hold.is_some_and(|hold| hold.probe_targets(port.key.transport).any(|probed| probed == backend))
        };
        let own = self.snapshot.services.iter().filter(|view| view.key.to_string() == service);
        let mut ports =
            own.flat_map(|view| view.ports.iter().filter(holds).map(|port| (&view.key, &port.key)));
        let (service, port) = ports.next().ok_or_else(|| format!("{backend} of {service} is not probed"))?;
        Ok(ProbeResult { service: service.clone(), port: port.clone(), backend, answer })
    }

    fn apply(&mut self, group: Vec<Event>) -> Result<(), String> {
        let engine = self.engine.as_mut().ok_or("no engine")?;
        group.into_iter().for_each(|event| engine.apply(event));
        self.run_until_idle()
    }

    fn run_until_idle(&mut self) -> Result<(), String> {
        let engine = self.engine.as_mut().ok_or("no engine")?;
        for _ in 0..STEPS_MAX {
            self.snapshot = engine.step(ClockReading { wall: self.wall, mono: self.mono }, &mut |_| ());
            if self.snapshot.counters.cross_service > 0 {
                return Err("an op was planned for a service that is not dirty".to_owned());
            }
            if self.snapshot.counters.impossible > 0 {
                return Err("a step was left out, because what it was about was not there".to_owned());
            }
            match engine.next_due(self.mono) {
                Some(due) if due < self.mono + HOPELESS => self.mono = self.mono.max(due),
                _ if self.snapshot.queries == self.answered => return Ok(()),
                // Every source is healthy: it answers at once that it has delivered everything.
                _ => {
                    self.answered.clone_from(&self.snapshot.queries);
                    self.answered
                        .iter()
                        .for_each(|(source, put)| engine.apply(Event::Answered(*source, *put)));
                }
            }
        }
        Err(format!("something is still due after {STEPS_MAX} steps"))
    }
}
