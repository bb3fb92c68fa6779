//! The only writer: applies events, plans, executes the ops in the maps, and publishes what readers see.
//!
//! Invariant: only the engine touches tables, realized and maps, and it executes an op only while the op's owner is
//! dirty. This module alone decides the order of a step:
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
//! The engine never blocks, and time is an argument; the agent owns the task, the clock and the queues.

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

/// How often the engine asks the maps whether a grace period is over; a period lasts microseconds to milliseconds.
const GRACE_POLL: Duration = Duration::from_millis(5);

/// The wait before ops of no service are tried again.
const UPKEEP_WAIT: Duration = Duration::from_millis(100);

/// How long the engine waits for the sources before it writes the restored state to the maps. The maps serve meanwhile,
/// and are never older than the restored state. A source that can be reached answers within a second.
const RESTORED_WAIT: Duration = Duration::from_secs(3);

/// How many new frontends, or removals of frontends, the engine collects for one batch.
const BATCH_MAX: usize = 1_024;

/// How long upkeep may wait for a time at which no service has writes.
const UPKEEP_WAIT_MAX: Duration = Duration::from_secs(1);

/// The only writer.
#[derive(Debug)]
pub struct Engine<M> {
    world: World,
    maps: M,
    retries: Retries,
    // Readers may still use slots that a former process freed; the engine writes nothing before they have left.
    first_grace: Option<Grace>,
    // The maps may be written, and follow the rules from then on.
    is_writable: bool,
    // The start found empty maps, and nothing else serves.
    is_cold_start: bool,
    // How many sources had synced when the maps were last prepared.
    prepared_sources: Option<usize>,
    // A comparison is running.
    checks: bool,
    upkeep_due: Option<Duration>,
    // When upkeep last ran.
    upkeep_at: Duration,
    ops: Vec<Op>,
    // New frontends of services with written lists; later in a piece, frontends to remove.
    batch: Vec<Op>,
}

impl<M: Maps> Engine<M> {
    /// Adopts the contents of the maps as realized, and waits for the first whole list of a source. Until every source
    /// has synced, the engine only adds.
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

    /// Sets the drains that were in force. Call it before [`Self::restore`].
    pub fn restore_drains(&mut self, drains: Arc<Drains>) {
        self.world.tables.drains = drains;
    }

    /// Restores the state that a former process saved. Call it before any event.
    pub fn restore(&mut self, saved: SavedSnapshot, now: ClockReading) {
        self.world.restore_services(saved, now);
    }

    /// Applies one event. It takes effect with the next step.
    pub fn apply(&mut self, event: Event) {
        self.world.apply(event);
    }

    /// Brings the dirty services of one piece as far as the maps allow, and returns what readers see from now on. The
    /// rest is due at once, so that the caller can apply events first.
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

    /// Compares the maps with realized. The next step rewrites what another writer changed.
    pub fn check_maps(&mut self) -> Result<Vec<Drift>, CheckError> {
        self.begin_check();
        loop {
            if let Some(found) = self.continue_check() {
                return found;
            }
        }
    }

    /// Begins a comparison of the maps with realized, unless the maps may hold objects that no source has sent yet.
    pub fn begin_check(&mut self) {
        self.checks = self.world.queue.is_open() && self.world.tables.is_complete();
        if self.checks {
            self.world.realized.begin_check();
        }
    }

    /// Continues the comparison for as long as a piece takes. Returns the drift once it is done, or why there is none.
    pub fn continue_check(&mut self) -> Option<Result<Vec<Drift>, CheckError>> {
        if !self.checks {
            return Some(Err(CheckError::NotYet));
        }
        let found = self.world.continue_check(&mut self.maps).transpose()?;
        self.checks = false;
        Some(found.map_err(CheckError::Maps))
    }

    /// Whether the maps hold everything that the sources sent or that was restored, except what the maps refused.
    pub fn is_written(&self) -> bool {
        self.is_writable && self.world.tables.is_complete() && !self.world.has_dirty()
    }

    /// Whether the maps hold everything that was desired when they were first written, except what they refused. From
    /// then on they are fit to serve, even if events arrive faster than they are written.
    pub fn has_initial_state(&self) -> bool {
        self.world.has_initial_state()
    }

    /// Whether a source cannot be read and nothing of it was restored, so that the maps lack its objects.
    pub fn lacks_unreadable_source(&self) -> bool {
        self.world.tables.lacks_unreadable_source()
    }

    /// Sets the size of pieces, for a caller that wants many small ones or a single one.
    pub const fn limit_pieces(&mut self, most: u64) {
        self.world.queue.most = most;
    }

    /// Whether every source has sent its first whole list.
    pub fn is_synced(&self) -> bool {
        self.world.tables.is_synced()
    }

    /// When the next step is due without an event.
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

    /// The maps, for a reader that allocates in them, or for a test that makes them fail.
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

    /// Tells the maps how many objects to expect, so that they grow while the engine decides each service. The largest
    /// source is seldom the first to sync, so each source prepares again; a restored state has all of it in advance.
    fn prepare_maps(&mut self) {
        let delivered = if self.world.tables.has_restored() { 0 } else { self.world.tables.synced_count() };
        if self.prepared_sources.replace(delivered) != Some(delivered) {
            self.maps.prepare(&self.world.tables.estimate_growth());
        }
    }

    /// Writes all lists before all removals, so that a frontend that changes owners is never missing in between.
    fn write_services(&mut self, now: Duration) {
        let piece = self.world.queue.piece.clone();
        // If the maps lack space, the op that needs it fails and reports that.
        let _ = self.maps.reserve_capacity(&self.world.estimate_pending_growth());
        let (mut refused, mut lacking) = (BTreeSet::new(), BTreeSet::new());
        for id in &piece {
            match self.write_lists(*id) {
                Err(error) => {
                    self.record_failure(*id, (error.to_string(), error.is_quota_error()), now);
                    refused.insert(*id);
                }
                // Its removals run all the same: they may free the space that it lacks.
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

    /// Removes what the services dropped, except for services with a refused op.
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

    /// Writes a service's lists and whatever must be written with them. New frontends wait for [`Self::execute_batch`],
    /// removals until after that. Returns why something was left out, and whether the namespace's quota is the reason;
    /// the rest of the service is written.
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

    /// Inserts the collected new frontends, by which clients find the lists, or removes frontends. After a refusal it
    /// skips the service's other frontends.
    fn execute_batch(&mut self, now: Duration, refused: &mut BTreeSet<ServiceId>) {
        let mut batch = core::mem::take(&mut self.batch);
        let mut left = batch.as_slice();
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
        batch.clear();
        self.batch = batch;
    }

    /// Writes what belongs to no service: removes leftovers that no service claims after a restart, then adds new node
    /// addresses. In this order a new address never serves a NodePort that is about to go.
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
            // Each range counts alone: a range that cannot be wiped now is freed again, and delays no other.
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

    /// Executes the planned ops up to the first refusal. If a source range does not fit, only the removals of the
    /// ranges that it replaces are skipped: clients in it are denied. Returns why it did not fit.
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
                // The ops after a refused range are executed all the same.
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

    /// Records why a service failed, and whether its namespace's quota is the reason.
    fn record_failure(&mut self, id: ServiceId, (error, is_part): (String, bool), now: Duration) {
        self.world.services.record_error(id, error.into());
        self.retries.record_failure(id, now, is_part);
    }
}

/// Why the maps were not compared with realized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The maps may hold objects of a source that has not synced.
    #[error("the sources have not sent their first lists, or the maps do not hold them yet")]
    NotYet,
    #[error(transparent)]
    Maps(MapError),
}

/// The port with the source ranges that the op changes.
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
