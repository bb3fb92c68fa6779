//! The blocks in force, what is known of their backends, and when each is checked next.
//!
//! Invariant: what was sent last of every object is kept here, so each group holds exactly what changed. A verdict
//! outlives a reload as long as its backend stays checked: a reload is no reason to trust a dead backend. Time is the
//! `Duration` since some fixed start, an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::facts::{Meta, ServiceFacts, SliceFacts, Writer};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey};
use holdfast_core::weights::WeightSetting;
use holdfast_status::datapath::Refusing;

use super::block::{Block, Blocks};
use super::doubt::{Doubt, Refused, Told};
use super::health::{Health, Transition};
use super::obstacles::{ObstacleLog, RouteLoss};
use super::schedule::{CheckId, Places, Schedule, jittered, part};
use super::seen::{Outcome, Row};
use super::{Checks, FIRST_INTERVAL_MAX, HealthCheck, ramp};
use crate::names::Set;

/// The writer of what a health check changed.
const WRITER: &str = "health-check";

/// A check to be run now.
#[derive(Debug)]
pub(super) struct Due {
    /// The id that comes back with the result.
    pub(super) id: CheckId,
    /// The backend to ask.
    pub(super) backend: SocketAddr,
    pub(super) check: Arc<HealthCheck>,
}

/// A change of a backend's readiness.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) service: ServiceKey,
    pub(super) backend: SocketAddr,
    pub(super) transition: Transition,
    /// The kind of its check.
    pub(super) check: &'static str,
    /// Failed checks since the backend was last well: up to this one if it turned unready, up to its recovery if it
    /// turned ready.
    pub(super) failures: u32,
    /// What was wrong at last.
    pub(super) error: Option<String>,
}

#[derive(Debug)]
struct Standing {
    block: Arc<Block>,
    // The service as it was sent last, with the weights of then.
    service: Arc<ServiceFacts>,
    sent: BTreeMap<SliceKey, Arc<SliceFacts>>,
    checks: BTreeMap<SocketAddr, CheckId>,
}

#[derive(Debug)]
struct Checked {
    service: ServiceKey,
    slice: SliceKey,
    backend: SocketAddr,
    check: Arc<HealthCheck>,
    // The check that ran last, or runs.
    asked: Arc<HealthCheck>,
    health: Health,
    // What readers see of it.
    row: Row,
    // Whether its checks have been moved away from those of other backends that began with it.
    is_spread: bool,
    // When it was ready again after having been unready.
    returned: Option<Duration>,
    doubt: Doubt,
    route_loss: RouteLoss,
}

/// Everything this source knows.
#[derive(Debug)]
pub(super) struct Live {
    seed: u64,
    shown: Arc<Checks>,
    standing: BTreeMap<ObjectName, Standing>,
    checks: BTreeMap<CheckId, Checked>,
    checks_made: u64,
    unusable: usize,
    schedule: Schedule,
    told: Told,
    turned: BTreeSet<(ObjectName, SliceKey)>,
    // When backends of services grow next.
    steps: BTreeSet<(Duration, ObjectName)>,
    obstacles: ObstacleLog,
}

impl Live {
    /// Readers look at `shown`.
    pub(super) fn new(seed: u64, shown: Arc<Checks>, places: Places) -> Self {
        Self {
            seed,
            shown,
            standing: BTreeMap::new(),
            checks: BTreeMap::new(),
            checks_made: 0,
            unusable: 0,
            schedule: Schedule::new(places),
            told: Told::default(),
            turned: BTreeSet::new(),
            steps: BTreeSet::new(),
            obstacles: ObstacleLog::default(),
        }
    }

    /// Puts these blocks in force in place of the ones before; returns what changed.
    pub(super) fn apply(&mut self, blocks: &Blocks, now: Duration) -> Vec<Event> {
        let mut group = Vec::new();
        let gone: Vec<_> = self.standing.keys().filter(|name| !blocks.contains(name)).cloned().collect();
        for standing in gone.iter().filter_map(|name| self.standing.remove(name)).collect::<Vec<_>>() {
            self.delete(standing, &mut group);
        }
        for (name, block) in blocks.iter() {
            self.replace(name, block, now, &mut group);
        }
        group
    }

    /// The backends that a service has now.
    pub(super) fn set(&self, name: &ObjectName) -> Option<Set> {
        self.standing.get(name).map(|standing| standing.block.set())
    }

    /// How many backends are checked and not unusable.
    pub(super) fn usable(&self) -> usize {
        self.checks.len().saturating_sub(self.unusable)
    }

    /// How many backends their checks have made unusable.
    pub(super) const fn unusable(&self) -> usize {
        self.unusable
    }

    /// A check to run now. To be called until there is none.
    pub(super) fn start_due(&mut self, now: Duration) -> Option<Due> {
        let id = self.schedule.start_due(now)?;
        let checked = self.checks.get_mut(&id)?;
        checked.asked = Arc::clone(&checked.check);
        Some(Due { id, backend: checked.backend, check: Arc::clone(&checked.check) })
    }

    /// When the next check can start without another one finishing first, or backends grow.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let step = self.steps.first().map(|(at, _)| *at);
        self.schedule.next_due().into_iter().chain(step).min()
    }

    /// Takes a result in, if the check has one; returns the change if the backend turned. Results of checks that are
    /// gone by now, or that a reload has changed while they ran, change nothing.
    pub(super) fn finished(&mut self, id: CheckId, outcome: Outcome, now: Duration) -> Option<Change> {
        let Some(checked) = self.checks.get_mut(&id).filter(|checked| checked.asked == checked.check) else {
            self.shown.count(outcome.result);
            self.schedule.finished(id, now, Duration::ZERO);
            return None;
        };
        let outcome = checked.route_loss.judge(outcome, now);
        self.shown.count(outcome.result);
        self.obstacles.note(&outcome, now);
        let is_well = outcome.is_well();
        // What is asked out of turn only lowers.
        let counted = is_well.filter(|is_well| !is_well || !checked.doubt.is_on());
        let transition = counted.and_then(|is_well| checked.health.observe(is_well));
        let error = transition.and(outcome.error()).map(str::to_owned);
        checked.row.note(outcome, checked.health.ready());
        match checked.due_in_turn(is_well, now) {
            Some(due) => {
                self.schedule.finished(id, now, Duration::ZERO);
                self.schedule.set_due(id, due);
            }
            None => self.schedule.finished(id, now, checked.wait(self.seed, is_well.is_some())),
        }
        let transition = transition?;
        let returned = transition == Transition::Ready;
        checked.returned = returned.then_some(now);
        self.unusable =
            if returned { self.unusable.saturating_sub(1) } else { self.unusable.saturating_add(1) };
        self.turned.insert((checked.service.name.clone(), checked.slice.clone()));
        Some(Change {
            service: checked.service.clone(),
            backend: checked.backend,
            transition,
            check: checked.check.kind.as_str(),
            failures: checked.health.failures(),
            error,
        })
    }

    /// Has the ready backends that refused their service's clients checked out of turn; says how many these are.
    pub(super) fn doubt(&mut self, refusing: &Refusing, now: Duration) -> u64 {
        let refused = self.told.news(refusing);
        let mut begun = 0;
        if refused.is_empty() {
            return begun;
        }
        for standing in self.standing.values() {
            for id in standing.refused(&refused) {
                let due = self.schedule.due(id);
                let Some((checked, due)) = self.checks.get_mut(&id).zip(due) else { continue };
                if checked.health.ready() && checked.doubt.begin(now, checked.check.interval, due) {
                    self.schedule.set_due(id, now);
                    begun += 1;
                }
            }
        }
        begun
    }

    /// The slices with a backend that turned since the last call, each once, and before them the services of which
    /// backends have other weights now.
    pub(super) fn take_changes(&mut self, now: Duration) -> Vec<Event> {
        let turned = std::mem::take(&mut self.turned);
        let mut reweighed: BTreeSet<ObjectName> = turned.iter().map(|(service, _)| service.clone()).collect();
        while self.steps.first().is_some_and(|(at, _)| *at <= now) {
            reweighed.extend(self.steps.pop_first().map(|(_, service)| service));
        }
        let mut events: Vec<_> = reweighed.iter().filter_map(|service| self.reweigh(service, now)).collect();
        events.extend(turned.iter().filter_map(|(service, slice)| self.reapply(service, slice)));
        events
    }

    /// The service with its weights of now, if they are others than before.
    fn reweigh(&mut self, name: &ObjectName, now: Duration) -> Option<Event> {
        let standing = self.standing.get_mut(name)?;
        let (weights, next) = standing.weights(&self.checks, now);
        self.steps.extend(next.map(|next| (next, name.clone())));
        if standing.service.weights == weights {
            return None;
        }
        let meta = Meta { writer: writer(), ..standing.service.meta.clone() };
        standing.service = Arc::new(ServiceFacts { meta, weights, ..(*standing.service).clone() });
        Some(Event::ServiceApplied(Arc::clone(&standing.service)))
    }

    fn reapply(&mut self, service: &ObjectName, slice: &SliceKey) -> Option<Event> {
        let standing = self.standing.get_mut(service)?;
        let mut facts = standing.slice(&self.checks, slice)?;
        facts.meta.writer = writer();
        let facts = Arc::new(facts);
        standing.sent.insert(slice.clone(), Arc::clone(&facts));
        Some(Event::SliceApplied(facts))
    }

    fn delete(&mut self, standing: Standing, group: &mut Vec<Event>) {
        for id in standing.checks.into_values() {
            self.drop_check(id);
        }
        let service = &standing.block.service;
        self.shown.seen.put(&service.key.name, BTreeMap::new());
        group.push(Event::ServiceDeleted(service.key.clone(), Some(Box::new(service.meta.clone()))));
        group.extend(standing.sent.values().map(slice_deleted));
    }

    /// Puts one block in force; sends only what differs from before, so nothing at all for an unchanged block.
    fn replace(&mut self, name: &ObjectName, block: &Arc<Block>, now: Duration, group: &mut Vec<Event>) {
        if self.standing.get(name).is_some_and(|standing| Arc::ptr_eq(&standing.block, block)) {
            return;
        }
        let before = self.standing.remove(name);
        let (service_before, mut sent_before, checks_before) = match before {
            Some(before) => (Some(before.service), before.sent, before.checks),
            None => (None, BTreeMap::new(), BTreeMap::new()),
        };
        let checks = self.replace_checks(block, checks_before, now);
        let service = Arc::clone(&block.service);
        let mut standing = Standing { block: Arc::clone(block), service, sent: BTreeMap::new(), checks };
        let (weights, next) = standing.weights(&self.checks, now);
        self.steps.extend(next.map(|next| (next, name.clone())));
        if weights != block.service.weights {
            standing.service = Arc::new(ServiceFacts { weights, ..(*block.service).clone() });
        }
        match service_before.filter(|before| same_service_but_meta(before, &standing.service)) {
            Some(before) => standing.service = before,
            None => group.push(Event::ServiceApplied(Arc::clone(&standing.service))),
        }
        for (key, facts) in standing.slices(&self.checks) {
            let sent = sent_before.remove(&key).filter(|sent| same_but_meta(sent, &facts));
            let facts = sent.unwrap_or_else(|| {
                let facts = Arc::new(facts);
                group.push(Event::SliceApplied(Arc::clone(&facts)));
                facts
            });
            standing.sent.insert(key, facts);
        }
        group.extend(sent_before.values().map(slice_deleted));
        self.standing.insert(name.clone(), standing);
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
        self.show(&block.service.key.name, &checks);
        checks
    }

    fn show(&self, service: &ObjectName, checks: &BTreeMap<SocketAddr, CheckId>) {
        let row = |id| self.checks.get(id).map(|checked| checked.row.clone());
        let rows = checks.iter().filter_map(|(backend, id)| Some((*backend, row(id)?)));
        self.shown.seen.put(service, rows.collect());
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
        let row = Row::new(check.kind.as_str());
        let [check, asked] = [check, check].map(Arc::clone);
        let checked = Checked {
            service,
            slice: slice.clone(),
            backend,
            check,
            asked,
            health,
            row,
            is_spread: false,
            returned: None,
            doubt: Doubt::default(),
            route_loss: RouteLoss::default(),
        };
        self.checks.insert(id, checked);
        id
    }

    /// Lets a check that is new, or differs from before, run soon; one that is the same keeps its place in the
    /// schedule.
    fn set_check(&mut self, id: CheckId, new: bool, check: &Arc<HealthCheck>, now: Duration) {
        let Some(checked) = self.checks.get_mut(&id) else {
            return;
        };
        if checked.check != *check {
            checked.check = Arc::clone(check);
            checked.row.set_kind(check.kind.as_str());
            checked.health.set_thresholds(check.rise, check.fall);
            checked.is_spread = false;
            checked.doubt = Doubt::default();
        } else if !new {
            return;
        }
        let due = now.saturating_add(checked.first_wait(self.seed));
        self.schedule.set_due(id, due);
    }

    fn drop_check(&mut self, id: CheckId) {
        let was_unusable = self.checks.remove(&id).is_some_and(|checked| !checked.health.ready());
        self.unusable = self.unusable.saturating_sub(usize::from(was_unusable));
        self.schedule.remove(id);
    }
}

impl Standing {
    /// The checks of backends that refused clients of this service.
    fn refused(&self, refused: &Refused) -> impl Iterator<Item = CheckId> {
        let service = &self.block.service;
        let transport = service.ports.first().and_then(|port| port.protocol.transport());
        let dialled =
            service.static_frontends.iter().filter_map(move |frontend| Some((*frontend, transport?)));
        let backends = dialled.filter_map(|dialled| refused.get(&dialled)).flatten();
        backends.filter_map(|backend| self.checks.get(backend).copied())
    }

    /// The weights of now, and when backends grow next: as the block says, but for those that returned lately.
    fn weights(
        &self,
        checks: &BTreeMap<CheckId, Checked>,
        now: Duration,
    ) -> (Option<Box<WeightSetting>>, Option<Duration>) {
        let asked = &self.block.service.weights;
        let Some(slow_start) = self.block.check.as_ref().and_then(|check| check.slow_start) else {
            return (asked.clone(), None);
        };
        let step = |backend| {
            let returned = self.checks.get(&backend).and_then(|id| checks.get(id)?.returned)?;
            ramp::step(returned, slow_start, now)
        };
        let whole = self.block.set().backends.into_iter();
        let each: Vec<_> = whole.map(|(backend, weight)| (backend, weight, step(backend))).collect();
        if each.iter().all(|(_, _, step)| step.is_none()) {
            return (asked.clone(), None);
        }
        let growing = WeightSetting { weights: ramp::weights(&each), wrong: None };
        (Some(Box::new(growing)), Some(ramp::next_step(slow_start, now)))
    }

    fn slices(&self, checks: &BTreeMap<CheckId, Checked>) -> Vec<(SliceKey, SliceFacts)> {
        let keys = self.block.slices.keys();
        keys.filter_map(|key| Some((key.clone(), self.slice(checks, key)?))).collect()
    }

    fn slice(&self, checks: &BTreeMap<CheckId, Checked>, key: &SliceKey) -> Option<SliceFacts> {
        let ready = |backend| {
            let checked = self.checks.get(&backend).and_then(|id| checks.get(id));
            checked.is_none_or(|checked| checked.health.ready())
        };
        Some(self.block.slice(key, self.block.slices.get(key)?, ready))
    }
}

impl Checked {
    /// How long the first check waits: so long that many backends are not asked in one moment.
    fn first_wait(&self, seed: u64) -> Duration {
        part(self.hurried(), self.hash(seed))
    }

    /// How long after the start of the check just done the next one starts. The first interval after a verdict is only
    /// a part of one, so that checks that began together fall apart for good. A check that could not ask does not
    /// hurry.
    fn wait(&mut self, seed: u64, has_asked: bool) -> Duration {
        let hash = self.hash(seed);
        if has_asked && !self.health.proven() {
            return jittered(self.hurried(), hash);
        }
        let is_spread = std::mem::replace(&mut self.is_spread, true);
        if is_spread { jittered(self.check.interval, hash) } else { part(self.check.interval, hash) }
    }

    /// When the next check is due after one that was made out of turn; `None`: it was made in its turn, or has settled
    /// what was in doubt.
    fn due_in_turn(&mut self, is_well: Option<bool>, now: Duration) -> Option<Duration> {
        if !self.doubt.is_on() {
            return None;
        }
        if is_well == Some(false) && self.health.ready() {
            return Some(now.saturating_add(self.hurried()));
        }
        let turn = self.doubt.end()?;
        self.health.ready().then(|| turn.max(now))
    }

    fn hurried(&self) -> Duration {
        self.check.interval.min(FIRST_INTERVAL_MAX)
    }

    fn hash(&self, seed: u64) -> u64 {
        let mut hash = DefaultHasher::new();
        (seed, &self.service, self.backend).hash(&mut hash);
        hash.finish()
    }
}

fn slice_deleted(facts: &Arc<SliceFacts>) -> Event {
    Event::SliceDeleted(facts.key.clone(), Some(Box::new(facts.meta.clone())))
}

#[expect(clippy::unnecessary_wraps, reason = "an object has a writer or none")]
fn writer() -> Option<Writer> {
    Some(Writer { manager: WRITER.into(), operation: "Update".into(), subresource: None, at: None })
}

/// As [`same_but_meta`], for services.
fn same_service_but_meta(left: &ServiceFacts, right: &ServiceFacts) -> bool {
    ServiceFacts { meta: right.meta.clone(), ..left.clone() } == *right
}

/// Whether two slices are the same but for their metadata: another last writer alone is not a change.
fn same_but_meta(left: &SliceFacts, right: &SliceFacts) -> bool {
    (&left.service, left.address_type, &left.ports, &left.endpoints, &left.weights)
        == (&right.service, right.address_type, &right.ports, &right.endpoints, &right.weights)
}

#[cfg(test)]
mod tests;
