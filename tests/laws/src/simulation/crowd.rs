//! A simulation with too little capacity: more services and frontends than fit, additions, deletions and restarts.
//!
//! Invariant: whenever a batch leaves nothing to do, each object is either in the table or named as waiting, never both
//! or neither. No limit is exceeded. An admitted service stays admitted, over a restart too. At rest no object waits
//! while there is capacity. The same seed gives the same simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine::{Engine, SavedSnapshot};
use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, ServiceFacts, Settings, SliceFacts, Timestamp};
use holdfast_core::index::Seed;
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey, Source};
use holdfast_core::maps::{Capacity, Maps, MemoryMaps};
use holdfast_core::op::Dump;
use holdfast_core::snapshot::{Snapshot, Status};
use holdfast_core::time::ClockReading;

use super::population::{self, SERVICES_MAX, SLICES_MAX};
use super::{Random, Violation};

/// Steps after which retries with growing pauses are done.
const STEPS_TO_REST: usize = 16;

/// Longer than any wait between two tries.
const LONG: Duration = Duration::from_secs(31);

/// The counts of a crowded simulation.
#[derive(Clone, Debug, Default)]
pub struct Crowded {
    /// How often everything was at rest.
    pub rests: u64,
    /// How often an object waited for the table at rest.
    pub waited: u64,
    /// How often a frontend found no capacity in the maps at rest.
    pub starved: u64,
    pub restarts: u64,
}

struct Crowd {
    engine: Engine<MemoryMaps>,
    random: Random,
    limit: usize,
    clock: Duration,
    services: BTreeMap<ServiceKey, Arc<ServiceFacts>>,
    slices: BTreeMap<SliceKey, Arc<SliceFacts>>,
    settings: Arc<Settings>,
    snapshot: Arc<Snapshot>,
    /// The admitted services when there was last nothing to do.
    had_room: BTreeSet<ServiceKey>,
    /// The first violation.
    wrong: Option<String>,
    report: Crowded,
}

/// Runs so many steps with too little capacity.
pub fn crowd(seed: u64, steps: u64) -> Result<Crowded, Violation> {
    let fail = |step, what| Violation { seed, step, faults: 0, what };
    let mut random = Random::new(seed);
    let limit = 1 + random.below(8);
    let engine = start(maps(limit), seed).map_err(|what| fail(0, what))?;
    let mut crowd = Crowd {
        engine,
        random,
        limit,
        clock: Duration::ZERO,
        services: BTreeMap::new(),
        slices: BTreeMap::new(),
        settings: Arc::default(),
        snapshot: Arc::default(),
        had_room: BTreeSet::new(),
        wrong: None,
        report: Crowded::default(),
    };
    crowd.synced();
    for step in 1..=steps {
        crowd
            .step()
            .and_then(|()| crowd.wrong.take().map_or(Ok(()), Err))
            .map_err(|what| fail(step, what))?;
    }
    crowd.clear().map_err(|what| fail(steps, what))?;
    Ok(crowd.report)
}

fn maps(services: usize) -> MemoryMaps {
    MemoryMaps::new(Capacity { slots: 1 << 12, ports: 1 << 10, services })
}

fn start(maps: MemoryMaps, seed: u64) -> Result<Engine<MemoryMaps>, String> {
    Engine::start(maps, Seed(seed.into()), &Source::ALL).map(|it| it.0).map_err(|error| error.to_string())
}

fn service_of(slice: &SliceFacts) -> Option<ServiceKey> {
    let name = ObjectName::new(slice.key.name.namespace(), slice.service.as_ref()?).ok()?;
    Some(ServiceKey { name, source: slice.key.source })
}

impl Crowd {
    fn step(&mut self) -> Result<(), String> {
        match self.random.below(1_000) {
            0..350 => self.change_service(),
            350..640 => self.change_slice(),
            640..660 => self.change_settings(),
            660..960 => self.advance(),
            960..970 => return self.restart(),
            970..998 => return self.rest(),
            _ => return self.clear(),
        }
        Ok(())
    }

    fn change_service(&mut self) {
        let position = self.random.below(SERVICES_MAX);
        let key = population::service_key(position);
        let event = if self.random.chance(350) {
            self.services.remove(&key);
            Event::ServiceDeleted(key, None)
        } else {
            let facts = Arc::new(population::service(&mut self.random, position));
            self.services.insert(key, Arc::clone(&facts));
            Event::ServiceApplied(facts)
        };
        self.engine.apply(event);
        self.forget_gone();
    }

    fn change_slice(&mut self) {
        let position = self.random.below(SLICES_MAX);
        let key = population::slice_key(position);
        let event = if self.random.chance(350) {
            self.slices.remove(&key);
            Event::SliceDeleted(key, None)
        } else {
            let facts = Arc::new(population::slice(&mut self.random, position));
            self.slices.insert(key, Arc::clone(&facts));
            Event::SliceApplied(facts)
        };
        self.engine.apply(event);
        self.forget_gone();
    }

    /// A deleted service gives up its id, and may have to wait when it returns.
    fn forget_gone(&mut self) {
        let gone: Vec<_> = self.had_room.iter().filter(|key| !self.is_there(key)).cloned().collect();
        gone.iter().for_each(|key| _ = self.had_room.remove(key));
    }

    fn is_there(&self, key: &ServiceKey) -> bool {
        let has_slice = |slice: &Arc<SliceFacts>| service_of(slice).as_ref() == Some(key);
        self.services.contains_key(key) || self.slices.values().any(has_slice)
    }

    fn change_settings(&mut self) {
        let some = self.random.chance(800);
        let frontends_max = some.then(|| 1 + self.random.below(12));
        self.settings = Arc::new(Settings { frontends_max, ..population::settings(&mut self.random) });
        self.engine.apply(Event::SettingsApplied(Arc::clone(&self.settings)));
    }

    fn now(&self) -> ClockReading {
        let wall = Timestamp(1_000_000_000 + i64::try_from(self.clock.as_secs()).unwrap_or(i64::MAX));
        ClockReading { wall, mono: self.clock }
    }

    /// The engine takes a step; whenever that leaves nothing to do, everything is checked.
    fn advance(&mut self) {
        self.clock += Duration::from_millis(self.random.number() % 3_000);
        self.snapshot = self.engine.step(self.now(), &mut |_| ());
        if self.engine.is_written() && self.wrong.is_none() {
            let now = self.with_room();
            let before = std::mem::replace(&mut self.had_room, now);
            self.wrong = self.look(&before).err();
        }
    }

    /// The process restarts, mostly with the saved state, sometimes after a boot and with another limit.
    fn restart(&mut self) -> Result<(), String> {
        self.rest()?;
        self.report.restarts += 1;
        let before = self.with_room();
        let remembered = SavedSnapshot::from(&*self.snapshot);
        let seed = self.random.number();
        let is_remembered = self.random.chance(700);
        let (limit, boots) = (self.limit, self.random.chance(300));
        if boots {
            self.limit = 1 + self.random.below(8);
        }
        let fresh = maps(self.limit);
        let old = std::mem::replace(&mut self.engine, start(maps(1), 0)?);
        self.engine = start(if boots { fresh } else { old.into_maps() }, seed)?;
        self.had_room.clear();
        if is_remembered {
            let now = self.now();
            self.engine.restore(remembered, now);
        }
        self.tell_everything();
        self.synced();
        self.rest()?;
        let lost: Vec<_> = before.difference(&self.with_room()).cloned().collect();
        if is_remembered && self.limit >= limit && !lost.is_empty() {
            return Err(format!("a restart lost {lost:?}"));
        }
        Ok(())
    }

    fn tell_everything(&mut self) {
        let services = self.services.values().cloned().map(Event::ServiceApplied);
        let slices = self.slices.values().cloned().map(Event::SliceApplied);
        let mut events: Vec<_> = services.chain(slices).collect();
        self.random.shuffle(&mut events);
        events.push(Event::SettingsApplied(Arc::clone(&self.settings)));
        events.into_iter().for_each(|event| self.engine.apply(event));
    }

    fn synced(&mut self) {
        Source::ALL.into_iter().for_each(|source| self.engine.apply(Event::Synced(source)));
        self.advance();
    }

    fn with_room(&self) -> BTreeSet<ServiceKey> {
        self.snapshot.services.iter().map(|view| view.key.clone()).collect()
    }

    /// Lets everything come to rest, and checks which services are admitted and which objects wait.
    fn rest(&mut self) -> Result<(), String> {
        for _ in 0..STEPS_TO_REST {
            self.advance();
            self.clock += LONG;
        }
        self.report.rests += 1;
        let waiting = self.waiting();
        let shown = self.with_room();
        let without = waiting.iter().filter(|object| !self.has_room(object, &shown)).count();
        if without > 0 && shown.len() < self.limit {
            return Err(format!(
                "{without} objects wait, and of {} places {} are used",
                self.limit,
                shown.len()
            ));
        }
        self.report.waited += u64::from(without > 0);
        self.look_at_frontends()
    }

    /// Whether this waiting object's service is admitted, so that only its slices are too many.
    fn has_room(&self, object: &ObjectKey, shown: &BTreeSet<ServiceKey>) -> bool {
        let service = match object {
            ObjectKey::Service(key) => Some(key.clone()),
            ObjectKey::Slice(key) => self.slices.get(key).and_then(|slice| service_of(slice)),
            _ => None,
        };
        service.is_some_and(|key| shown.contains(&key))
    }

    fn waiting(&self) -> BTreeSet<ObjectKey> {
        let named = self.snapshot.rejections.named.values();
        named.filter(|it| it.is_waiting()).map(|it| it.object.clone()).collect()
    }

    /// After all events: each object is in the table or waits, and only deleted services have lost their ids.
    fn look(&self, before: &BTreeSet<ServiceKey>) -> Result<(), String> {
        let waiting = self.waiting();
        let views = || self.snapshot.services.iter();
        if views().count() > self.limit {
            return Err(format!("{} services, and {} are legal", views().count(), self.limit));
        }
        if self.snapshot.rejections.waiting != waiting.len() {
            return Err(format!("{} objects wait, {waiting:?} are named", self.snapshot.rejections.waiting));
        }
        let in_table =
            views().filter_map(|view| view.facts.as_ref()).map(|it| ObjectKey::Service(it.key.clone()));
        let slices = views().flat_map(|view| view.slices.iter());
        let in_table: BTreeSet<_> =
            in_table.chain(slices.map(|it| ObjectKey::Slice(it.key.clone()))).collect();
        let services = self.services.keys().cloned().map(ObjectKey::Service);
        let labelled = self.slices.values().filter(|slice| service_of(slice).is_some());
        let said: BTreeSet<_> =
            services.chain(labelled.map(|slice| ObjectKey::Slice(slice.key.clone()))).collect();
        if let Some(both) = in_table.intersection(&waiting).next() {
            return Err(format!("{both} is in the table and waits"));
        }
        let known: BTreeSet<_> = in_table.union(&waiting).cloned().collect();
        if known != said {
            let lost: Vec<_> = said.symmetric_difference(&known).collect();
            return Err(format!("neither in the table nor waiting, or there although deleted: {lost:?}"));
        }
        let shown = self.with_room();
        match before.iter().find(|key| !shown.contains(*key)) {
            Some(lost) => Err(format!("{lost} lost its id")),
            None => Ok(()),
        }
    }

    fn look_at_frontends(&mut self) -> Result<(), String> {
        let rows = || self.snapshot.services.iter().flat_map(|view| view.frontends.iter());
        let starved = rows().filter(|row| matches!(row.status, Status::Error(_))).count();
        let (used, most) = (self.snapshot.fill.frontends, self.settings.frontends_max);
        self.report.starved += u64::from(starved > 0);
        match most {
            None if starved > 0 => Err(format!("{starved} rows have errors without any limit")),
            Some(most) if starved > 0 && used < most => {
                Err(format!("{starved} rows have no capacity, and {used} of {most} frontends are used"))
            }
            _ => Ok(()),
        }
    }

    /// Deletes everything; then no capacity is taken, and no object is named as waiting.
    fn clear(&mut self) -> Result<(), String> {
        let services = self.services.keys().cloned().map(|key| Event::ServiceDeleted(key, None));
        let slices = self.slices.keys().cloned().map(|key| Event::SliceDeleted(key, None));
        let mut events: Vec<_> = services.chain(slices).collect();
        self.random.shuffle(&mut events);
        for event in events {
            match &event {
                Event::ServiceDeleted(key, _) => drop(self.services.remove(key)),
                Event::SliceDeleted(key, _) => drop(self.slices.remove(key)),
                _ => {}
            }
            self.engine.apply(event);
            self.forget_gone();
            if self.random.chance(300) {
                self.advance();
            }
        }
        self.rest()?;
        let (known, named) = (self.with_room().len(), self.snapshot.rejections.named.len());
        let dump = self.engine.maps_mut().dump().map_err(|error| error.to_string())?;
        if known + named > 0 || dump != (Dump { sources: Some(Vec::new()), ..Dump::default() }) {
            return Err(format!(
                "everything is deleted, and {known} services, {named} names and {dump:?} are left"
            ));
        }
        Ok(())
    }
}
