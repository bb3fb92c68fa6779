//! How much each service asks for, of what all services together may ask for: frontends, and rows, which are ports
//! times endpoints.
//!
//! Invariant: what is asked for has a bound over all services, whatever the maps hold, because each frontend and each
//! row that is asked for takes memory. The first frontend of each service and the first rows of each port do not count:
//! the numbers of services and of frontends have bounds of their own. A service keeps as many as it asks for, and gets
//! more as long as its namespace leaves others a part. Services that want more wait, namespaces take turns, and each is
//! decided for anew when there is room for it. What a start found in the maps counts for its namespace until everything
//! is decided, so that no service loses room by a restart.

use alloc::collections::BTreeSet;
use core::mem;

use super::charges::Charges;
use super::services::Services;
use super::starved::{Starved, turn};
use crate::change::Cause;
use crate::claims::Frontends;
use crate::facts::Settings;
use crate::index::Seed;
use crate::limits;
use crate::op::{ServiceId, Share};
use crate::resolve::Desired;
use crate::tables::{KnownService, Tables};
use crate::work;

/// What a start found of a namespace is charged under this and the number of the namespace; no service has such an id.
const FOUND: u32 = 1 << 31;

/// What has a bound over all services.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Frontends,
    /// Frontends at external IPs, which count as frontends besides.
    Chosen,
    Rows,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Frontends, Self::Chosen, Self::Rows];
}

/// What is asked for of each kind.
#[derive(Debug)]
pub(crate) struct Demand {
    frontends: Sum,
    chosen: Sum,
    rows: Sum,
    /// The most rows of all services together.
    rows_max: u32,
}

impl Demand {
    /// Nothing is asked for, of maps with so many slots of each family.
    pub(super) fn new(seed: Seed, slots: u32) -> Self {
        let [frontends, chosen, rows] = [(); 3].map(|()| Sum::new(seed));
        Self { frontends, chosen, rows, rows_max: limits::rows_asked_max(slots) }
    }

    const fn sum(&self, kind: Kind) -> &Sum {
        match kind {
            Kind::Frontends => &self.frontends,
            Kind::Chosen => &self.chosen,
            Kind::Rows => &self.rows,
        }
    }

    const fn sum_mut(&mut self, kind: Kind) -> &mut Sum {
        match kind {
            Kind::Frontends => &mut self.frontends,
            Kind::Chosen => &mut self.chosen,
            Kind::Rows => &mut self.rows,
        }
    }

    /// Notes that a start found so many more of that namespace in the maps.
    pub(super) fn found(&mut self, kind: Kind, share: Share, more: u32) {
        let sum = self.sum_mut(kind);
        sum.found.insert(share);
        sum.set(found(share), share, sum.of(found(share)).saturating_add(more));
    }

    /// How much a service may ask for beside what does not count. Rows have no key by which a service would know its
    /// own among those that a start found; frontends have, and stay whatever this says.
    pub(super) fn allowance(
        &self,
        kind: Kind,
        (id, share): (ServiceId, Share),
        settings: &Settings,
    ) -> usize {
        let sum = self.sum(kind);
        let found = match kind {
            Kind::Frontends | Kind::Chosen => 0,
            Kind::Rows => sum.of_found(share),
        };
        let own = sum.of(id.0).saturating_add(found);
        own.saturating_add(self.rest(kind, share, settings)) as usize
    }

    /// How much more a namespace leaves to others.
    fn rest(&self, kind: Kind, share: Share, settings: &Settings) -> u32 {
        let Some(most) = self.most(kind, settings) else { return u32::MAX };
        let charges = &self.sum(kind).charges;
        charges.most_more(share, most.saturating_sub(charges.used()))
    }

    /// How much all services together may ask for.
    fn most(&self, kind: Kind, settings: &Settings) -> Option<u32> {
        match kind {
            Kind::Frontends => {
                let most = limits::frontends_asked_max(settings.frontends_max?);
                Some(u32::try_from(most).unwrap_or(u32::MAX))
            }
            Kind::Chosen => Some(self.most(Kind::Frontends, settings)? / limits::CHOSEN_SHARE),
            Kind::Rows => Some(self.rows_max),
        }
    }

    /// Counts the frontends that a service asks for from now on, but for the first, and of them those at external IPs.
    /// It waits if it wants more.
    pub(super) fn count_frontends(
        &mut self,
        id: ServiceId,
        known: &KnownService,
        desired: &Desired,
        frontends: &Frontends,
    ) {
        let is_starting = !self.frontends.found.is_empty();
        let (mut all, mut chosen) = ((0_usize, 0), (0, 0));
        for frontend in &desired.frontends {
            let in_maps = usize::from(is_starting && frontends.has_written(id, known.share, frontend));
            all = (all.0 + 1, all.1 + in_maps);
            if frontend.kind.is_chosen() {
                chosen = (chosen.0 + 1, chosen.1 + in_maps);
            }
        }
        all.0 = all.0.saturating_sub(1);
        let cut = desired.cut;
        self.frontends.count((id, known), all, cut.frontends > cut.chosen);
        self.chosen.count((id, known), chosen, cut.chosen > 0);
    }

    /// Counts the rows that a service asks for from now on, but for the first ones of each port.
    pub(super) fn count_rows(&mut self, id: ServiceId, known: &KnownService, rows: usize, wants_more: bool) {
        self.rows.count((id, known), (rows, rows), wants_more);
    }

    /// Has services decided for anew that may ask for more now, in turn. There may be room for others after them. Once
    /// everything is decided, nothing counts as found.
    pub(super) fn feed(&mut self, is_decided: bool, tables: &Tables, services: &mut Services) {
        for kind in Kind::ALL {
            if is_decided {
                self.sum_mut(kind).forget_found();
            }
            if self.sum_mut(kind).waiting.take_room() > 0 {
                self.feed_waiting(kind, tables, services);
            }
        }
    }

    fn feed_waiting(&mut self, kind: Kind, tables: &Tables, services: &mut Services) {
        let mut fed = 0;
        for _ in 0..self.sum(kind).waiting.namespaces().max(limits::FED_PER_BATCH) {
            let is_last = fed == limits::FED_PER_BATCH;
            let next = if is_last { None } else { self.sum_mut(kind).waiting.next() };
            let Some(id) = next else { break };
            work::done(1);
            if self.rest(kind, tables.share(id), &tables.settings) > 0 {
                fed += 1;
                services.mark(id, Cause::Retry, true);
            } else if let Some(known) = tables.get(id) {
                self.sum_mut(kind).waiting.put(turn(known, id));
            }
        }
        self.sum_mut(kind).waiting.free(fed);
    }
}

/// What is asked for of one kind, and which services wait to ask for more.
#[derive(Debug)]
struct Sum {
    /// By the services' ids.
    charges: Charges,
    /// The namespaces of which a start found something that no service has asked for yet.
    found: BTreeSet<Share>,
    waiting: Starved,
}

impl Sum {
    fn new(seed: Seed) -> Self {
        Self { charges: Charges::new(seed), found: BTreeSet::new(), waiting: Starved::default() }
    }

    fn of(&self, part: u32) -> u32 {
        self.charges.of(part).map_or(0, |(_, much)| much)
    }

    /// What a start found of a namespace and no service has asked for.
    fn of_found(&self, share: Share) -> u32 {
        if self.found.contains(&share) { self.of(found(share)) } else { 0 }
    }

    fn set(&mut self, part: u32, share: Share, much: u32) {
        match much {
            0 => self.charges.release(part),
            _ => self.charges.charge(part, share, much),
        }
    }

    /// Counts what a service asks for. What it asks for anew counts no longer as found, as far as it is in the maps.
    fn ask(&mut self, id: ServiceId, share: Share, (much, in_maps): (u32, u32)) {
        let before = self.of(id.0);
        // Once everything is decided, nothing counts as found.
        if self.found.contains(&share) {
            let anew = much.saturating_sub(before).min(in_maps);
            let found_left = self.of_found(share).saturating_sub(anew);
            self.set(found(share), share, found_left);
        }
        self.set(id.0, share, much);
        self.waiting.free(before.saturating_sub(much) as usize);
    }

    /// Gives back what a start found and no service has asked for.
    fn forget_found(&mut self) {
        for share in mem::take(&mut self.found) {
            self.waiting.free(self.of(found(share)) as usize);
            self.charges.release(found(share));
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
            self.waiting.put(turn(known, id));
        } else {
            self.waiting.remove(id);
        }
        let [much, in_maps] = [much, in_maps].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
        self.ask(id, known.share, (much, in_maps));
    }
}

const fn found(share: Share) -> u32 {
    FOUND | share.0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::tests::{retried, told};

    #[test]
    fn a_service_that_wants_more_is_decided_for_anew_once_another_asks_for_less() {
        let (tables, mut services) = told(&["a", "b"]);
        let mut demand = Demand::new(Seed(0), 1 << 10);
        let mut count = |demand: &mut Demand, id, rows, wants_more| {
            demand.count_rows(id, tables.get(id).unwrap(), rows, wants_more);
            demand.feed(false, &tables, &mut services);
            retried(&services)
        };
        assert_eq!(count(&mut demand, ServiceId(1), 40, false), []);
        assert_eq!(count(&mut demand, ServiceId(0), 10, true), []);
        assert_eq!(count(&mut demand, ServiceId(1), 30, false), [ServiceId(0)]);
    }
}
