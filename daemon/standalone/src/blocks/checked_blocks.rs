//! The active blocks, their backends' health, and the schedule of checks.
//!
//! Invariant: the last sent version of every object is stored here, so each group holds exactly the changes. A verdict
//! survives a reload while its backend is still checked: a reload is no reason to trust a dead backend. Time is an
//! argument: the `Duration` since a fixed start.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::facts::{Meta, ServiceFacts, SliceFacts, Writer};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey};
use holdfast_core::weights::WeightSetting;
use holdfast_status::datapath::BackendRefusals;
use holdfast_status::record::HEALTH_CHECK_WRITER;

use super::block::{Block, Blocks};
use super::check_table::{CheckOutcome, CheckRow};
use super::health::{Health, Transition};
use super::obstacles::{ObstacleLog, RouteLoss};
use super::refusal_recheck::{RefusalRecheck, RefusalTracker, RefusedBackends};
use super::schedule::{CheckId, ConcurrencyLimits, Schedule, hash_part, jitter_interval};
use super::{CheckStats, FIRST_INTERVAL_MAX, HealthCheck, slow_start};
use crate::names::BackendSet;

/// A check to run now.
#[derive(Debug)]
pub(super) struct DueCheck {
    /// Returned with the result.
    pub(super) id: CheckId,
    pub(super) backend: SocketAddr,
    pub(super) check: Arc<HealthCheck>,
}

/// A change of a backend's readiness.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HealthChange {
    pub(super) service: ServiceKey,
    pub(super) backend: SocketAddr,
    pub(super) transition: Transition,
    /// The kind of the check.
    pub(super) check: &'static str,
    /// Failures since the backend was last healthy: until now if it turned unready, until its recovery if it turned
    /// ready.
    pub(super) failures: u32,
    /// The last error.
    pub(super) error: Option<String>,
}

#[derive(Debug)]
struct BlockState {
    block: Arc<Block>,
    // The service as last sent, with the weights of that time.
    service: Arc<ServiceFacts>,
    sent: BTreeMap<SliceKey, Arc<SliceFacts>>,
    checks: BTreeMap<SocketAddr, CheckId>,
}

#[derive(Debug)]
struct BackendCheck {
    service: ServiceKey,
    slice: SliceKey,
    backend: SocketAddr,
    check: Arc<HealthCheck>,
    // The last or running check.
    running_check: Arc<HealthCheck>,
    health: Health,
    // The row that readers see.
    row: CheckRow,
    // Its checks have left the common phase of backends that started together.
    is_spread: bool,
    // When it became ready again after it was unready.
    ready_since: Option<Duration>,
    recheck: RefusalRecheck,
    route_loss: RouteLoss,
}

/// The state of this source.
#[derive(Debug)]
pub(super) struct CheckedBlocks {
    seed: u64,
    stats: Arc<CheckStats>,
    blocks: BTreeMap<ObjectName, BlockState>,
    checks: BTreeMap<CheckId, BackendCheck>,
    checks_made: u64,
    unusable: usize,
    schedule: Schedule,
    refusals: RefusalTracker,
    changed_slices: BTreeSet<(ObjectName, SliceKey)>,
    // When services' ramping backends step next.
    ramp_steps: BTreeSet<(Duration, ObjectName)>,
    obstacles: ObstacleLog,
}

impl CheckedBlocks {
    /// Creates the state; readers use `stats`.
    pub(super) fn new(seed: u64, stats: Arc<CheckStats>, limits: ConcurrencyLimits) -> Self {
        Self {
            seed,
            stats,
            blocks: BTreeMap::new(),
            checks: BTreeMap::new(),
            checks_made: 0,
            unusable: 0,
            schedule: Schedule::new(limits),
            refusals: RefusalTracker::default(),
            changed_slices: BTreeSet::new(),
            ramp_steps: BTreeSet::new(),
            obstacles: ObstacleLog::default(),
        }
    }

    /// Replaces the active blocks; returns the changes.
    pub(super) fn apply_blocks(&mut self, blocks: &Blocks, now: Duration) -> Vec<Event> {
        let mut group = Vec::new();
        let gone: Vec<_> = self.blocks.keys().filter(|name| !blocks.contains(name)).cloned().collect();
        for state in gone.iter().filter_map(|name| self.blocks.remove(name)).collect::<Vec<_>>() {
            self.delete_block(state, &mut group);
        }
        for (name, block) in blocks.iter() {
            self.replace_block(name, block, now, &mut group);
        }
        group
    }

    /// The present backends of a service.
    pub(super) fn backend_set(&self, name: &ObjectName) -> Option<BackendSet> {
        self.blocks.get(name).map(|state| state.block.backend_set())
    }

    /// How many checked backends are usable.
    pub(super) fn usable(&self) -> usize {
        self.checks.len().saturating_sub(self.unusable)
    }

    /// How many checked backends are unusable.
    pub(super) const fn unusable(&self) -> usize {
        self.unusable
    }

    /// Starts a due check. Call it until it returns `None`.
    pub(super) fn start_due(&mut self, now: Duration) -> Option<DueCheck> {
        let id = self.schedule.start_due(now)?;
        let checked = self.checks.get_mut(&id)?;
        checked.running_check = Arc::clone(&checked.check);
        Some(DueCheck { id, backend: checked.backend, check: Arc::clone(&checked.check) })
    }

    /// When the next check can start without another one finishing first, or a slow start steps.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let step = self.ramp_steps.first().map(|(at, _)| *at);
        self.schedule.next_due().into_iter().chain(step).min()
    }

    /// Records a result; returns the change if the backend turned. Results of removed checks, or of checks that a
    /// reload changed meanwhile, are ignored.
    pub(super) fn finish_check(
        &mut self,
        id: CheckId,
        outcome: CheckOutcome,
        now: Duration,
    ) -> Option<HealthChange> {
        let Some(checked) = self.checks.get_mut(&id).filter(|checked| checked.running_check == checked.check)
        else {
            self.stats.count_result(outcome.result);
            self.schedule.finish_check(id, now, Duration::ZERO);
            return None;
        };
        let outcome = checked.route_loss.judge_outcome(outcome, now);
        self.stats.count_result(outcome.result);
        self.obstacles.log_outcome(&outcome, now);
        let is_well = outcome.is_well();
        // A recheck only lowers.
        let counted = is_well.filter(|is_well| !is_well || !checked.recheck.is_active());
        let transition = counted.and_then(|is_well| checked.health.record_result(is_well));
        let error = transition.and(outcome.error()).map(str::to_owned);
        checked.row.record_outcome(outcome, checked.health.is_ready());
        match checked.due_after_recheck(is_well, now) {
            Some(due) => {
                self.schedule.finish_check(id, now, Duration::ZERO);
                self.schedule.set_due(id, due);
            }
            None => self.schedule.finish_check(id, now, checked.next_wait(self.seed, is_well.is_some())),
        }
        let transition = transition?;
        let returned = transition == Transition::Ready;
        checked.ready_since = returned.then_some(now);
        self.unusable =
            if returned { self.unusable.saturating_sub(1) } else { self.unusable.saturating_add(1) };
        self.changed_slices.insert((checked.service.name.clone(), checked.slice.clone()));
        Some(HealthChange {
            service: checked.service.clone(),
            backend: checked.backend,
            transition,
            check: checked.check.kind.as_str(),
            failures: checked.health.failures(),
            error,
        })
    }

    /// Rechecks ready backends that refused their service's clients; returns how many.
    pub(super) fn recheck_refused(&mut self, refusing: &BackendRefusals, now: Duration) -> u64 {
        let refused = self.refusals.take_new(refusing);
        let mut begun = 0;
        if refused.is_empty() {
            return begun;
        }
        for state in self.blocks.values() {
            for id in state.refused_checks(&refused) {
                let due = self.schedule.due(id);
                let Some((checked, due)) = self.checks.get_mut(&id).zip(due) else { continue };
                if checked.health.is_ready() && checked.recheck.begin(now, checked.check.interval, due) {
                    self.schedule.set_due(id, now);
                    begun += 1;
                }
            }
        }
        begun
    }

    /// The slices with turned backends since the last call, each once, after the services with changed weights.
    pub(super) fn take_changes(&mut self, now: Duration) -> Vec<Event> {
        let turned = std::mem::take(&mut self.changed_slices);
        let mut reweighed: BTreeSet<ObjectName> = turned.iter().map(|(service, _)| service.clone()).collect();
        while self.ramp_steps.first().is_some_and(|(at, _)| *at <= now) {
            reweighed.extend(self.ramp_steps.pop_first().map(|(_, service)| service));
        }
        let mut events: Vec<_> =
            reweighed.iter().filter_map(|service| self.reweigh_service(service, now)).collect();
        events.extend(turned.iter().filter_map(|(service, slice)| self.reapply_slice(service, slice)));
        events
    }

    /// The service with its present weights, if they changed.
    fn reweigh_service(&mut self, name: &ObjectName, now: Duration) -> Option<Event> {
        let state = self.blocks.get_mut(name)?;
        let (weights, next) = state.current_weights(&self.checks, now);
        self.ramp_steps.extend(next.map(|next| (next, name.clone())));
        if state.service.weights == weights {
            return None;
        }
        let meta = Meta { writer: health_writer(), ..state.service.meta.clone() };
        state.service = Arc::new(ServiceFacts { meta, weights, ..(*state.service).clone() });
        Some(Event::ServiceApplied(Arc::clone(&state.service)))
    }

    fn reapply_slice(&mut self, service: &ObjectName, slice: &SliceKey) -> Option<Event> {
        let state = self.blocks.get_mut(service)?;
        let mut facts = state.build_slice(&self.checks, slice)?;
        facts.meta.writer = health_writer();
        let facts = Arc::new(facts);
        state.sent.insert(slice.clone(), Arc::clone(&facts));
        Some(Event::SliceApplied(facts))
    }

    fn delete_block(&mut self, state: BlockState, group: &mut Vec<Event>) {
        for id in state.checks.into_values() {
            self.drop_check(id);
        }
        let service = &state.block.service;
        self.stats.table.set_rows(&service.key.name, BTreeMap::new());
        group.push(Event::ServiceDeleted(service.key.clone(), Some(Box::new(service.meta.clone()))));
        group.extend(state.sent.values().map(deletion_event));
    }

    /// Activates one block; sends only differences, so nothing for an unchanged block.
    fn replace_block(
        &mut self,
        name: &ObjectName,
        block: &Arc<Block>,
        now: Duration,
        group: &mut Vec<Event>,
    ) {
        if self.blocks.get(name).is_some_and(|state| Arc::ptr_eq(&state.block, block)) {
            return;
        }
        let before = self.blocks.remove(name);
        let (service_before, mut sent_before, checks_before) = match before {
            Some(before) => (Some(before.service), before.sent, before.checks),
            None => (None, BTreeMap::new(), BTreeMap::new()),
        };
        let checks = self.replace_checks(block, checks_before, now);
        let service = Arc::clone(&block.service);
        let mut state = BlockState { block: Arc::clone(block), service, sent: BTreeMap::new(), checks };
        let (weights, next) = state.current_weights(&self.checks, now);
        self.ramp_steps.extend(next.map(|next| (next, name.clone())));
        if weights != block.service.weights {
            state.service = Arc::new(ServiceFacts { weights, ..(*block.service).clone() });
        }
        match service_before.filter(|before| is_same_service(before, &state.service)) {
            Some(before) => state.service = before,
            None => group.push(Event::ServiceApplied(Arc::clone(&state.service))),
        }
        for (key, facts) in state.build_slices(&self.checks) {
            let sent = sent_before.remove(&key).filter(|sent| is_same_slice(sent, &facts));
            let facts = sent.unwrap_or_else(|| {
                let facts = Arc::new(facts);
                group.push(Event::SliceApplied(Arc::clone(&facts)));
                facts
            });
            state.sent.insert(key, facts);
        }
        group.extend(sent_before.values().map(deletion_event));
        self.blocks.insert(name.clone(), state);
    }

    fn replace_checks(
        &mut self,
        block: &Block,
        mut before: BTreeMap<SocketAddr, CheckId>,
        now: Duration,
    ) -> BTreeMap<SocketAddr, CheckId> {
        let mut checks = BTreeMap::new();
        if let Some(check) = &block.check {
            for (slice, backend) in block.backends() {
                let known = before.remove(&backend);
                let id = known.unwrap_or_else(|| self.new_check(block, slice, backend, check));
                self.set_check(id, known.is_none(), check, now);
                checks.insert(backend, id);
            }
        }
        for id in before.into_values() {
            self.drop_check(id);
        }
        self.publish_rows(&block.service.key.name, &checks);
        checks
    }

    fn publish_rows(&self, service: &ObjectName, checks: &BTreeMap<SocketAddr, CheckId>) {
        let row = |id| self.checks.get(id).map(|checked| checked.row.clone());
        let rows = checks.iter().filter_map(|(backend, id)| Some((*backend, row(id)?)));
        self.stats.table.set_rows(service, rows.collect());
    }

    fn new_check(
        &mut self,
        block: &Block,
        slice: &SliceKey,
        backend: SocketAddr,
        check: &Arc<HealthCheck>,
    ) -> CheckId {
        self.checks_made += 1;
        let id = CheckId(self.checks_made);
        let service = block.service.key.clone();
        let health = Health::new(check.rise, check.fall);
        let row = CheckRow::new(check.kind.as_str());
        let [check, asked] = [check, check].map(Arc::clone);
        let checked = BackendCheck {
            service,
            slice: slice.clone(),
            backend,
            check,
            running_check: asked,
            health,
            row,
            is_spread: false,
            ready_since: None,
            recheck: RefusalRecheck::default(),
            route_loss: RouteLoss::default(),
        };
        self.checks.insert(id, checked);
        id
    }

    /// Schedules a new or changed check soon; an unchanged one keeps its schedule.
    fn set_check(&mut self, id: CheckId, new: bool, check: &Arc<HealthCheck>, now: Duration) {
        let Some(checked) = self.checks.get_mut(&id) else {
            return;
        };
        if checked.check != *check {
            checked.check = Arc::clone(check);
            checked.row.set_kind(check.kind.as_str());
            checked.health.set_thresholds(check.rise, check.fall);
            checked.is_spread = false;
            checked.recheck = RefusalRecheck::default();
        } else if !new {
            return;
        }
        let due = now.saturating_add(checked.first_wait(self.seed));
        self.schedule.set_due(id, due);
    }

    fn drop_check(&mut self, id: CheckId) {
        let was_unusable = self.checks.remove(&id).is_some_and(|checked| !checked.health.is_ready());
        self.unusable = self.unusable.saturating_sub(usize::from(was_unusable));
        self.schedule.remove(id);
    }
}

impl BlockState {
    /// The checks of backends that refused this service's clients.
    fn refused_checks(&self, refused: &RefusedBackends) -> impl Iterator<Item = CheckId> {
        let service = &self.block.service;
        let transport = service.ports.first().and_then(|port| port.protocol.transport());
        let dialled =
            service.static_frontends.iter().filter_map(move |frontend| Some((*frontend, transport?)));
        let backends = dialled.filter_map(|dialled| refused.get(&dialled)).flatten();
        backends.filter_map(|backend| self.checks.get(backend).copied())
    }

    /// The present weights, and when backends step next: the block's weights, except for backends in slow start.
    fn current_weights(
        &self,
        checks: &BTreeMap<CheckId, BackendCheck>,
        now: Duration,
    ) -> (Option<Box<WeightSetting>>, Option<Duration>) {
        let configured = &self.block.service.weights;
        let Some(slow_start) = self.block.check.as_ref().and_then(|check| check.slow_start) else {
            return (configured.clone(), None);
        };
        let step = |backend| {
            let returned = self.checks.get(&backend).and_then(|id| checks.get(id)?.ready_since)?;
            slow_start::weight_step(returned, slow_start, now)
        };
        let whole = self.block.backend_set().backends.into_iter();
        let each: Vec<_> = whole.map(|(backend, weight)| (backend, weight, step(backend))).collect();
        if each.iter().all(|(_, _, step)| step.is_none()) {
            return (configured.clone(), None);
        }
        let growing = WeightSetting { weights: slow_start::scale_weights(&each), wrong: None };
        (Some(Box::new(growing)), Some(slow_start::next_step(slow_start, now)))
    }

    fn build_slices(&self, checks: &BTreeMap<CheckId, BackendCheck>) -> Vec<(SliceKey, SliceFacts)> {
        let keys = self.block.slices.keys();
        keys.filter_map(|key| Some((key.clone(), self.build_slice(checks, key)?))).collect()
    }

    fn build_slice(&self, checks: &BTreeMap<CheckId, BackendCheck>, key: &SliceKey) -> Option<SliceFacts> {
        let ready = |backend| {
            let checked = self.checks.get(&backend).and_then(|id| checks.get(id));
            checked.is_none_or(|checked| checked.health.is_ready())
        };
        Some(self.block.slice_facts(key, self.block.slices.get(key)?, ready))
    }
}

impl BackendCheck {
    /// The delay of the first check, spread so that many backends are not checked at once.
    fn first_wait(&self, seed: u64) -> Duration {
        hash_part(self.first_interval(), self.spread_hash(seed))
    }

    /// The wait between check starts. The first interval after a verdict is a random part of one, so that checks that
    /// started together spread for good. A check that could not run does not hurry.
    fn next_wait(&mut self, seed: u64, has_asked: bool) -> Duration {
        let hash = self.spread_hash(seed);
        if has_asked && !self.health.is_proven() {
            return jitter_interval(self.first_interval(), hash);
        }
        let is_spread = std::mem::replace(&mut self.is_spread, true);
        if is_spread {
            jitter_interval(self.check.interval, hash)
        } else {
            hash_part(self.check.interval, hash)
        }
    }

    /// When the next check is due after a recheck; `None`: the check was regular, or the recheck made the backend
    /// unready.
    fn due_after_recheck(&mut self, is_well: Option<bool>, now: Duration) -> Option<Duration> {
        if !self.recheck.is_active() {
            return None;
        }
        if is_well == Some(false) && self.health.is_ready() {
            return Some(now.saturating_add(self.first_interval()));
        }
        let turn = self.recheck.end()?;
        self.health.is_ready().then(|| turn.max(now))
    }

    fn first_interval(&self) -> Duration {
        self.check.interval.min(FIRST_INTERVAL_MAX)
    }

    fn spread_hash(&self, seed: u64) -> u64 {
        let mut hash = DefaultHasher::new();
        (seed, &self.service, self.backend).hash(&mut hash);
        hash.finish()
    }
}

fn deletion_event(facts: &Arc<SliceFacts>) -> Event {
    Event::SliceDeleted(facts.key.clone(), Some(Box::new(facts.meta.clone())))
}

#[expect(clippy::unnecessary_wraps, reason = "an object has a writer or none")]
fn health_writer() -> Option<Writer> {
    Some(Writer {
        manager: HEALTH_CHECK_WRITER.into(),
        operation: "Update".into(),
        subresource: None,
        at: None,
    })
}

/// Like [`is_same_slice`], for services.
fn is_same_service(left: &ServiceFacts, right: &ServiceFacts) -> bool {
    ServiceFacts { meta: right.meta.clone(), ..left.clone() } == *right
}

/// Whether two slices are equal except for their metadata: a new writer alone is no change.
fn is_same_slice(left: &SliceFacts, right: &SliceFacts) -> bool {
    (&left.service, left.address_type, &left.ports, &left.endpoints, &left.weights)
        == (&right.service, right.address_type, &right.ports, &right.endpoints, &right.weights)
}

#[cfg(test)]
mod tests;
