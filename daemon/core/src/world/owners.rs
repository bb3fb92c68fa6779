//! Services that do not get an address, neither before nor after it goes from one owner to another: their rows name the
//! owner, and nothing else of them changes.
//!
//! Invariant: such a service is neither dirty nor planned. Its row names the new owner within [`WAIT`], but for the
//! time of a piece, and many changes of hands within that time are told as one; so an address that thousands claim and
//! that changes hands all the time costs what its two owners cost.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::World;
use crate::claims::Frontend;
use crate::keys::{FrontendKey, ServiceKey, Source};
use crate::op::{FrontendType, ServiceId};
use crate::snapshot::{ServiceView, Verdict};
use crate::work;

/// How long a row may name a former owner, where changes of owners were told a moment ago. The first change is told at
/// once.
const WAIT: Duration = Duration::from_secs(1);

/// The changes of owners that are yet to be told.
#[derive(Debug, Default)]
pub(super) struct Misnamed {
    /// Frontends that changed hands since the last look.
    waiting: BTreeSet<FrontendKey>,
    /// Those that are looked at now, and the services that lost one of them.
    looked_at: BTreeSet<FrontendKey>,
    losers: BTreeSet<ServiceId>,
    /// When everything was told last.
    told: Option<Duration>,
}

impl Misnamed {
    fn is_under_way(&self) -> bool {
        !self.looked_at.is_empty() || !self.losers.is_empty()
    }

    fn due(&self) -> Option<Duration> {
        if self.is_under_way() {
            return Some(Duration::ZERO);
        }
        let next = self.told.map_or(Duration::ZERO, |told| told + WAIT);
        (!self.waiting.is_empty()).then_some(next)
    }

    /// Begins a look, if it is time. `false`: there is none.
    fn begin(&mut self, now: Duration) -> bool {
        if !self.is_under_way() && self.due().is_some_and(|due| due <= now) {
            self.looked_at = mem::take(&mut self.waiting);
        }
        self.is_under_way()
    }
}

impl World {
    /// Notes that a frontend has another owner than before.
    pub(super) fn changed_hands(&mut self, key: FrontendKey) {
        if self.frontends.get(&key).is_some_and(|entry| entry.losers().next().is_some()) {
            self.misnamed.waiting.insert(key);
        }
    }

    /// When rows that name a former owner are due to be written anew.
    pub(crate) fn owners_due(&self) -> Option<Duration> {
        self.misnamed.due()
    }

    /// The owner of a frontend that a service asks for: the other service that covers it, else the winner of the
    /// claims.
    pub(super) fn owner_of(
        &self,
        key: &FrontendKey,
        kind: FrontendType,
        of: (Source, ServiceId),
    ) -> Option<ServiceId> {
        let winner = || self.frontends.get(key).and_then(Frontend::winner);
        self.covered_by(key, kind, of).or_else(winner)
    }

    /// Writes rows anew that name a former owner, as many as a piece takes.
    pub(super) fn tell_owners(&mut self, now: Duration) {
        if !self.misnamed.begin(now) {
            return;
        }
        let mut left = self.most_work();
        while left > 0
            && let Some(key) = self.misnamed.looked_at.pop_first()
        {
            let losers: Vec<_> = self.frontends.get(&key).into_iter().flat_map(Frontend::losers).collect();
            work::done(losers.len());
            left = left.saturating_sub(1 + losers.len() as u64);
            self.misnamed.losers.extend(losers);
        }
        while left > 0
            && let Some(id) = self.misnamed.losers.pop_first()
        {
            left = left.saturating_sub(self.tell_owners_to(id));
        }
        if !self.misnamed.is_under_way() {
            self.misnamed.told = Some(now);
        }
    }

    /// Writes the rows of one service anew, and returns the work that it took. A dirty service names the owner in its
    /// next view.
    fn tell_owners_to(&mut self, id: ServiceId) -> u64 {
        let Some(service) = self.services.get(id).filter(|service| !service.is_dirty()) else { return 1 };
        let Some(view) = service.view.as_deref() else { return 1 };
        let work = view.frontends.len();
        work::done(work);
        let changed = self.other_owners(id, view);
        if !changed.is_empty() {
            let mut view = view.clone();
            for (position, owner) in changed {
                if let Some(row) = view.frontends.get_mut(position) {
                    row.owner = Some(owner);
                }
            }
            let view = Some(Arc::new(view));
            if let Some(service) = self.services.get_mut(id) {
                service.view.clone_from(&view);
            }
            self.report.snapshot.services.set(id, view);
        }
        1 + work as u64
    }

    /// The rows that name a former owner, each with the owner now.
    fn other_owners(&self, id: ServiceId, view: &ServiceView) -> Vec<(usize, ServiceKey)> {
        let desired = self.services.get(id).map(|service| service.desired.as_slice()).unwrap_or_default();
        let rows = view.frontends.iter().zip(desired).enumerate();
        let lost = rows.filter(|(_, (row, _))| row.verdict == Verdict::Conflict);
        let changed = lost.filter_map(|(position, (row, it))| {
            let owner = self.owner_of(&it.key()?, it.kind, (view.key.source, id))?;
            let owner = self.tables.get(owner)?.key.clone();
            (row.owner.as_ref() != Some(&owner)).then_some((position, owner))
        });
        changed.collect()
    }
}
