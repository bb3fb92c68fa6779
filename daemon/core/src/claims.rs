//! The owners of frontends: keeps all claims, and the best one wins.
//!
//! Invariant: the winner depends on the claims alone, never on their order of arrival. Precedence: the source; then a
//! cluster IP before an address that a controller wrote into a status, and that before an address that any author can
//! write; then the oldest service; then namespace and name.

pub(crate) mod reservations;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::mem;

use crate::facts::ServiceFacts;
use crate::index::{Index, Seed};
use crate::keys::{FrontendKey, Source};
use crate::op::{FrontendType, FrontendValue, QuotaId, ServiceId};
use crate::resolve::DesiredFrontend;
use crate::{words, work};

/// Ranks two services before their names do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    source: Source,
    created: i64,
}

impl Rank {
    pub(crate) const fn source(self) -> Source {
        self.source
    }

    /// A service without a creation time counts as the youngest.
    pub(crate) fn for_service(service: &ServiceFacts) -> Self {
        let created = service.meta.created.map_or(i64::MAX, |created| created.0);
        Self { source: service.key.source, created }
    }
}

words! {
    /// What decides between two services that claim one address.
    pub enum ClaimRule {
        Source = "source",
        /// Where the address comes from: allocated, written by a controller, or chosen by an author.
        AddressKind = "kind of address",
        Age = "age",
        Name = "name",
    }
}

impl ClaimRule {
    /// The first rule by which the claims of two services differ.
    pub fn between(one: (&ServiceFacts, FrontendType), other: (&ServiceFacts, FrontendType)) -> Self {
        let [(one_rank, one_kind), (other_rank, other_kind)] =
            [one, other].map(|(facts, kind)| (Rank::for_service(facts), AddressOrigin::from_type(kind)));
        if one_rank.source != other_rank.source {
            Self::Source
        } else if one_kind != other_kind {
            Self::AddressKind
        } else if one_rank.created != other_rank.created {
            Self::Age
        } else {
            Self::Name
        }
    }
}

/// An address that a service claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimRequest {
    pub(crate) key: FrontendKey,
    pub(crate) origin: AddressOrigin,
}

/// Where a service's address comes from. The order is the precedence within one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AddressOrigin {
    /// The apiserver allocates cluster IPs and node ports, each once; the administrator wrote a static one.
    Allocated,
    /// A load balancer's address: a controller wrote it into the status.
    FromController,
    /// An external IP, or an address of a ServiceImport: the author of the object chose it.
    FromAuthor,
}

impl AddressOrigin {
    pub(crate) const fn from_type(kind: FrontendType) -> Self {
        match kind {
            FrontendType::LoadBalancer => Self::FromController,
            FrontendType::ExternalIp | FrontendType::ClusterSetIp => Self::FromAuthor,
            FrontendType::ClusterIp | FrontendType::NodePort | FrontendType::Static => Self::Allocated,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    rank: Rank,
    origin: AddressOrigin,
    service: ServiceId,
}

impl Claim {
    const fn rank(&self) -> (Source, AddressOrigin, i64) {
        (self.rank.source, self.origin, self.rank.created)
    }
}

/// The frontend that the maps accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RealizedFrontend {
    pub(crate) value: FrontendValue,
    /// `None`: the start found it in the maps, and no service has taken it over yet.
    pub(crate) owner: Option<ServiceId>,
}

/// One frontend: the services that claim it, and its state in the maps.
#[derive(Debug, Default)]
pub(crate) struct Frontend {
    // The winner; most frontends have only this claim.
    first: Option<Claim>,
    // Best first: the address passes to the next owner without moving all others.
    rest: VecDeque<Claim>,
    pub(crate) realized: Option<RealizedFrontend>,
    /// An op failed, so the maps may differ from `realized`.
    pub(crate) uncertain: bool,
    /// The services with failed ops for this frontend.
    pub(crate) failed_services: Vec<ServiceId>,
}

impl Frontend {
    pub(crate) fn winner(&self) -> Option<ServiceId> {
        self.first.map(|claim| claim.service)
    }

    /// Whether the winner's address is [`AddressOrigin::Allocated`], so that no author can have just written it.
    pub(crate) fn is_allocated(&self) -> bool {
        self.first.is_some_and(|claim| claim.origin == AddressOrigin::Allocated)
    }

    /// The services that claim the frontend in vain, in the order in which they would inherit it.
    pub(crate) fn losers(&self) -> impl Iterator<Item = ServiceId> {
        self.rest.iter().map(|claim| claim.service)
    }

    fn withdraw(&mut self, service: ServiceId) -> Option<ServiceId> {
        if self.winner() == Some(service) {
            self.first = self.rest.pop_front();
            return self.winner();
        }
        self.rest.retain(|claim| claim.service != service);
        None
    }

    fn is_unused(&self) -> bool {
        self.first.is_none() && self.realized.is_none() && !self.uncertain
    }
}

/// Counts the frontends of one kind, or all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrontendCount {
    /// In the maps.
    pub(crate) realized: usize,
    /// Planned in this piece, and not in the maps yet.
    pub(crate) planned: usize,
}

impl FrontendCount {
    /// Counts a frontend that enters or leaves the maps.
    fn record_change(&mut self, before: bool, now: bool) {
        match (before, now) {
            (false, true) => {
                (self.realized, self.planned) = (self.realized + 1, self.planned.saturating_sub(1));
            }
            (true, false) => self.realized = self.realized.saturating_sub(1),
            _ => {}
        }
    }

    /// Frontends in the maps plus planned ones.
    pub(crate) const fn total_planned(self) -> usize {
        self.realized + self.planned
    }
}

/// Every frontend that a service claims or the maps hold.
#[derive(Debug)]
pub(crate) struct Frontends {
    entries: Index<FrontendKey, Frontend>,
    pub(crate) all: FrontendCount,
    /// The frontends at addresses that authors of Services chose.
    pub(crate) external_ips: FrontendCount,
    /// How many frontends the maps hold per namespace, by its number.
    quota_counts: Vec<u32>,
    /// Frontends in the maps that another writer put there.
    pub(crate) strays: BTreeSet<FrontendKey>,
}

/// Orders two services of equal rank by their names.
pub(crate) type NameOrder<'a> = &'a dyn Fn(ServiceId, ServiceId) -> core::cmp::Ordering;

impl Frontends {
    pub(crate) fn new(seed: Seed) -> Self {
        Self {
            entries: Index::new(seed),
            all: FrontendCount::default(),
            external_ips: FrontendCount::default(),
            quota_counts: Vec::new(),
            strays: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, key: &FrontendKey) -> Option<&Frontend> {
        self.entries.get(key)
    }

    /// Whether the maps certainly lack this frontend, so that the time of its write does not matter.
    pub(crate) fn is_new(&self, key: &FrontendKey) -> bool {
        self.get(key).is_none_or(|entry| entry.realized.is_none() && !entry.uncertain)
    }

    pub(crate) fn winner(&self, key: &FrontendKey) -> Option<ServiceId> {
        self.entries.get(key)?.winner()
    }

    /// Whether the maps hold that frontend for the service.
    pub(crate) fn is_realized_for(&self, id: ServiceId, quota: QuotaId, frontend: &DesiredFrontend) -> bool {
        work::count_work(1);
        let realized = frontend.key().and_then(|key| self.get(&key)?.realized);
        realized.is_some_and(|it| match it.owner {
            Some(owner) => owner == id,
            // The start found it: it belongs to this service or to another one of the namespace.
            None => it.value.quota == quota,
        })
    }

    /// Adds a claim. The outcome names the service that owned the frontend or still owns it.
    pub(crate) fn claim(
        &mut self,
        wanted: ClaimRequest,
        service: ServiceId,
        rank: Rank,
        by_name: NameOrder<'_>,
    ) -> ClaimOutcome {
        let ClaimRequest { key, origin } = wanted;
        let entry = self.entries.get_or_insert_with(key, Frontend::default);
        let mine = Claim { rank, origin, service };
        let Some(first) = entry.first else {
            entry.first = Some(mine);
            return ClaimOutcome::Uncontested;
        };
        let better =
            |a: &Claim, b: &Claim| a.rank().cmp(&b.rank()).then_with(|| by_name(a.service, b.service));
        if better(&mine, &first).is_lt() {
            entry.first = Some(mine);
            entry.rest.push_front(first);
            return ClaimOutcome::WonFrom(first.service);
        }
        let position = entry.rest.partition_point(|other| better(other, &mine).is_lt());
        entry.rest.insert(position, mine);
        ClaimOutcome::LostTo(first.service)
    }

    /// Withdraws a claim. Returns the new owner of the frontend, if the owner changed.
    pub(crate) fn withdraw(&mut self, key: FrontendKey, service: ServiceId) -> Option<ServiceId> {
        let mut heir = None;
        self.update(key, |entry| heir = entry.withdraw(service));
        heir
    }

    /// Records what the maps certainly hold for a frontend. Returns the former state, and the services with
    /// failed ops.
    pub(crate) fn confirm_realized(
        &mut self,
        key: FrontendKey,
        now: Option<RealizedFrontend>,
    ) -> (Option<RealizedFrontend>, Vec<ServiceId>) {
        let mut before = (None, Vec::new());
        self.update(key, |entry| {
            before = (mem::replace(&mut entry.realized, now), mem::take(&mut entry.failed_services));
            entry.uncertain = false;
        });
        self.strays.remove(&key);
        let quota = |it: RealizedFrontend| it.value.quota;
        before.0.into_iter().for_each(|it| self.adjust_quota(quota(it), u32::saturating_sub, 1));
        now.into_iter().for_each(|it| self.adjust_quota(quota(it), u32::saturating_add, 1));
        let is_chosen = |it: &RealizedFrontend| it.value.kind.is_author_chosen();
        self.external_ips
            .record_change(before.0.as_ref().is_some_and(is_chosen), now.as_ref().is_some_and(is_chosen));
        self.all.record_change(before.0.is_some(), now.is_some());
        before
    }

    /// How many frontends of a namespace the maps hold.
    pub(crate) fn used_by(&self, quota: QuotaId) -> usize {
        self.quota_counts.get(usize::from(quota.0)).map_or(0, |count| *count as usize)
    }

    fn adjust_quota(&mut self, quota: QuotaId, by: fn(u32, u32) -> u32, much: u32) {
        let at = usize::from(quota.0);
        if self.quota_counts.len() <= at {
            self.quota_counts.resize(at + 1, 0);
        }
        if let Some(count) = self.quota_counts.get_mut(at) {
            *count = by(*count, much);
        }
    }

    /// Notes after a failed op that the maps may or may not hold this frontend.
    pub(crate) fn mark_uncertain(&mut self, key: FrontendKey, by: Option<ServiceId>) {
        self.update(key, |entry| {
            entry.uncertain = true;
            entry.failed_services.extend(by.filter(|id| !entry.failed_services.contains(id)));
        });
    }

    /// Adopts a frontend that the start found in the maps.
    pub(crate) fn adopt(&mut self, key: FrontendKey, value: FrontendValue) {
        self.update(key, |entry| entry.realized = Some(RealizedFrontend { value, owner: None }));
        self.all.record_change(false, true);
        self.external_ips.record_change(false, value.kind.is_author_chosen());
        self.adjust_quota(value.quota, u32::saturating_add, 1);
    }

    /// Changes a frontend's entry, and removes the entry once it is unused.
    pub(crate) fn update(&mut self, key: FrontendKey, change: impl FnOnce(&mut Frontend)) {
        self.entries.update(key, Frontend::default, |entry| {
            change(entry);
            !entry.is_unused()
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    /// No other service claims the frontend.
    Uncontested,
    /// The claiming service owns the frontend; this service owned it before.
    WonFrom(ServiceId),
    /// This service still owns the frontend.
    LostTo(ServiceId),
}

#[cfg(test)]
mod tests;
