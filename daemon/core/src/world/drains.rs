//! Finds the services of which a list has what was drained or taken back.
//!
//! Invariant: a drain makes no service dirty but those that have such a backend, and each of these is, although the
//! walk through all services goes piece by piece: what is decided while it goes on is decided by the drains of then.
//! Each order has one round of the walk, wherever that stands when it comes, so orders that go on coming hold up none.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::World;
use crate::change::Cause;
use crate::drains::{Drain, Drains, Ordered, Turned};
use crate::keys::{ServiceKey, Source};
use crate::op::ServiceId;
use crate::service::{Port, Service};
use crate::work;

/// A walk through all services, round and round as long as any order has not had its round.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// What was drained or taken back of all services.
    turned: BTreeMap<Drain, Round>,
    /// The service that comes next.
    next: u32,
}

/// The round of the last order for a drain.
#[derive(Debug)]
struct Round {
    turned: Arc<Turned>,
    /// Where it began.
    from: u32,
    /// It has come to the last service, and goes on with the first one.
    is_late: bool,
}

impl Walk {
    pub(super) fn is_under_way(&self) -> bool {
        !self.turned.is_empty()
    }

    fn begin(&mut self, drain: Drain, turned: Arc<Turned>) {
        let round = Round { turned, from: self.next, is_late: false };
        self.turned.insert(drain, round);
    }

    /// Goes to the next of so many services, and ends each round that has come to where it began.
    fn go_on(&mut self, services: usize) {
        self.next = self.next.saturating_add(1);
        if self.next as usize >= services {
            self.next = 0;
            self.turned.values_mut().for_each(|round| round.is_late = true);
        }
        let next = self.next;
        self.turned.retain(|_, round| !round.is_late || next < round.from);
    }
}

impl World {
    /// Begins with the drains that a former process left. Called once, before anything is remembered.
    pub(crate) fn begin_with_drains(&mut self, drains: Arc<Drains>) {
        self.tables.drains = drains;
    }

    /// Takes notice of what is about to be drained or taken back. A service that is named is found by its name.
    pub(super) fn turn_drains(&mut self, drains: &Drains, by: &Ordered) {
        let before = Arc::clone(&self.tables.drains);
        for drain in before.difference(drains) {
            let is_on = drains.get(&drain).is_some();
            let turned = Arc::new(Turned { drain: drain.clone(), is_on, by: by.clone() });
            if drain.service().is_some() {
                self.turn_named(&turned);
            } else {
                self.drained.begin(drain, turned);
            }
        }
    }

    fn turn_named(&mut self, turned: &Arc<Turned>) {
        let name = turned.drain.service();
        let key = |source| name.map(|name| ServiceKey { name: name.clone(), source });
        let found = Source::ALL.into_iter().filter_map(key).filter_map(|key| self.tables.id_of(&key));
        for id in found.collect::<Vec<_>>() {
            if self.services.get(id).is_some_and(|service| service.has(&turned.drain)) {
                self.services.mark(id, Cause::Drained(Arc::clone(turned)), true);
            }
        }
    }

    /// Goes on with the walk, for as long as a piece takes.
    pub(super) fn walk_drained(&mut self) {
        let mut left = self.queue.most;
        while self.drained.is_under_way() && left > 0 {
            let id = ServiceId(self.drained.next);
            let mut causes = Vec::new();
            if let Some(service) = self.services.get(id) {
                let looks = 1 + service.ports.len() * self.drained.turned.len();
                work::done(looks);
                left = left.saturating_sub(looks as u64);
                let rounds = self.drained.turned.values().map(|round| &round.turned);
                causes.extend(rounds.filter(|turned| service.has(&turned.drain)).cloned());
            }
            causes.into_iter().for_each(|turned| self.services.mark(id, Cause::Drained(turned), true));
            self.drained.go_on(self.services.len());
        }
    }
}

impl Service {
    /// Whether a drain of all services, or of this one, means any of its backends.
    fn has(&self, drain: &Drain) -> bool {
        let has = |port: &Port| port.rows.at(drain.address()).any(|row| drain.reaches(row.backend()));
        self.ports.iter().any(has)
    }
}
