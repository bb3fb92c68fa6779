//! The ledger over all services: the held lists, what may end each hold, and the recent losses.
//!
//! Invariant: its answers depend on the entries, not on their order within a batch. Its size is bounded by the held
//! lists, the losses within the window and the namespaces with recent claims; it drops a deadline that has passed. It
//! decides nothing about a service's lists, it names the services to judge again.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::held_list::Hold;
use super::judge::{Bound, Policy, RESYNC_WINDOW, SourceLiveness};
use super::losses::{ListPresence, Losses, MassLoss};
use super::silence::SourceSilence;
use crate::keys::Source;
use crate::list::Row;
use crate::op::ServiceId;
use crate::time::Uptime;

/// How many claims of one namespace count within [`CLAIMS_WINDOW`]. A claim lists a held address for another target,
/// and makes the holding service dirty. Fewer pods take over addresses of others in that time.
const CLAIMS_MAX: usize = 16;

/// How many holders of addresses are looked up for one namespace within [`CLAIMS_WINDOW`], claim or not. An address has
/// one holder or a few, unless a tenant gave it to many of its own services.
const LOOKUPS_MAX: usize = 64 * CLAIMS_MAX;

/// Seconds after which the claims of all namespaces count from zero again.
const CLAIMS_WINDOW: i64 = 10;

/// How many holders were looked up for a namespace, and how many of its claims were accepted.
#[derive(Clone, Copy, Debug, Default)]
struct ClaimBudget {
    lookups: usize,
    accepted: usize,
}

/// All holds, indexed by what may end them, and all recent losses.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// When holds reach their bounds and their services must be decided again.
    due: BTreeSet<(Uptime, ServiceId)>,
    held: Arc<BTreeSet<ServiceId>>,
    addresses: BTreeMap<SocketAddr, BTreeSet<ServiceId>>,
    service_addresses: BTreeMap<ServiceId, Vec<SocketAddr>>,
    losses: Losses,
    /// The budget that each namespace has used since `claims_since`.
    claims: BTreeMap<Arc<str>, ClaimBudget>,
    claims_since: Uptime,
    interrupted_now: BTreeSet<Source>,
    interrupted: BTreeMap<Source, Uptime>,
    silence: SourceSilence,
}

impl Ledger {
    /// Records that a source was interrupted, resumed or relisted: its next loss may be a consequence.
    pub(crate) fn record_interruption(&mut self, source: Source) {
        self.interrupted_now.insert(source);
    }

    /// Whether a loss may be a consequence of this source's interruption.
    pub(crate) fn is_resync(&self, source: Source, now: Uptime) -> bool {
        self.interrupted.get(&source).is_some_and(|at| now.since(*at) < RESYNC_WINDOW)
    }

    /// Records that a source stopped or resumed reporting endpoints.
    pub(crate) fn set_silent(&mut self, source: Source, is_silent: bool) {
        self.silence.record_report(source, is_silent);
    }

    /// Whether this source can report that the endpoints of a held list are back.
    pub(crate) fn source_liveness(&self, source: Source, now: Uptime) -> SourceLiveness {
        self.silence.source_liveness(source, now)
    }

    /// Queries a source for a hold that reached its bound at that time.
    pub(crate) fn query_source(&mut self, source: Source, bound: Uptime, now: Uptime) {
        self.silence.query_source(source, bound, now);
    }

    /// Records that a source has answered the query of that time.
    pub(crate) fn record_answer(&mut self, source: Source, put: Uptime) {
        self.silence.record_answer(source, put);
    }

    /// When each source was last queried for endpoints.
    pub(crate) const fn queries(&self) -> &BTreeMap<Source, Uptime> {
        self.silence.queries()
    }

    /// Dates the interruptions since the last decision.
    pub(crate) fn begin_decision(&mut self, now: Uptime) {
        self.silence.apply_reports(now);
        for source in core::mem::take(&mut self.interrupted_now) {
            self.interrupted.insert(source, now);
        }
        if now.since(self.claims_since) >= CLAIMS_WINDOW {
            self.claims.clear();
            self.claims_since = now;
        }
    }

    /// The services that hold an address at any port, as many as this namespace may still look up, which counts against
    /// its budget; `None`: no service holds it.
    pub(crate) fn look_up_holders(
        &mut self,
        address: IpAddr,
        namespace: &Arc<str>,
    ) -> Option<Vec<(SocketAddr, ServiceId)>> {
        let at = |port| SocketAddr::new(address, port);
        let held = self.addresses.range(at(u16::MIN)..=at(u16::MAX));
        let mut holders = held.flat_map(|(at, ids)| ids.iter().map(move |id| (*at, *id))).peekable();
        holders.peek()?;
        let claims = self.claims.entry(Arc::clone(namespace)).or_default();
        let looked_at: Vec<_> = holders.take(LOOKUPS_MAX.saturating_sub(claims.lookups)).collect();
        claims.lookups += looked_at.len();
        Some(looked_at)
    }

    /// The services that hold an address at any port, each once, limited for one answer.
    pub(crate) fn holders(&self, address: IpAddr) -> BTreeSet<ServiceId> {
        let at = |port| SocketAddr::new(address, port);
        let held = self.addresses.range(at(u16::MIN)..=at(u16::MAX));
        held.flat_map(|(_, ids)| ids.iter().copied()).take(LOOKUPS_MAX).collect()
    }

    /// Counts a claim of this namespace; returns whether it is within the budget.
    pub(crate) fn accept_claim(&mut self, namespace: &Arc<str>) -> bool {
        let claims = self.claims.entry(Arc::clone(namespace)).or_default();
        let hears = claims.accepted < CLAIMS_MAX;
        claims.accepted += usize::from(hears);
        hears
    }

    /// Takes the next service with a hold at its bound.
    pub(crate) fn take_due(&mut self, now: Uptime) -> Option<ServiceId> {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, id));
            if self.held.contains(&id) {
                return Some(id);
            }
        }
        None
    }

    /// Whether no service holds an address.
    pub(crate) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    pub(crate) fn held_services(&self) -> Arc<BTreeSet<ServiceId>> {
        Arc::clone(&self.held)
    }

    /// Adds the lists and the holds of a restored service, before any decision.
    pub(crate) fn restore_service<'a>(
        &mut self,
        (id, namespace): (ServiceId, &Arc<str>),
        holds: impl Iterator<Item = &'a Hold> + Clone,
        lists: ListPresence,
        policy: &Policy,
    ) {
        self.losses.count_lists(namespace, (ListPresence::default(), lists));
        self.index_holds(id, holds, policy);
    }

    /// Records how a decision changed a service's lists and holds.
    pub(crate) fn account_decision<'a>(
        &mut self,
        (id, namespace): (ServiceId, &Arc<str>),
        holds: impl Iterator<Item = &'a Hold> + Clone,
        lists: (ListPresence, ListPresence),
        (policy, now): (&Policy, Uptime),
    ) {
        self.losses.count_lists(namespace, lists);
        if holds.clone().next().is_some() || self.held.contains(&id) {
            self.index_holds(id, holds.clone(), policy);
        }
        // Losses are derived from holds, which survive a restart, so a loss before a restart still counts.
        let is_lost = |hold: &&Hold| {
            now.since(hold.begun) <= policy.mass_loss_window
                && matches!(hold.bound, Bound::Guarded | Bound::MassLoss)
        };
        self.losses.set_loss(id, namespace, holds.filter(is_lost).map(|hold| hold.begun).max());
    }

    /// Every new or grown mass loss.
    pub(crate) fn judge_mass_losses(&mut self, policy: &Policy, now: Uptime) -> Vec<MassLoss> {
        self.losses.judge_losses(policy, now)
    }

    /// Indexes the deadlines of a service's holds, and the addresses that they hold now.
    pub(crate) fn index_holds<'a>(
        &mut self,
        id: ServiceId,
        holds: impl Iterator<Item = &'a Hold> + Clone,
        policy: &Policy,
    ) {
        let is_held = holds.clone().next().is_some();
        for address in self.service_addresses.remove(&id).unwrap_or_default() {
            if let Entry::Occupied(mut entry) = self.addresses.entry(address) {
                entry.get_mut().remove(&id);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
        let mut addresses = Vec::new();
        for hold in holds {
            self.due.extend(hold.deadline(policy).map(|until| (until, id)));
            addresses.extend(hold.rows().map(Row::backend));
        }
        // Readers share `held_services`, so it is copied only if a service enters or leaves.
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
        self.service_addresses.insert(id, addresses);
    }
}

#[cfg(test)]
mod tests;
