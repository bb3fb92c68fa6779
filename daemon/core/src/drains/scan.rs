//! Finds the services that list a backend that was drained or undrained.
//!
//! Invariant: a drain marks exactly the services with such a backend dirty, although the scan of all services runs in
//! pieces: a service that is decided during the scan already uses the new drains. Each order gets one round of the
//! scan, from wherever the scan is when the order arrives, so a stream of orders delays none of them.

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

/// A scan of all services that repeats until every order has had its round.
#[derive(Debug, Default)]
pub(crate) struct DrainScan {
    /// The changed drains of all services.
    changed: BTreeMap<Drain, ScanRound>,
    next: u32,
}

/// The round of the last order for a drain.
#[derive(Debug)]
struct ScanRound {
    change: Arc<DrainChange>,
    /// The service at which the round began.
    from: u32,
    /// The scan has wrapped around to the first service.
    is_late: bool,
}

impl DrainScan {
    pub(crate) fn is_under_way(&self) -> bool {
        !self.changed.is_empty()
    }

    fn begin_round(&mut self, drain: Drain, change: Arc<DrainChange>) {
        let round = ScanRound { change, from: self.next, is_late: false };
        self.changed.insert(drain, round);
    }

    /// Moves to the next of `services` services, and ends each round that is back at its start.
    fn advance_cursor(&mut self, services: usize) {
        self.next = self.next.saturating_add(1);
        if self.next as usize >= services {
            self.next = 0;
            self.changed.values_mut().for_each(|round| round.is_late = true);
        }
        let next = self.next;
        self.changed.retain(|_, round| !round.is_late || next < round.from);
    }

    /// Records the drains that are about to change. A drain of one service marks it by name, without a scan.
    pub(crate) fn record_changes(
        &mut self,
        drains: &Drains,
        by: &DrainOrder,
        tables: &Tables,
        services: &mut Services,
    ) {
        for drain in tables.drains.difference(drains) {
            let is_on = drains.get(&drain).is_some();
            let change = Arc::new(DrainChange { drain: drain.clone(), is_on, by: by.clone() });
            match drain.service() {
                Some(name) => mark_named_service(name, &change, tables, services),
                None => self.begin_round(drain, change),
            }
        }
    }

    /// Continues the scan for `left` units of work.
    pub(crate) fn advance(&mut self, mut left: u64, services: &mut Services) {
        while self.is_under_way() && left > 0 {
            let id = ServiceId(self.next);
            let mut causes = Vec::new();
            if let Some(service) = services.get(id) {
                let lookups = 1 + service.ports.len() * self.changed.len();
                work::count_work(lookups);
                left = left.saturating_sub(lookups as u64);
                let rounds = self.changed.values().map(|round| &round.change);
                causes.extend(rounds.filter(|change| service.has_drained_backend(&change.drain)).cloned());
            }
            causes.into_iter().for_each(|change| services.mark_dirty(id, Cause::Drained(change), true));
            self.advance_cursor(services.len());
        }
    }
}

fn mark_named_service(
    name: &ObjectName,
    change: &Arc<DrainChange>,
    tables: &Tables,
    services: &mut Services,
) {
    for source in Source::ALL {
        let Some(id) = tables.find_id(&ServiceKey { name: name.clone(), source }) else { continue };
        if services.get(id).is_some_and(|service| service.has_drained_backend(&change.drain)) {
            services.mark_dirty(id, Cause::Drained(Arc::clone(change)), true);
        }
    }
}

impl Service {
    /// Whether the drain matches any of the service's backends.
    fn has_drained_backend(&self, drain: &Drain) -> bool {
        let has =
            |port: &Port| port.rows.rows_at(drain.address()).any(|row| drain.matches_backend(row.backend()));
        self.ports.iter().any(has)
    }
}
