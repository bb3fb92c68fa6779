//! The one writer: takes events in, plans, has the maps execute the ops, and gives what readers see.
//!
//! Invariant: nothing but the engine touches tables, realized or maps; and an op is executed only while its owner is
//! dirty. The order of a step stands here and nowhere else:
//!
//! ```text
//! apply(event)*  →  due retries, grace periods that are over  →  decide
//!                →  addresses that left the node
//!                →  for each service of the piece: its lists, then its new frontends, many at once
//!                →  for each of them again: its removals, frontends many at once
//!                →  what belongs to no service  →  end of the piece: changes, snapshot
//!                →  a grace period for what was freed
//! ```
//!
//! Nothing here waits, and time is an argument; the shell has the task, the clock and the queues.

mod retries;

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::change::Change;
use crate::drains::Drains;
use crate::event::Event;
use crate::index::Seed;
use crate::keys::Source;
use crate::maps::{MapError, Maps};
use crate::op::{Action, Grace, Op, Owner, PortIndex, ServiceId};
use crate::snapshot::Snapshot;
use crate::time::ClockReading;
use crate::world::World;
use retries::Retries;

pub use crate::world::{AdoptError, Drift, SavedSnapshot, estimate_service_growth};

/// How soon the maps are asked again whether a grace period is over; a period lasts microseconds to milliseconds.
const GRACE_POLL: Duration = Duration::from_millis(5);

/// How soon ops of no service are tried again.
const UPKEEP_WAIT: Duration = Duration::from_millis(100);

/// How long the sources may take before what is remembered goes on over what the maps hold. What the maps hold serves
/// meanwhile, and is never older than what is remembered, so where it differs it serves until the source has spoken; a
/// source that can be reached answers within a second.
const RESTORED_WAIT: Duration = Duration::from_secs(3);

/// How many new frontends wait for each other, or removals of frontends, so that the maps take many in one step.
const BATCH_MAX: usize = 1_024;

/// How long writes that belong to no service may wait for a time at which no service has any.
const UPKEEP_WAIT_MAX: Duration = Duration::from_secs(1);

/// The one writer.
#[derive(Debug)]
pub struct Engine<M> {
    world: World,
    maps: M,
    retries: Retries,
    // Readers may still look at what a former process freed; nothing is written before they have left.
    first_grace: Option<Grace>,
    // The maps may be written, and follow the rules from then on.
    is_writable: bool,
    // Nothing was found in the maps, and nothing else serves.
    is_cold_start: bool,
    // How many sources had delivered when the maps were last told what is about to come.
    prepared_sources: Option<usize>,
    // A comparison is under way.
    checks: bool,
    upkeep_due: Option<Duration>,
    // When what belongs to no service was written last.
    upkeep_at: Duration,
    ops: Vec<Op>,
    // New frontends of services that have their lists; later in a piece, frontends that go.
    batch: Vec<Op>,
}

impl<M: Maps> Engine<M> {
    /// Takes what the maps hold for realized, and waits for the first whole list of a source; until each has delivered,
    /// only what is asked for is added.
    pub fn start(mut maps: M, seed: Seed, sources: &[Source]) -> Result<(Self, Vec<AdoptError>), MapError> {
        let mut world = World::new(seed, maps.capacity(), sources);
        let dump = maps.dump()?;
        let errors = world.adopt(&dump);
        let first_grace = Some(maps.begin_grace());
        let is_waiting = maps.is_predecessor_serving();
        let engine = Self {
            world,
            maps,
            retries: Retries::default(),
            first_grace,
            is_writable: false,
            is_cold_start: dump.frontends.is_empty() && !is_waiting,
            prepared_sources: None,
            checks: false,
            upkeep_due: None,
            upkeep_at: Duration::ZERO,
            ops: Vec::new(),
            batch: Vec::new(),
        };
        Ok((engine, errors))
    }

    /// Begins with the drains that were in force. Called before anything is remembered.
    pub fn restore_drains(&mut self, drains: Arc<Drains>) {
        self.world.tables.drains = drains;
    }

    /// Begins with what a former process wrote down. Called before any event.
    pub fn restore(&mut self, remembered: SavedSnapshot, now: ClockReading) {
        self.world.restore_services(remembered, now);
    }

    /// Takes one event in. It has its effect with the next step.
    pub fn apply(&mut self, event: Event) {
        self.world.apply(event);
    }

    /// Brings the dirty services of one piece as far as the maps let them, and gives what readers see from now on. What
    /// is left is due at once, so that events can be taken first.
    pub fn step(&mut self, now: ClockReading, changed: &mut dyn FnMut(Change)) -> Arc<Snapshot> {
        for id in self.retries.take_due(now.mono) {
            self.world.services.retry(id, &self.world.tables);
        }
        self.collect_freed();
        let mut snapshot = if self.may_write(now.mono) {
            self.world.decide(now);
            self.write_piece(now, changed)
        } else {
            self.world.publish(now)
        };
        if self.world.space.freed.has_new() {
            self.world.space.freed.begin_grace(self.maps.begin_grace());
        }
        (snapshot.fill.retries, snapshot.fill.failing) = (self.retries.len(), self.retries.failing());
        Arc::new(snapshot)
    }

    fn write_piece(&mut self, now: ClockReading, changed: &mut dyn FnMut(Change)) -> Snapshot {
        if !self.world.queue.is_open() {
            return self.world.publish(now);
        }
        let departed = self.execute_plan(World::plan_node_removals);
        self.write_services(now.mono);
        let is_late = now.mono >= self.upkeep_at + UPKEEP_WAIT_MAX && self.world.queue.has_all_decided();
        if is_late || self.world.queue.is_last_piece(&self.world.services) {
            self.run_upkeep(now.mono, departed.is_ok());
        }
        self.world.end_piece(now, changed)
    }

    /// Compares the maps with what was realized. The next step writes anew what another writer changed.
    pub fn check_maps(&mut self) -> Result<Vec<Drift>, CheckError> {
        self.begin_check();
        loop {
            if let Some(found) = self.continue_check() {
                return found;
            }
        }
    }

    /// Begins a comparison of the maps with what was realized, unless the maps may hold what is not known yet.
    pub fn begin_check(&mut self) {
        self.checks = self.world.queue.is_open() && self.world.tables.is_complete();
        if self.checks {
            self.world.realized.begin_check();
        }
    }

    /// Goes on with the comparison, for as long as a piece takes. Gives the drift that was found, once the comparison
    /// is done, or why there is none.
    pub fn continue_check(&mut self) -> Option<Result<Vec<Drift>, CheckError>> {
        if !self.checks {
            return Some(Err(CheckError::NotYet));
        }
        let found = self.world.continue_check(&mut self.maps).transpose()?;
        self.checks = false;
        Some(found.map_err(CheckError::Maps))
    }

    /// Whether the maps hold what all sources have told that can be read, or what is remembered of the sources, except
    /// for what the maps refused.
    pub fn is_written(&self) -> bool {
        self.is_writable && self.world.tables.is_complete() && !self.world.has_dirty()
    }

    /// Whether the maps hold all that was known when they were first written, except for what they refused. From then
    /// on the maps are fit to serve, even if more comes in than is written.
    pub fn has_initial_state(&self) -> bool {
        self.world.has_initial_state()
    }

    /// Whether the maps cannot hold what a source has that cannot be read, because nothing remembers it.
    pub fn lacks_unreadable_source(&self) -> bool {
        self.world.tables.lacks_unreadable_source()
    }

    /// Sets another size of pieces, for a caller that wants many small ones or a single one.
    pub const fn limit_pieces(&mut self, most: u64) {
        self.world.queue.most = most;
    }

    /// Whether every source has told all that it has.
    pub fn is_synced(&self) -> bool {
        self.world.tables.is_synced()
    }

    /// When the next step is due although no event came.
    pub fn next_due(&self, now: Duration) -> Option<Duration> {
        let opens = self.writable_at().filter(|_| !self.is_writable);
        let may_write =
            self.first_grace.is_none() && (self.is_writable || opens.is_some_and(|due| due <= now));
        if may_write && self.world.has_dirty() {
            return Some(now);
        }
        let waits_for_grace = self.first_grace.is_some() || self.world.space.freed.next_grace().is_some();
        let poll = waits_for_grace.then(|| now + GRACE_POLL);
        let owners = self.world.owners.due().filter(|_| may_write).map(|due| due.max(now));
        [self.retries.next_due(), self.upkeep_due, poll, opens.filter(|due| *due > now), owners]
            .into_iter()
            .flatten()
            .min()
    }

    /// The maps, as a crash would leave them.
    pub fn into_maps(self) -> M {
        self.maps
    }

    /// The maps, for a reader.
    pub fn maps(&self) -> &M {
        &self.maps
    }

    /// The maps, for a reader that holds a place in them, or for a test that makes them fail.
    pub fn maps_mut(&mut self) -> &mut M {
        &mut self.maps
    }

    /// When the maps may be written at the latest; `None`: not known yet.
    fn writable_at(&self) -> Option<Duration> {
        match (self.world.tables.has_services_synced(), self.world.tables.has_restored()) {
            (true, _) => Some(Duration::ZERO),
            (false, true) if self.is_cold_start => Some(Duration::ZERO),
            (false, true) => Some(RESTORED_WAIT),
            (false, false) => self.world.tables.has_any_synced().then_some(Duration::ZERO),
        }
    }

    fn may_write(&mut self, now: Duration) -> bool {
        self.first_grace = self.first_grace.filter(|grace| !self.maps.is_grace_over(*grace));
        let opens = self.writable_at().is_some_and(|due| due <= now) && self.first_grace.is_none();
        self.is_writable |= opens;
        if self.is_writable && self.is_cold_start {
            self.prepare_maps();
        }
        self.is_writable
    }

    /// Tells the maps what is about to come. What follows, the decision for each service, takes as long as larger maps
    /// do. The largest source is seldom the first that delivers, so each makes them look again; what is remembered says
    /// all in advance.
    fn prepare_maps(&mut self) {
        let delivered = if self.world.tables.has_restored() { 0 } else { self.world.tables.synced_count() };
        if self.prepared_sources.replace(delivered) != Some(delivered) {
            self.maps.prepare(&self.world.tables.estimate_growth());
        }
    }

    /// Writes all lists first, then all removals: so a frontend that changes hands is never missing in between.
    fn write_services(&mut self, now: Duration) {
        let piece = self.world.queue.piece.clone();
        // What does not fit shows in the op that needs it.
        let _ = self.maps.reserve_capacity(&self.world.estimate_pending_growth());
        let (mut refused, mut lacking) = (BTreeSet::new(), BTreeSet::new());
        for id in &piece {
            match self.write_lists(*id) {
                Err(error) => {
                    self.record_failure(*id, (error.to_string(), error.is_quota_error()), now);
                    refused.insert(*id);
                }
                // What it leaves is removed all the same: that may be the room that it lacks.
                Ok(Some(lack)) => {
                    self.record_failure(*id, lack, now);
                    lacking.insert(*id);
                }
                Ok(None) => {}
            }
            if self.batch.len() >= BATCH_MAX {
                self.execute_batch(now, &mut refused);
            }
        }
        self.execute_batch(now, &mut refused);
        self.write_removals(&piece, now, &mut refused);
        for id in piece.into_iter().filter(|id| !refused.contains(id) && !lacking.contains(id)) {
            if !self.world.services.is_unfinished(id) {
                self.retries.record_success(id);
            }
        }
    }

    /// Removes what the services no longer have, but for those of which something was refused.
    fn write_removals(&mut self, piece: &[ServiceId], now: Duration, refused: &mut BTreeSet<ServiceId>) {
        for id in piece {
            if refused.contains(id) {
                continue;
            }
            self.ops.clear();
            self.world.plan_removals(*id, &mut self.ops);
            let world = &self.world;
            self.batch.extend(self.ops.extract_if(.., |op| is_frontend_removal(op) && may_touch(world, op)));
            if let Err(error) = self.execute() {
                self.record_failure(*id, (error.to_string(), error.is_quota_error()), now);
                refused.insert(*id);
            }
            if self.batch.len() >= BATCH_MAX {
                self.execute_batch(now, refused);
            }
        }
        self.execute_batch(now, refused);
    }

    /// Writes the lists of a service, and what has to go with them. New frontends are left for
    /// [`Self::execute_batch`], removals for after those. Gives why something was left out, and whether that is
    /// because the namespace has its part; everything else of the service is written.
    fn write_lists(&mut self, id: ServiceId) -> Result<Option<(String, bool)>, MapError> {
        let begun = self.batch.len();
        self.ops.clear();
        let planned = self.world.plan_lists(id, &mut self.ops);
        let world = &self.world;
        self.batch.extend(self.ops.extract_if(.., |op| is_new_frontend(world, op) && may_touch(world, op)));
        let executed = self.execute();
        let unsourced = executed.inspect_err(|_| self.batch.truncate(begun))?;
        let unplanned = planned.err().map(|error| (error.to_string(), error.is_quota_error()));
        Ok(unplanned.or_else(|| unsourced.map(|error| (error.to_string(), error.is_quota_error()))))
    }

    /// Inserts the new frontends by which clients find the lists, or removes the frontends that go. A service's
    /// frontends after one that is refused are left out.
    fn execute_batch(&mut self, now: Duration, refused: &mut BTreeSet<ServiceId>) {
        let mut together = core::mem::take(&mut self.batch);
        let mut left = together.as_slice();
        while let [first, rest @ ..] = left {
            left = match self.maps.execute_batch(left) {
                Ok(count) => {
                    let (accepted, rest) = left.split_at(count.clamp(1, left.len()));
                    accepted.iter().for_each(|op| self.world.record_accepted(op));
                    rest
                }
                Err(error) => {
                    self.world.report.count_refusal(&error);
                    self.world.record_refused(core::slice::from_ref(first), 0);
                    if let Owner::Service(id) = first.owner {
                        self.record_failure(id, (error.to_string(), error.is_quota_error()), now);
                        refused.insert(id);
                    }
                    let others = rest.iter().position(|op| op.owner != first.owner);
                    others.and_then(|at| rest.get(at..)).unwrap_or_default()
                }
            };
        }
        together.clear();
        self.batch = together;
    }

    /// Writes what belongs to no service: leftovers of a restart that no service claims, and new node addresses. In
    /// this order, so that a new address does not answer for a NodePort that is about to go.
    fn run_upkeep(&mut self, now: Duration, departed: bool) {
        self.upkeep_at = now;
        let leftovers = self.execute_plan(World::plan_leftovers);
        let node = self.execute_plan(World::plan_node);
        let is_done = departed && node.and(leftovers).is_ok();
        self.upkeep_due = (!is_done).then_some(now + UPKEEP_WAIT);
    }

    fn execute_plan(&mut self, plan: fn(&World, &mut Vec<Op>)) -> Result<(), MapError> {
        self.ops.clear();
        plan(&self.world, &mut self.ops);
        self.execute().map(drop)
    }

    fn collect_freed(&mut self) {
        while self.world.space.freed.next_grace().is_some_and(|grace| self.maps.is_grace_over(grace)) {
            self.ops.clear();
            let is_whole = self.world.end_grace(&mut self.ops);
            // Each range stands for itself: a range that cannot be wiped now is freed again, and holds up no other.
            for op in core::mem::take(&mut self.ops) {
                match self.maps.execute(&op.action) {
                    Ok(()) => self.world.record_accepted(&op),
                    Err(error) => {
                        self.world.report.count_refusal(&error);
                        self.world.record_refused(core::slice::from_ref(&op), 0);
                    }
                }
            }
            if !is_whole {
                return;
            }
        }
    }

    /// Executes what is planned, up to the first refusal. Without room for a source range, clients in it do not get in,
    /// and nothing else waits for it but the former ranges that it was to replace: gives why there was none.
    fn execute(&mut self) -> Result<Option<MapError>, MapError> {
        let mut unsourced = Vec::new();
        let mut why = None;
        for position in 0..self.ops.len() {
            let source = self.ops.get(position).and_then(source_port);
            if source.is_some_and(|port| unsourced.contains(&port)) {
                continue;
            }
            let executed = self.execute_at(position);
            match source.filter(|_| self.ops.get(position).is_some_and(is_new_source)) {
                Some(port) if executed.is_err() => {
                    unsourced.push(port);
                    why = why.or(executed.err());
                }
                _ => executed?,
            }
        }
        Ok(why)
    }

    fn execute_at(&mut self, position: usize) -> Result<(), MapError> {
        let Some(op) = self.ops.get(position) else {
            self.world.services.count_impossible();
            return Ok(());
        };
        let executed = if may_touch(&self.world, op) {
            self.maps.execute(&op.action)
        } else {
            self.world.report.count_cross_service();
            let cause = "INVARIANT_CROSS_SERVICE: its owner is not dirty".to_owned();
            Err(MapError::Refused { op: op.action.name(), cause })
        };
        match &executed {
            Ok(()) => self.world.record_accepted(op),
            Err(error) => {
                self.world.report.count_refusal(error);
                // What comes after a range is executed all the same.
                let (ops, at) = if is_new_source(op) {
                    (core::slice::from_ref(op), 0)
                } else {
                    (self.ops.as_slice(), position)
                };
                self.world.record_refused(ops, at);
            }
        }
        executed
    }

    /// Notes why a service is not carried out, and whether that is because its namespace has its part.
    fn record_failure(&mut self, id: ServiceId, (error, is_part): (String, bool), now: Duration) {
        self.world.services.record_error(id, error.into());
        self.retries.record_failure(id, now, is_part);
    }
}

/// Why the maps were not compared with what was realized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The maps may still hold what a source has that has not told it.
    #[error("the first lists of the sources are not there, or not written yet")]
    NotYet,
    /// The maps could not be read.
    #[error(transparent)]
    Maps(MapError),
}

/// The port of which the op changes the source ranges.
const fn source_port(op: &Op) -> Option<PortIndex> {
    match &op.action {
        Action::InsertSource(key, _) | Action::RemoveSource(key) => Some(key.port),
        _ => None,
    }
}

const fn is_new_source(op: &Op) -> bool {
    matches!(op.action, Action::InsertSource(..))
}

fn is_new_frontend(world: &World, op: &Op) -> bool {
    matches!(&op.action, Action::InsertFrontend(key, _) if world.owners.frontends.is_new(key))
}

fn is_frontend_removal(op: &Op) -> bool {
    matches!(op.action, Action::RemoveFrontend(_))
}

fn may_touch(world: &World, op: &Op) -> bool {
    match op.owner {
        Owner::Service(id) => world.services.is_dirty(id),
        Owner::Node | Owner::Nobody => true,
    }
}

#[cfg(test)]
mod tests;
