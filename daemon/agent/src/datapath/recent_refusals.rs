//! The latest refusals, in a bounded list that namespaces share.
//!
//! Invariant: when the list is full, the namespace with the most refusals loses its oldest one. So a namespace with
//! few refusals keeps them, whatever happens at the frontends of others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_core::op::QuotaId;
use holdfast_datapath::{Cause, Refusal};
use holdfast_status::views::refusals::DeniedClient;

/// How many refusals are kept: as many as a person reads. They take 200 KiB.
pub(super) const REFUSALS_MAX: usize = 1_000;

/// The namespace of the frontend; `None` if no service has the dialled port.
type Owner = Option<QuotaId>;

/// The sequence number of a refusal, and its record.
type Entry = (u64, Arc<DeniedClient>);

/// The refusals of each namespace; the latest client is last.
#[derive(Debug, Default)]
pub(super) struct RecentRefusals {
    owners: BTreeMap<Owner, VecDeque<Entry>>,
    count: usize,
    next_order: u64,
}

impl RecentRefusals {
    /// Records a refusal. A client that retries keeps one entry, which moves to the end.
    pub(super) fn record(&mut self, at: Timestamp, refusal: Refusal) {
        let own = self.owners.entry(refusal_owner(&refusal)).or_default();
        // Search from the end, where a client in a tight loop is found at once.
        let before = own.iter().rposition(|(_, denied)| denied.is_same_client(&refusal));
        let before = before.and_then(|place| own.remove(place));
        let is_new = before.is_none();
        let (first, count) = before.map_or((at, 1), |(_, before)| (before.first, before.count + 1));
        own.push_back((self.next_order, Arc::new(DeniedClient { first, last: at, count, refusal })));
        self.next_order += 1;
        self.count += usize::from(is_new);
        if self.count > REFUSALS_MAX {
            self.evict_oldest();
        }
    }

    /// All refusals; the latest client is last.
    pub(super) fn all(&self) -> Vec<Arc<DeniedClient>> {
        let mut all: Vec<&Entry> = self.owners.values().flatten().collect();
        all.sort_unstable_by_key(|(came, _)| *came);
        all.into_iter().map(|(_, denied)| Arc::clone(denied)).collect()
    }

    /// Drops the oldest refusal of the namespace that has most; a tie goes to the namespace with the oldest refusal.
    fn evict_oldest(&mut self) {
        let weight =
            |entries: &VecDeque<Entry>| (entries.len(), Reverse(entries.front().map(|(came, _)| *came)));
        let most = self.owners.iter().max_by_key(|(_, entries)| weight(entries));
        let Some(owner) = most.map(|(owner, _)| *owner) else { return };
        let Some(entries) = self.owners.get_mut(&owner) else { return };
        self.count -= usize::from(entries.pop_front().is_some());
        if entries.is_empty() {
            self.owners.remove(&owner);
        }
    }
}

fn refusal_owner(refusal: &Refusal) -> Owner {
    (refusal.cause != Cause::NoSuchPort).then_some(refusal.quota)
}
