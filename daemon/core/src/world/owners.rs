//! The owners of frontends: which service claims and reserves what, and which services learn of a new owner.
//!
//! Invariant: a service that wins an address neither before nor after a handover is neither dirty nor planned; only the
//! owner in its row changes. The row names the new owner within [`OWNER_UPDATE_INTERVAL`] plus a piece, and handovers
//! in that time are combined. So an address that thousands claim and that changes owners all the time costs only what
//! its two owners cost.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::decide::{find_listener, is_bypassed, is_node_reserved};
use super::services::Services;
use crate::change::Cause;
use crate::claims::reservations::{Reservations, ServiceReservations};
use crate::claims::{AddressOrigin, ClaimOutcome, ClaimRequest, Frontend, Frontends, Rank};
use crate::index::Seed;
use crate::keys::{FrontendKey, ServiceKey, Source};
use crate::op::{FrontendType, ServiceId};
use crate::resolve::DesiredFrontend;
use crate::snapshot::{ServiceView, ServiceViews, Verdict};
use crate::tables::Tables;
use crate::work;

/// How long a row may name a former owner after a recent update. The first handover updates at once.
const OWNER_UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// The handovers that rows do not show yet.
#[derive(Debug, Default)]
pub(super) struct OwnerUpdates {
    /// Frontends with a new owner since the last update.
    waiting: BTreeSet<FrontendKey>,
    /// The frontends of the current update, and the services that lost one of them.
    looked_at: BTreeSet<FrontendKey>,
    losers: BTreeSet<ServiceId>,
    last_update: Option<Duration>,
}

impl OwnerUpdates {
    fn is_under_way(&self) -> bool {
        !self.looked_at.is_empty() || !self.losers.is_empty()
    }

    fn due(&self) -> Option<Duration> {
        if self.is_under_way() {
            return Some(Duration::ZERO);
        }
        let next = self.last_update.map_or(Duration::ZERO, |last| last + OWNER_UPDATE_INTERVAL);
        (!self.waiting.is_empty()).then_some(next)
    }

    /// Starts an update if one is due. `false`: none is in progress.
    fn begin_update(&mut self, now: Duration) -> bool {
        if !self.is_under_way() && self.due().is_some_and(|due| due <= now) {
            self.looked_at = mem::take(&mut self.waiting);
        }
        self.is_under_way()
    }
}

#[derive(Debug)]
pub(crate) struct Owners {
    /// The claims on each frontend, and its state in the maps.
    pub(crate) frontends: Frontends,
    pub(super) reservations: Reservations,
    /// Frontends with losers that still name a former owner.
    owner_updates: OwnerUpdates,
}

impl Owners {
    pub(super) fn new(seed: Seed) -> Self {
        Self {
            frontends: Frontends::new(seed),
            reservations: Reservations::new(seed),
            owner_updates: OwnerUpdates::default(),
        }
    }

    /// When rows that name a former owner are due for an update.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.owner_updates.due()
    }

    pub(super) fn reserving_service(
        &self,
        key: &FrontendKey,
        kind: FrontendType,
        asker: (Source, ServiceId),
        tables: &Tables,
    ) -> Option<ServiceId> {
        let name = |id| tables.get(id).map(|known| &known.key);
        self.reservations.reserving_service(key, kind, &tables.node, asker, &|a, b| name(a).cmp(&name(b)))
    }

    /// The owner of a frontend that a service asks for: the other service that reserves it, else the winner of the
    /// claims.
    pub(super) fn owner(
        &self,
        key: &FrontendKey,
        kind: FrontendType,
        asker: (Source, ServiceId),
        tables: &Tables,
    ) -> Option<ServiceId> {
        let winner = || self.frontends.get(key).and_then(Frontend::winner);
        self.reserving_service(key, kind, asker, tables).or_else(winner)
    }

    /// Replaces the service's reservations. Other services that ask for a frontend in a changed reservation are decided
    /// again.
    pub(super) fn replace_reservations(
        &mut self,
        id: ServiceId,
        rank: Option<Rank>,
        now: ServiceReservations,
        services: &mut Services,
        tables: &Tables,
    ) {
        let (Some(service), Some(known)) = (services.get_mut(id), tables.get(id)) else { return };
        if service.reservations == now {
            return;
        }
        let before = mem::replace(&mut service.reservations, now);
        let source = rank.map_or(known.key.source, Rank::source);
        let affected = self.reservations.replace((source, id), &before, &service.reservations);
        work::count_work(affected.len());
        for (other, key) in affected {
            services.mark_dirty(other, Cause::ClaimLost(key, known.key.clone()), true);
        }
    }

    /// A service's claims, sorted: all that can be programmed, except the apiserver's and the node's own addresses and
    /// other services' reservations.
    pub(super) fn claimable_frontends(
        &self,
        desired: &[DesiredFrontend],
        id: ServiceId,
        rank: Option<Rank>,
        tables: &Tables,
    ) -> Vec<ClaimRequest> {
        let Some(source) = rank.map(Rank::source) else { return Vec::new() };
        let host = tables.host_facts();
        let is_free = |key: &FrontendKey, kind| {
            !is_bypassed(key, kind, &tables.settings, &tables.node)
                && !is_node_reserved(key, kind, source, host)
                && find_listener(key, kind, source, host).is_none()
                && self.reserving_service(key, kind, (source, id), tables).is_none()
        };
        let all = desired.iter().filter_map(|it| Some((it.kind, it.key()?)));
        let free = all.filter(|(kind, key)| is_free(key, *kind));
        // Nearly always all of them, so shrinking rarely moves anything.
        let mut wanted = Vec::with_capacity(desired.len());
        wanted.extend(free.map(|(kind, key)| ClaimRequest { key, origin: AddressOrigin::from_type(kind) }));
        wanted.sort_unstable();
        wanted.shrink_to_fit();
        wanted
    }

    /// Replaces the claims of a service. A new rank enters all of them again.
    pub(super) fn replace_claims(
        &mut self,
        id: ServiceId,
        wanted: Vec<ClaimRequest>,
        rank: Option<Rank>,
        services: &mut Services,
        tables: &Tables,
    ) {
        let Some(service) = services.get_mut(id) else { return services.count_impossible() };
        let same_rank = service.rank == rank;
        if same_rank && service.claims == wanted {
            return;
        }
        service.rank = rank;
        let claimed = mem::take(&mut service.claims);
        for it in sorted_difference(&claimed, if same_rank { &wanted } else { &[] }) {
            self.withdraw_claim(it.key, id, services, tables);
        }
        if let Some(rank) = rank {
            for it in sorted_difference(&wanted, if same_rank { &claimed } else { &[] }) {
                self.enter_claim(*it, id, rank, services, tables);
            }
        }
        if let Some(service) = services.get_mut(id) {
            service.claims = wanted;
        }
    }

    /// Withdraws a claim and marks its heir. Without an heir, another service that has the frontend in the maps removes
    /// it.
    fn withdraw_claim(&mut self, key: FrontendKey, id: ServiceId, services: &mut Services, tables: &Tables) {
        if let Some(heir) = self.frontends.withdraw(key, id) {
            if let Some(from) = tables.get(id) {
                services.mark_dirty(heir, Cause::ClaimWon(key, from.key.clone()), false);
            }
            return self.note_handover(key);
        }
        let Some(entry) = self.frontends.get(&key).filter(|entry| entry.winner().is_none()) else { return };
        let owner = entry.realized.and_then(|realized| realized.owner);
        if let Some(owner) = owner.filter(|owner| *owner != id) {
            services.replan(owner);
        }
    }

    /// Enters a claim, and marks the service that owned the frontend until now. All others lost it before, and only
    /// name another owner.
    fn enter_claim(
        &mut self,
        it: ClaimRequest,
        id: ServiceId,
        rank: Rank,
        services: &mut Services,
        tables: &Tables,
    ) {
        let name = |id| tables.get(id).map(|known| &known.key);
        let ClaimOutcome::WonFrom(former) = self.frontends.claim(it, id, rank, &|a, b| name(a).cmp(&name(b)))
        else {
            return;
        };
        let Some(to) = name(id) else { return services.count_impossible() };
        services.mark_dirty(former, Cause::ClaimLost(it.key, to.clone()), false);
        self.note_handover(it.key);
    }

    fn note_handover(&mut self, key: FrontendKey) {
        if self.frontends.get(&key).is_some_and(|entry| entry.losers().next().is_some()) {
            self.owner_updates.waiting.insert(key);
        }
    }

    /// Updates rows that name a former owner, for a piece's work.
    pub(super) fn update_owner_names(
        &mut self,
        (now, most): (Duration, u64),
        services: &mut Services,
        tables: &Tables,
        views: &mut ServiceViews,
    ) {
        if !self.owner_updates.begin_update(now) {
            return;
        }
        let mut left = most;
        while left > 0
            && let Some(key) = self.owner_updates.looked_at.pop_first()
        {
            let losers: Vec<_> = self.frontends.get(&key).into_iter().flat_map(Frontend::losers).collect();
            work::count_work(losers.len());
            left = left.saturating_sub(1 + losers.len() as u64);
            self.owner_updates.losers.extend(losers);
        }
        while left > 0
            && let Some(id) = self.owner_updates.losers.pop_first()
        {
            left = left.saturating_sub(self.update_service_owners(id, services, tables, views));
        }
        if !self.owner_updates.is_under_way() {
            self.owner_updates.last_update = Some(now);
        }
    }

    /// Updates the rows of one service, and returns the work done. A dirty service names the owner in its next view.
    fn update_service_owners(
        &self,
        id: ServiceId,
        services: &mut Services,
        tables: &Tables,
        views: &mut ServiceViews,
    ) -> u64 {
        let Some(service) = services.get_mut(id).filter(|service| !service.is_dirty()) else { return 1 };
        let Some(view) = service.view.as_deref() else { return 1 };
        let work = view.frontends.len();
        work::count_work(work);
        let changed = self.changed_owners(id, view, &service.desired, tables);
        if !changed.is_empty() {
            let mut view = view.clone();
            for (position, owner) in changed {
                if let Some(row) = view.frontends.get_mut(position) {
                    row.owner = Some(owner);
                }
            }
            let view = Some(Arc::new(view));
            service.view.clone_from(&view);
            views.set(id, view);
        }
        1 + work as u64
    }

    /// The rows that name a former owner, each with its current owner.
    fn changed_owners(
        &self,
        id: ServiceId,
        view: &ServiceView,
        desired: &[DesiredFrontend],
        tables: &Tables,
    ) -> Vec<(usize, ServiceKey)> {
        let rows = view.frontends.iter().zip(desired).enumerate();
        let lost = rows.filter(|(_, (row, _))| row.verdict == Verdict::Conflict);
        let changed = lost.filter_map(|(position, (row, it))| {
            let owner = self.owner(&it.key()?, it.kind, (view.key.source, id), tables)?;
            let owner = tables.get(owner)?.key.clone();
            (row.owner.as_ref() != Some(&owner)).then_some((position, owner))
        });
        changed.collect()
    }
}

/// The requests that `others` lacks; both are sorted.
fn sorted_difference<'a>(
    of: &'a [ClaimRequest],
    others: &'a [ClaimRequest],
) -> impl Iterator<Item = &'a ClaimRequest> {
    let mut others = others.iter().peekable();
    of.iter().filter(move |it| {
        while others.next_if(|other| other < it).is_some() {}
        others.peek() != Some(it)
    })
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::keys::Transport;
    use crate::world::tests::{ip, tables_with};

    #[test]
    fn a_withdrawn_claim_goes_to_its_heir() {
        let (tables, mut services) = tables_with(&["a", "b"]);
        let [a, b] = [ServiceId(0), ServiceId(1)];
        let rank = tables.get(a).unwrap().facts.as_deref().map(Rank::for_service);
        let port = 80.try_into().unwrap();
        let key = FrontendKey { address: ip("1.2.3.4"), port, transport: Transport::Tcp };
        let wanted = || vec![ClaimRequest { key, origin: AddressOrigin::FromAuthor }];
        let mut owners = Owners::new(Seed(0));
        for id in [b, a] {
            owners.replace_claims(id, wanted(), rank, &mut services, &tables);
            assert_eq!(owners.frontends.winner(&key), Some(id), "the first of two names has it");
        }
        owners.replace_claims(a, vec![], rank, &mut services, &tables);
        assert_eq!(owners.frontends.winner(&key), Some(b));
        let causes = &services.get(b).unwrap().causes;
        assert!(matches!(causes.as_slice(), [.., Cause::ClaimLost(..), Cause::ClaimWon(..)]), "{causes:?}");
        assert_eq!(owners.due(), Some(Duration::ZERO), "the row of the former loser named its owner");
    }
}
