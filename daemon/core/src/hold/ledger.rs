//! The ledger over all services: the lists that are held, what may end each hold, and the lists that were lost lately.
//!
//! Invariant: what it says follows from what was entered, in whatever order a batch was entered. It is as large as the
//! held lists, the losses within the window and the namespaces that claimed something lately, and a deadline is
//! forgotten when it has passed. It decides nothing about a service's lists; it names the services to look at again.

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

/// Claims of one namespace that are heard within [`CLAIMS_WINDOW`]: a claim lists a held address for another
/// target, and makes the service that holds the address dirty. Fewer pods take over addresses of others in that time.
const CLAIMS_MAX: usize = 16;

/// Holders of claimed addresses that are looked at for one namespace within [`CLAIMS_WINDOW`], be it a claim or not: an
/// address has one holder or a few, unless a tenant gave it to many of its own services.
const LOOKUPS_MAX: usize = 64 * CLAIMS_MAX;

/// Seconds after which the claims of all namespaces are counted from zero again.
const CLAIMS_WINDOW: i64 = 10;

/// How many holders were looked at for a namespace, and how many of its claims were heard.
#[derive(Clone, Copy, Debug, Default)]
struct ClaimBudget {
    looks: usize,
    accepted: usize,
}

/// All holds, found by what may end them, and all losses that are recent.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// When holds reach their bounds, so that their services are decided for again.
    due: BTreeSet<(Uptime, ServiceId)>,
    held: Arc<BTreeSet<ServiceId>>,
    addresses: BTreeMap<SocketAddr, BTreeSet<ServiceId>>,
    service_addresses: BTreeMap<ServiceId, Vec<SocketAddr>>,
    losses: Losses,
    /// What was made of the claims of each namespace since `claims_since`.
    claims: BTreeMap<Arc<str>, ClaimBudget>,
    claims_since: Uptime,
    /// Sources that were interrupted since the last decision.
    interrupted_now: BTreeSet<Source>,
    interrupted: BTreeMap<Source, Uptime>,
    silence: SourceSilence,
}

impl Ledger {
    /// Notes that a source was interrupted, resumed or listed whole: a loss that it tells next may come of that.
    pub(crate) fn record_interruption(&mut self, source: Source) {
        self.interrupted_now.insert(source);
    }

    /// Whether a loss may come of an interruption of this source.
    pub(crate) fn is_resync(&self, source: Source, now: Uptime) -> bool {
        self.interrupted.get(&source).is_some_and(|at| now.since(*at) < RESYNC_WINDOW)
    }

    /// Notes that a source cannot tell of endpoints, or can again.
    pub(crate) fn set_silent(&mut self, source: Source, is_silent: bool) {
        self.silence.record_report(source, is_silent);
    }

    /// Whether this source can tell that the endpoints of a held list are back.
    pub(crate) fn source_liveness(&self, source: Source, now: Uptime) -> SourceLiveness {
        self.silence.source_liveness(source, now)
    }

    /// Puts a question to a source, on behalf of a hold that reached its bound at that time.
    pub(crate) fn query_source(&mut self, source: Source, bound: Uptime, now: Uptime) {
        self.silence.query_source(source, bound, now);
    }

    /// Notes that a source has answered the question that was put at that time.
    pub(crate) fn record_answer(&mut self, source: Source, put: Uptime) {
        self.silence.record_answer(source, put);
    }

    /// When each source was asked last whether endpoints are back.
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

    /// The services that hold an address at any port, as many as may be looked at for this namespace, which counts
    /// them; `None`: it is held by none.
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
        let looked_at: Vec<_> = holders.take(LOOKUPS_MAX.saturating_sub(claims.looks)).collect();
        claims.looks += looked_at.len();
        Some(looked_at)
    }

    /// Services that hold an address at any port, each once, as many as are looked at for one answer.
    pub(crate) fn holders(&self, address: IpAddr) -> BTreeSet<ServiceId> {
        let at = |port| SocketAddr::new(address, port);
        let held = self.addresses.range(at(u16::MIN)..=at(u16::MAX));
        held.flat_map(|(_, ids)| ids.iter().copied()).take(LOOKUPS_MAX).collect()
    }

    /// Counts a claim of this namespace; returns whether it is heard.
    pub(crate) fn accept_claim(&mut self, namespace: &Arc<str>) -> bool {
        let claims = self.claims.entry(Arc::clone(namespace)).or_default();
        let hears = claims.accepted < CLAIMS_MAX;
        claims.accepted += usize::from(hears);
        hears
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

    /// Whether no service holds an address.
    pub(crate) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Services of which some list is held.
    pub(crate) fn held_services(&self) -> Arc<BTreeSet<ServiceId>> {
        Arc::clone(&self.held)
    }

    /// Enters the lists and the holds of a remembered service, before anything is decided.
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

    /// Keeps account of what a decision made of a service's lists, before and after, and of its holds.
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
        // Losses are read off the holds, which outlive a restart: so a loss before a restart counts after it.
        let is_lost = |hold: &&Hold| {
            now.since(hold.begun) <= policy.mass_loss_window
                && matches!(hold.bound, Bound::Guarded | Bound::MassLoss)
        };
        self.losses.set_loss(id, namespace, holds.filter(is_lost).map(|hold| hold.begun).max());
    }

    /// Every mass loss of which there is anything new to say.
    pub(crate) fn judge_mass_losses(&mut self, policy: &Policy, now: Uptime) -> Vec<MassLoss> {
        self.losses.judge_losses(policy, now)
    }

    /// Enters when the holds of a service end, and which addresses they hold now.
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
        // Readers share `held_services`, so it is copied only when a service comes or goes.
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
