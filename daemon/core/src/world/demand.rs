//! How many frontends and rows (ports times endpoints) each service asks for, within a limit over all services.
//!
//! Invariant: demand is bounded whatever the maps hold, because each frontend and row takes memory. The first frontend
//! of a service and the first rows of a port are not counted: services and frontends have limits of their own. A
//! service keeps what it has, and gets more while its namespace leaves a part to others. Services that want more wait,
//! namespaces take turns, and each is decided again when capacity comes free. What a start found in the maps is charged
//! to its namespace until everything is decided, so that no service loses capacity by a restart.

use alloc::collections::BTreeSet;
use core::mem;

use super::charges::Charges;
use super::retry_queue::{RetryQueue, retry_turn};
use super::services::Services;
use crate::change::Cause;
use crate::claims::Frontends;
use crate::facts::Settings;
use crate::index::Seed;
use crate::limits;
use crate::op::{QuotaId, ServiceId};
use crate::resolve::DesiredService;
use crate::tables::{KnownService, Tables};
use crate::work;

/// A namespace's leftovers are charged under its number with this bit; no service has such an id.
const LEFTOVER_BIT: u32 = 1 << 31;

/// What has a limit over all services.
#[derive(Clone, Copy, Debug)]
pub(super) enum DemandKind {
    Frontends,
    /// Frontends at external IPs, which count as frontends too.
    ExternalIps,
    Rows,
}

impl DemandKind {
    const ALL: [Self; 3] = [Self::Frontends, Self::ExternalIps, Self::Rows];
}

#[derive(Debug)]
pub(crate) struct Demand {
    frontends: KindDemand,
    external_ips: KindDemand,
    rows: KindDemand,
    rows_max: u32,
}

impl Demand {
    pub(super) fn new(seed: Seed, slots: u32) -> Self {
        let [frontends, chosen, rows] = [(); 3].map(|()| KindDemand::new(seed));
        Self { frontends, external_ips: chosen, rows, rows_max: limits::row_demand_max(slots) }
    }

    const fn kind_demand(&self, kind: DemandKind) -> &KindDemand {
        match kind {
            DemandKind::Frontends => &self.frontends,
            DemandKind::ExternalIps => &self.external_ips,
            DemandKind::Rows => &self.rows,
        }
    }

    const fn kind_demand_mut(&mut self, kind: DemandKind) -> &mut KindDemand {
        match kind {
            DemandKind::Frontends => &mut self.frontends,
            DemandKind::ExternalIps => &mut self.external_ips,
            DemandKind::Rows => &mut self.rows,
        }
    }

    /// Counts entries of that namespace that a start found in the maps.
    pub(super) fn count_leftover(&mut self, kind: DemandKind, quota: QuotaId, more: u32) {
        let sum = self.kind_demand_mut(kind);
        sum.leftovers.insert(quota);
        sum.set_amount(leftover_key(quota), quota, sum.amount(leftover_key(quota)).saturating_add(more));
    }

    /// How much a service may ask for besides the uncounted. Rows have no key to match them with those that a start
    /// found; frontends do, and stay whatever this returns.
    pub(super) fn allowance(
        &self,
        kind: DemandKind,
        (id, quota): (ServiceId, QuotaId),
        settings: &Settings,
    ) -> usize {
        let sum = self.kind_demand(kind);
        let found = match kind {
            DemandKind::Frontends | DemandKind::ExternalIps => 0,
            DemandKind::Rows => sum.leftover_amount(quota),
        };
        let own = sum.amount(id.0).saturating_add(found);
        own.saturating_add(self.headroom(kind, quota, settings)) as usize
    }

    /// How much more a namespace may ask for.
    fn headroom(&self, kind: DemandKind, quota: QuotaId, settings: &Settings) -> u32 {
        let Some(most) = self.demand_limit(kind, settings) else { return u32::MAX };
        let charges = &self.kind_demand(kind).charges;
        charges.headroom(quota, most.saturating_sub(charges.used()))
    }

    fn demand_limit(&self, kind: DemandKind, settings: &Settings) -> Option<u32> {
        match kind {
            DemandKind::Frontends => {
                let most = limits::frontend_demand_max(settings.frontends_max?);
                Some(u32::try_from(most).unwrap_or(u32::MAX))
            }
            DemandKind::ExternalIps => {
                Some(self.demand_limit(DemandKind::Frontends, settings)? / limits::EXTERNAL_IP_DIVISOR)
            }
            DemandKind::Rows => Some(self.rows_max),
        }
    }

    /// Counts the frontends that a service asks for, without the first, and those at external IPs. The service waits if
    /// it wants more.
    pub(super) fn count_frontends(
        &mut self,
        id: ServiceId,
        known: &KnownService,
        desired: &DesiredService,
        frontends: &Frontends,
    ) {
        let is_starting = !self.frontends.leftovers.is_empty();
        let (mut all, mut chosen) = ((0_usize, 0), (0, 0));
        for frontend in &desired.frontends {
            let in_maps = usize::from(is_starting && frontends.is_realized_for(id, known.quota, frontend));
            all = (all.0 + 1, all.1 + in_maps);
            if frontend.kind.is_author_chosen() {
                chosen = (chosen.0 + 1, chosen.1 + in_maps);
            }
        }
        all.0 = all.0.saturating_sub(1);
        let cut = desired.cut;
        self.frontends.count((id, known), all, cut.frontends > cut.external_ips);
        self.external_ips.count((id, known), chosen, cut.external_ips > 0);
    }

    /// Counts the rows that a service asks for, without the first ones of each port.
    pub(super) fn count_rows(&mut self, id: ServiceId, known: &KnownService, rows: usize, wants_more: bool) {
        self.rows.count((id, known), (rows, rows), wants_more);
    }

    /// Marks waiting services dirty, in turn, while capacity lasts. Once everything is decided, leftovers are released.
    pub(super) fn retry_waiting(&mut self, is_decided: bool, tables: &Tables, services: &mut Services) {
        for kind in DemandKind::ALL {
            if is_decided {
                self.kind_demand_mut(kind).forget_leftovers();
            }
            if self.kind_demand_mut(kind).waiting.take_freed() > 0 {
                self.retry_kind(kind, tables, services);
            }
        }
    }

    fn retry_kind(&mut self, kind: DemandKind, tables: &Tables, services: &mut Services) {
        let mut retried = 0;
        for _ in 0..self.kind_demand(kind).waiting.namespace_count().max(limits::RETRIED_PER_BATCH) {
            let is_last = retried == limits::RETRIED_PER_BATCH;
            let next = if is_last { None } else { self.kind_demand_mut(kind).waiting.next() };
            let Some(id) = next else { break };
            work::count_work(1);
            if self.headroom(kind, tables.quota(id), &tables.settings) > 0 {
                retried += 1;
                services.mark_dirty(id, Cause::Retry, true);
            } else if let Some(known) = tables.get(id) {
                self.kind_demand_mut(kind).waiting.put(retry_turn(known, id));
            }
        }
        self.kind_demand_mut(kind).waiting.record_freed(retried);
    }
}

/// The demand of one kind, and the services that wait to ask for more.
#[derive(Debug)]
struct KindDemand {
    /// By the services' ids.
    charges: Charges,
    /// The namespaces with leftovers that no service has asked for yet.
    leftovers: BTreeSet<QuotaId>,
    waiting: RetryQueue,
}

impl KindDemand {
    fn new(seed: Seed) -> Self {
        Self { charges: Charges::new(seed), leftovers: BTreeSet::new(), waiting: RetryQueue::default() }
    }

    fn amount(&self, part: u32) -> u32 {
        self.charges.find_charge(part).map_or(0, |(_, much)| much)
    }

    /// A namespace's leftovers that no service has asked for.
    fn leftover_amount(&self, quota: QuotaId) -> u32 {
        if self.leftovers.contains(&quota) { self.amount(leftover_key(quota)) } else { 0 }
    }

    fn set_amount(&mut self, part: u32, quota: QuotaId, much: u32) {
        match much {
            0 => self.charges.release(part),
            _ => self.charges.charge(part, quota, much),
        }
    }

    /// Sets a service's demand. What it newly asks for and the maps have is no longer a leftover.
    fn set_demand(&mut self, id: ServiceId, quota: QuotaId, (much, in_maps): (u32, u32)) {
        let before = self.amount(id.0);
        // Once everything is decided, no leftovers are counted.
        if self.leftovers.contains(&quota) {
            let anew = much.saturating_sub(before).min(in_maps);
            let found_left = self.leftover_amount(quota).saturating_sub(anew);
            self.set_amount(leftover_key(quota), quota, found_left);
        }
        self.set_amount(id.0, quota, much);
        self.waiting.record_freed(before.saturating_sub(much) as usize);
    }

    fn forget_leftovers(&mut self) {
        for quota in mem::take(&mut self.leftovers) {
            self.waiting.record_freed(self.amount(leftover_key(quota)) as usize);
            self.charges.release(leftover_key(quota));
        }
    }

    /// Counts how much a service asks for, and how much of that is in the maps.
    fn count(
        &mut self,
        (id, known): (ServiceId, &KnownService),
        (much, in_maps): (usize, usize),
        wants_more: bool,
    ) {
        if wants_more {
            self.waiting.put(retry_turn(known, id));
        } else {
            self.waiting.remove(id);
        }
        let [much, in_maps] = [much, in_maps].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
        self.set_demand(id, known.quota, (much, in_maps));
    }
}

const fn leftover_key(quota: QuotaId) -> u32 {
    LEFTOVER_BIT | quota.0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::tests::{retried, tables_with};

    #[test]
    fn a_waiting_service_is_decided_again_when_another_asks_for_less() {
        let (tables, mut services) = tables_with(&["a", "b"]);
        let mut demand = Demand::new(Seed(0), 1 << 10);
        let mut count = |demand: &mut Demand, id, rows, wants_more| {
            demand.count_rows(id, tables.get(id).unwrap(), rows, wants_more);
            demand.retry_waiting(false, &tables, &mut services);
            retried(&services)
        };
        assert_eq!(count(&mut demand, ServiceId(1), 40, false), []);
        assert_eq!(count(&mut demand, ServiceId(0), 10, true), []);
        assert_eq!(count(&mut demand, ServiceId(1), 30, false), [ServiceId(0)]);
    }
}
