//! How many frontends each service asks for, of those that all services together may ask for.
//!
//! Invariant: what is asked for has a bound over all services, whatever the maps hold, because each frontend that is
//! asked for takes memory. The first one of each service does not count: the number of services has a bound of its own.
//! A service keeps as many as it asks for, and gets more as long as its namespace leaves others a part. Services that
//! want more wait, namespaces take turns, and each is decided for anew when there is room for it. What a start found in
//! the maps counts for its namespace until everything is decided, so that no service loses room by a restart.

use alloc::collections::BTreeSet;
use core::mem;

use super::World;
use super::charges::Charges;
use super::starved::Starved;
use crate::change::Cause;
use crate::limits;
use crate::op::{ServiceId, Share};
use crate::resolve::{Desired, DesiredFrontend};
use crate::work;

/// What a start found of a namespace is charged under this and the number of the namespace; no service has such an id.
const FOUND: u32 = 1 << 31;

/// What is asked for, and which services wait to ask for more.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// By the services' ids.
    charges: Charges,
    /// The namespaces of which a start found frontends that no service has asked for yet.
    found: BTreeSet<Share>,
    waiting: Starved,
}

impl Asked {
    /// Notes that a start found a frontend of that namespace in the maps.
    pub(super) fn found(&mut self, share: Share) {
        self.found.insert(share);
        self.set(found(share), share, self.of(found(share)).saturating_add(1));
    }

    fn of(&self, part: u32) -> u32 {
        self.charges.of(part).map_or(0, |(_, frontends)| frontends)
    }

    fn set(&mut self, part: u32, share: Share, frontends: u32) {
        match frontends {
            0 => self.charges.release(part),
            _ => self.charges.charge(part, share, frontends),
        }
    }

    /// Counts what a service asks for. What it asks for anew counts no longer as found.
    fn ask(&mut self, id: ServiceId, share: Share, frontends: u32) {
        let before = self.of(id.0);
        let found_left = self.of(found(share)).saturating_sub(frontends.saturating_sub(before));
        self.set(found(share), share, found_left);
        self.set(id.0, share, frontends);
        self.waiting.free(before.saturating_sub(frontends) as usize);
    }

    /// Gives back what a start found and no service has asked for.
    fn forget_found(&mut self) {
        for share in mem::take(&mut self.found) {
            self.waiting.free(self.of(found(share)) as usize);
            self.charges.release(found(share));
        }
    }
}

const fn found(share: Share) -> u32 {
    FOUND | share.0 as u32
}

impl World {
    /// How many frontends a service may ask for.
    pub(super) fn may_ask(&self, id: ServiceId) -> usize {
        let own = self.asked.of(id.0).saturating_add(self.asked.of(found(self.tables.share(id))));
        own.saturating_add(self.may_ask_more(id)).saturating_add(1) as usize
    }

    /// How many more its namespace leaves to others.
    fn may_ask_more(&self, id: ServiceId) -> u32 {
        let Some(frontends) = self.tables.settings.frontends_max else { return u32::MAX };
        let most = u32::try_from(limits::frontends_asked_max(frontends)).unwrap_or(u32::MAX);
        let charges = &self.asked.charges;
        charges.most_more(self.tables.share(id), most.saturating_sub(charges.used()))
    }

    /// Whether the maps have that frontend on this service's behalf.
    pub(super) fn has_written(&self, id: ServiceId, frontend: &DesiredFrontend) -> bool {
        work::done(1);
        let realized = frontend.key().and_then(|key| self.frontends.get(&key)?.realized);
        realized.is_some_and(|it| match it.owner {
            Some(owner) => owner == id,
            // A start found it: it is of this service, or of another one of the namespace.
            None => it.value.share == self.tables.share(id),
        })
    }

    /// Counts what a service asks for from now on. It waits if it wants more.
    pub(super) fn account_for_asked(&mut self, id: ServiceId, desired: &Desired) {
        let counted = u32::try_from(desired.frontends.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let waits = if desired.cut.frontends > 0 { self.turn(id) } else { None };
        match waits {
            Some(turn) => self.asked.waiting.put(turn),
            None => self.asked.waiting.remove(id),
        }
        self.asked.ask(id, self.tables.share(id), counted);
    }

    /// Has services decided for anew that may ask for more now, in turn. There may be room for others after them.
    pub(super) fn feed_asked(&mut self) {
        if self.is_synced() && self.is_awaiting_nobody() {
            self.asked.forget_found();
        }
        if !self.asked.waiting.take_freed() {
            return;
        }
        let mut fed = 0;
        for _ in 0..self.asked.waiting.namespaces().max(limits::FED_PER_BATCH) {
            let is_last = fed == limits::FED_PER_BATCH;
            let Some(id) = (!is_last).then(|| self.asked.waiting.next()).flatten() else { break };
            work::done(1);
            if self.may_ask_more(id) > 0 {
                fed += 1;
                self.services.mark(id, Cause::Retry, true);
            } else if let Some(turn) = self.turn(id) {
                self.asked.waiting.put(turn);
            }
        }
        self.asked.waiting.free(fed);
    }
}
