//! The latest refusals, with a bound that namespaces share.
//!
//! Invariant: where there is no room, the oldest of the namespace that has most goes. So whatever happens at the
//! frontends of one namespace, another one that has less keeps its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_core::op::Share;
use holdfast_datapath::{Cause, Refusal};
use holdfast_judgement::views::refusals::Denied;

/// As many as a person reads through; they take 200 KiB.
pub(super) const KEPT_MAX: usize = 1_000;

/// The namespace that has the frontend; `None`: the service has no such port, and the namespace is not known.
type Owner = Option<Share>;

/// When it came, among all, and what is kept of it.
type Entry = (u64, Arc<Denied>);

/// Those of each namespace, the client that tried last at the end.
#[derive(Debug, Default)]
pub(super) struct Latest {
    owners: BTreeMap<Owner, VecDeque<Entry>>,
    kept: usize,
    next: u64,
}

impl Latest {
    /// A client that tries again stays one entry.
    pub(super) fn keep(&mut self, at: Timestamp, refusal: Refusal) {
        let own = self.owners.entry(owner_of(&refusal)).or_default();
        // From the end: a client in a tight loop is found at once.
        let before = own.iter().rposition(|(_, denied)| denied.is_again(&refusal));
        let before = before.and_then(|place| own.remove(place));
        let is_new = before.is_none();
        let (first, count) = before.map_or((at, 1), |(_, before)| (before.first, before.count + 1));
        own.push_back((self.next, Arc::new(Denied { first, last: at, count, refusal })));
        self.next += 1;
        self.kept += usize::from(is_new);
        if self.kept > KEPT_MAX {
            self.give_way();
        }
    }

    /// All of them; the client that tried last comes last.
    pub(super) fn all(&self) -> Vec<Arc<Denied>> {
        let mut all: Vec<&Entry> = self.owners.values().flatten().collect();
        all.sort_unstable_by_key(|(came, _)| *came);
        all.into_iter().map(|(_, denied)| Arc::clone(denied)).collect()
    }

    /// Of namespaces that have equally many, the one gives way that has the oldest refusal.
    fn give_way(&mut self) {
        let weight =
            |entries: &VecDeque<Entry>| (entries.len(), Reverse(entries.front().map(|(came, _)| *came)));
        let most = self.owners.iter().max_by_key(|(_, entries)| weight(entries));
        let Some(owner) = most.map(|(owner, _)| *owner) else { return };
        let Some(entries) = self.owners.get_mut(&owner) else { return };
        self.kept -= usize::from(entries.pop_front().is_some());
        if entries.is_empty() {
            self.owners.remove(&owner);
        }
    }
}

fn owner_of(refusal: &Refusal) -> Owner {
    (refusal.cause != Cause::NoSuchPort).then_some(refusal.share)
}
