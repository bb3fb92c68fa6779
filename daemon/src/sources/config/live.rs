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
use holdfast_core::facts::{SliceFacts, Writer};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey};

use super::block::{Block, Blocks};
use super::health::{Health, Transition};
use super::schedule::{CheckId, Schedule, jittered};
use super::{FIRST_INTERVAL_MAX, HealthCheck};

/// The writer of a slice that a health check changed.
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
}

#[derive(Debug)]
struct Standing {
    block: Arc<Block>,
    sent: BTreeMap<SliceKey, Arc<SliceFacts>>,
    checks: BTreeMap<SocketAddr, CheckId>,
}

#[derive(Debug)]
struct Checked {
    service: ServiceKey,
    slice: SliceKey,
    backend: SocketAddr,
    check: Arc<HealthCheck>,
    health: Health,
}

/// Everything this source knows.
#[derive(Debug)]
pub(super) struct Live {
    seed: u64,
    standing: BTreeMap<ObjectName, Standing>,
    checks: BTreeMap<CheckId, Checked>,
    checks_made: u64,
    schedule: Schedule,
    turned: BTreeSet<(ObjectName, SliceKey)>,
}

impl Live {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            standing: BTreeMap::new(),
            checks: BTreeMap::new(),
            checks_made: 0,
            schedule: Schedule::default(),
            turned: BTreeSet::new(),
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

    /// A check to run now. To be called until there is none.
    pub(super) fn start_due(&mut self, now: Duration) -> Option<Due> {
        let id = self.schedule.start_due(now)?;
        let checked = self.checks.get(&id)?;
        Some(Due { id, backend: checked.backend, check: Arc::clone(&checked.check) })
    }

    /// When the next check can start without another one finishing first.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.schedule.next_due()
    }

    /// Takes a result in; returns the change if the backend turned. Results of checks that are gone by now change
    /// nothing.
    pub(super) fn finished(&mut self, id: CheckId, success: bool, now: Duration) -> Option<Change> {
        let Some(checked) = self.checks.get_mut(&id) else {
            self.schedule.finished(id, now, Duration::ZERO);
            return None;
        };
        let transition = checked.health.observe(success);
        self.schedule.finished(id, now, checked.wait(self.seed));
        let transition = transition?;
        self.turned.insert((checked.service.name.clone(), checked.slice.clone()));
        Some(Change {
            service: checked.service.clone(),
            backend: checked.backend,
            transition,
            check: checked.check.kind.as_str(),
            failures: checked.health.failures(),
        })
    }

    /// The slices with a backend that turned since the last call, each once.
    pub(super) fn take_changes(&mut self) -> Vec<Event> {
        let turned = std::mem::take(&mut self.turned);
        turned.iter().filter_map(|(service, slice)| self.reapply(service, slice)).collect()
    }

    fn reapply(&mut self, service: &ObjectName, slice: &SliceKey) -> Option<Event> {
        let standing = self.standing.get_mut(service)?;
        let mut facts = standing.slice(&self.checks, slice)?;
        facts.meta.writer =
            Some(Writer { manager: WRITER.into(), operation: "Update".into(), subresource: None, at: None });
        let facts = Arc::new(facts);
        standing.sent.insert(slice.clone(), Arc::clone(&facts));
        Some(Event::SliceApplied(facts))
    }

    fn delete(&mut self, standing: Standing, group: &mut Vec<Event>) {
        for id in standing.checks.into_values() {
            self.drop_check(id);
        }
        let service = &standing.block.service;
        group.push(Event::ServiceDeleted(service.key.clone(), Some(Box::new(service.meta.clone()))));
        group.extend(standing.sent.values().map(slice_deleted));
    }

    /// Puts one block in force; sends only what differs from before, so nothing at all for an unchanged block.
    fn replace(&mut self, name: &ObjectName, block: &Arc<Block>, now: Duration, group: &mut Vec<Event>) {
        let before = self.standing.remove(name);
        let (service_before, mut sent_before, checks_before) = match before {
            Some(before) => (Some(Arc::clone(&before.block.service)), before.sent, before.checks),
            None => (None, BTreeMap::new(), BTreeMap::new()),
        };
        let checks = self.replace_checks(block, checks_before, now);
        let mut standing = Standing { block: Arc::clone(block), sent: BTreeMap::new(), checks };
        if service_before.as_ref() != Some(&block.service) {
            group.push(Event::ServiceApplied(Arc::clone(&block.service)));
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
        checks
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
        let checked = Checked { service, slice: slice.clone(), backend, check: Arc::clone(check), health };
        self.checks.insert(id, checked);
        id
    }

    /// Lets a check that is new, or differs from before, run at once; one that is the same keeps its place in the
    /// schedule.
    fn set_check(&mut self, id: CheckId, new: bool, check: &Arc<HealthCheck>, now: Duration) {
        let Some(checked) = self.checks.get_mut(&id) else {
            return;
        };
        if checked.check != *check {
            checked.check = Arc::clone(check);
            checked.health.set_thresholds(check.rise, check.fall);
        } else if !new {
            return;
        }
        self.schedule.set_due(id, now);
    }

    fn drop_check(&mut self, id: CheckId) {
        self.checks.remove(&id);
        self.schedule.remove(id);
    }
}

impl Standing {
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
    /// How long after the start of the check just done the next one starts.
    fn wait(&self, seed: u64) -> Duration {
        let hurried = self.check.interval.min(FIRST_INTERVAL_MAX);
        let interval = if self.health.proven() { self.check.interval } else { hurried };
        let mut hash = DefaultHasher::new();
        (seed, &self.service, self.backend).hash(&mut hash);
        jittered(interval, hash.finish())
    }
}

fn slice_deleted(facts: &Arc<SliceFacts>) -> Event {
    Event::SliceDeleted(facts.key.clone(), Some(Box::new(facts.meta.clone())))
}

/// Whether two slices are the same but for their metadata: another last writer alone is not a change.
fn same_but_meta(left: &SliceFacts, right: &SliceFacts) -> bool {
    (&left.service, left.address_type, &left.ports, &left.endpoints)
        == (&right.service, right.address_type, &right.ports, &right.endpoints)
}

#[cfg(test)]
mod tests;
