//! Finds the services of which a list has what was drained or taken back.
//!
//! Invariant: a drain makes no service dirty but those that have such a backend, and each of these is, although the
//! walk through all services goes piece by piece: what is decided while it goes on is decided by the drains of then.
//! Each order has one round of the walk, wherever that stands when it comes, so orders that go on coming hold up none.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Drain, DrainChange, DrainOrder, Drains};
use crate::change::Cause;
use crate::keys::{ObjectName, ServiceKey, Source};
use crate::op::ServiceId;
use crate::service::{Port, Service};
use crate::tables::Tables;
use crate::work;
use crate::world::services::Services;

/// A walk through all services, round and round as long as any order has not had its round.
#[derive(Debug, Default)]
pub(crate) struct DrainScan {
    /// What was drained or taken back of all services.
    changed: BTreeMap<Drain, ScanRound>,
    /// The service that comes next.
    next: u32,
}

/// The round of the last order for a drain.
#[derive(Debug)]
struct ScanRound {
    turned: Arc<DrainChange>,
    /// Where it began.
    from: u32,
    /// It has come to the last service, and goes on with the first one.
    is_late: bool,
}

impl DrainScan {
    pub(crate) fn is_under_way(&self) -> bool {
        !self.changed.is_empty()
    }

    fn begin_round(&mut self, drain: Drain, turned: Arc<DrainChange>) {
        let round = ScanRound { turned, from: self.next, is_late: false };
        self.changed.insert(drain, round);
    }

    /// Goes to the next of so many services, and ends each round that has come to where it began.
    fn advance_cursor(&mut self, services: usize) {
        self.next = self.next.saturating_add(1);
        if self.next as usize >= services {
            self.next = 0;
            self.changed.values_mut().for_each(|round| round.is_late = true);
        }
        let next = self.next;
        self.changed.retain(|_, round| !round.is_late || next < round.from);
    }

    /// Takes notice of what is about to be drained or taken back. A service that is named is found by its name.
    pub(crate) fn record_changes(
        &mut self,
        drains: &Drains,
        by: &DrainOrder,
        tables: &Tables,
        services: &mut Services,
    ) {
        for drain in tables.drains.difference(drains) {
            let is_on = drains.get(&drain).is_some();
            let turned = Arc::new(DrainChange { drain: drain.clone(), is_on, by: by.clone() });
            match drain.service() {
                Some(name) => mark_named_service(name, &turned, tables, services),
                None => self.begin_round(drain, turned),
            }
        }
    }

    /// Goes on with the walk, for so much work.
    pub(crate) fn advance(&mut self, mut left: u64, services: &mut Services) {
        while self.is_under_way() && left > 0 {
            let id = ServiceId(self.next);
            let mut causes = Vec::new();
            if let Some(service) = services.get(id) {
                let looks = 1 + service.ports.len() * self.changed.len();
                work::count_work(looks);
                left = left.saturating_sub(looks as u64);
                let rounds = self.changed.values().map(|round| &round.turned);
                causes.extend(rounds.filter(|turned| service.has_drained_backend(&turned.drain)).cloned());
            }
            causes.into_iter().for_each(|turned| services.mark_dirty(id, Cause::Drained(turned), true));
            self.advance_cursor(services.len());
        }
    }
}

fn mark_named_service(
    name: &ObjectName,
    turned: &Arc<DrainChange>,
    tables: &Tables,
    services: &mut Services,
) {
    for source in Source::ALL {
        let Some(id) = tables.find_id(&ServiceKey { name: name.clone(), source }) else { continue };
        if services.get(id).is_some_and(|service| service.has_drained_backend(&turned.drain)) {
            services.mark_dirty(id, Cause::Drained(Arc::clone(turned)), true);
        }
    }
}

impl Service {
    /// Whether a drain of all services, or of this one, means any of its backends.
    fn has_drained_backend(&self, drain: &Drain) -> bool {
        let has =
            |port: &Port| port.rows.rows_at(drain.address()).any(|row| drain.matches_backend(row.backend()));
        self.ports.iter().any(has)
    }
}
