//! The ledger over all services: which lists are held and what may end each hold, and who lost a list lately.
//!
//! Invariant: what it says follows from what was entered, in whatever order a batch was entered. It is as large as the
//! held lists and the losses within the window, and a deadline is forgotten when it has passed. It decides nothing
//! about a service's lists; it names the services to look at again.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::held::Hold;
use super::judge::{Bound, Policy, RESYNC_WINDOW};
use crate::keys::Source;
use crate::list::Row;
use crate::op::ServiceId;
use crate::time::Uptime;

/// All holds, found by what may end them, and all losses that are recent.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// When a service must be decided for again.
    due: BTreeSet<(Uptime, ServiceId)>,
    held: Arc<BTreeSet<ServiceId>>,
    addresses: BTreeMap<SocketAddr, BTreeSet<ServiceId>>,
    addresses_of: BTreeMap<ServiceId, Vec<SocketAddr>>,
    losses: Losses,
    /// Services with a list.
    populated: usize,
    /// Sources that were interrupted since the last decision.
    interrupted_now: BTreeSet<Source>,
    interrupted: BTreeMap<Source, Uptime>,
}

/// So many services lost their lists that all of them are held for that.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MassLoss {
    /// How many lost theirs.
    pub(crate) lost: usize,
    /// Of how many with a list.
    pub(crate) populated: usize,
    /// Who they are.
    pub(crate) services: Vec<ServiceId>,
}

/// Services that lost their lists within the window of a mass loss, and have not got them back.
#[derive(Debug, Default)]
struct Losses {
    order: BTreeSet<(Uptime, ServiceId)>,
    services: BTreeMap<ServiceId, Uptime>,
    /// All of them are part of a mass loss, but for those that came since.
    is_mass: bool,
    came: bool,
}

impl Losses {
    /// When a service lost its list last, if it is held for that.
    fn put(&mut self, id: ServiceId, lost: Option<Uptime>) {
        let before = match lost {
            Some(at) => self.services.insert(id, at),
            None => self.services.remove(&id),
        };
        self.order.extend(lost.map(|at| (at, id)));
        if let Some(before) = before.filter(|before| Some(*before) != lost) {
            self.order.remove(&(before, id));
        }
        self.came |= lost.is_some();
    }

    /// Forgets those before the window.
    fn pass(&mut self, now: Uptime, window: i64) {
        while let Some((at, id)) = self.order.first().copied().filter(|(at, _)| now.since(*at) > window) {
            self.order.remove(&(at, id));
            self.services.remove(&id);
        }
    }
}

impl Ledger {
    /// A source may miss something from now on.
    pub(crate) fn interrupt(&mut self, source: Source) {
        self.interrupted_now.insert(source);
    }

    /// Whether a loss may come of an interruption of this source.
    pub(crate) fn is_resync(&self, source: Source, now: Uptime) -> bool {
        self.interrupted.get(&source).is_some_and(|at| now.since(*at) < RESYNC_WINDOW)
    }

    /// Dates the interruptions since the last decision.
    pub(crate) fn begin(&mut self, now: Uptime) {
        for source in core::mem::take(&mut self.interrupted_now) {
            self.interrupted.insert(source, now);
        }
    }

    /// The next service of which a hold has reached its bound.
    pub(crate) fn take_due(&mut self, now: Uptime) -> Option<ServiceId> {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, id));
            if self.held.contains(&id) {
                return Some(id);
            }
        }
        None
    }

    /// Whether no address is held by anybody.
    pub(crate) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Who holds an address.
    pub(crate) fn holders(&self, address: SocketAddr) -> Option<&BTreeSet<ServiceId>> {
        self.addresses.get(&address)
    }

    /// Services of which some list is held.
    pub(crate) fn held(&self) -> Arc<BTreeSet<ServiceId>> {
        Arc::clone(&self.held)
    }

    /// A remembered service has a list, or holds one, before anything is decided.
    pub(crate) fn remember<'a>(
        &mut self,
        id: ServiceId,
        holds: impl Iterator<Item = &'a Hold> + Clone,
        has_list: bool,
        policy: &Policy,
    ) {
        self.populated += usize::from(has_list);
        self.index(id, holds, policy);
    }

    /// Keeps account of what a decision made of a service's lists, before and after, and of its holds.
    pub(crate) fn account<'a>(
        &mut self,
        id: ServiceId,
        holds: impl Iterator<Item = &'a Hold> + Clone,
        (had_list, has_list): (bool, bool),
        (policy, now): (&Policy, Uptime),
    ) {
        self.populated += usize::from(has_list);
        self.populated = self.populated.saturating_sub(usize::from(had_list));
        if holds.clone().next().is_some() || self.held.contains(&id) {
            self.index(id, holds.clone(), policy);
        }
        // A restart finds the losses before it in what is held.
        let is_lost = |hold: &&Hold| {
            now.since(hold.begun) <= policy.mass_loss_window
                && matches!(hold.bound, Bound::Guarded | Bound::MassLoss)
        };
        self.losses.put(id, holds.filter(is_lost).map(|hold| hold.begun).max());
    }

    /// Whether it is a mass loss that services lost their lists within the window, if there is anything new to
    /// say of it.
    pub(crate) fn judge_mass(&mut self, policy: &Policy, now: Uptime) -> Option<MassLoss> {
        self.losses.pass(now, policy.mass_loss_window);
        let (lost, populated) = (self.losses.services.len(), self.populated);
        let is_mass = policy.is_mass_loss(lost, populated);
        let was_mass = core::mem::replace(&mut self.losses.is_mass, is_mass);
        let came = core::mem::take(&mut self.losses.came);
        let is_news = is_mass && (!was_mass || came);
        is_news.then(|| MassLoss {
            lost,
            populated,
            services: self.losses.services.keys().copied().collect(),
        })
    }

    /// Finds a service from now on by what may end its holds.
    pub(crate) fn index<'a>(
        &mut self,
        id: ServiceId,
        holds: impl Iterator<Item = &'a Hold> + Clone,
        policy: &Policy,
    ) {
        let is_held = holds.clone().next().is_some();
        for address in self.addresses_of.remove(&id).unwrap_or_default() {
            if let Entry::Occupied(mut entry) = self.addresses.entry(address) {
                entry.get_mut().remove(&id);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
        let mut addresses = Vec::new();
        for hold in holds {
            self.due.extend(hold.until(policy).map(|until| (until, id)));
            addresses.extend(hold.rows().map(Row::backend));
        }
        // Readers share it, so it is copied only where it changes.
        match (is_held, self.held.contains(&id)) {
            (true, false) => drop(Arc::make_mut(&mut self.held).insert(id)),
            (false, true) => drop(Arc::make_mut(&mut self.held).remove(&id)),
            _ => {}
        }
        if !is_held {
            return;
        }
        for address in &addresses {
            self.addresses.entry(*address).or_default().insert(id);
        }
        self.addresses_of.insert(id, addresses);
    }
}

#[cfg(test)]
mod tests;
