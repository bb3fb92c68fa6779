//! How far the sources have told what they have.
//!
//! Invariant: a source that nothing waits for keeps neither a removal nor a start back.

use alloc::collections::BTreeSet;

use super::Tables;
use crate::facts::{ObjectKey, Rejection};
use crate::keys::{ServiceKey, Source};

impl Tables {
    /// Whether every source has delivered its first whole list, but for those that nothing waits for.
    pub(crate) fn is_synced(&self) -> bool {
        self.sources().all(|(_, synced)| synced)
    }

    /// The same of all Services: ServiceImports come after them.
    pub(crate) fn has_services_synced(&self) -> bool {
        self.sources().all(|(source, synced)| synced || source == Source::ClusterSet)
    }

    /// Whether every source has delivered its first whole list.
    pub(crate) fn is_fully_synced(&self) -> bool {
        self.synced.values().all(|synced| *synced)
    }

    /// The sources that cannot be read.
    pub(crate) const fn unreadable(&self) -> &BTreeSet<Source> {
        &self.unreadable
    }

    /// Whether this is the first that is heard of a source that cannot be read.
    pub(crate) fn is_newly_unreadable(&self, rejection: &Rejection) -> bool {
        let ObjectKey::File(source, _) = &rejection.object else { return false };
        self.synced.get(source) == Some(&false) && !self.unreadable.contains(source)
    }

    /// Whether a source that cannot be read has told of this service all the same.
    pub(crate) fn is_confirmed_service(&self, key: &ServiceKey) -> bool {
        let object = || ObjectKey::Service(key.clone());
        self.unreadable.contains(&key.source) && !self.unconfirmed.contains(&object())
    }

    /// Whether nothing waits for this source, which has told nothing whole.
    pub(crate) fn is_absent(&self, source: Source) -> bool {
        self.absent.contains(&source)
    }

    /// The sources, but for those that nothing waits for, each with whether it has delivered its first whole list.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (Source, bool)> {
        let is_here = |(source, _): &(&Source, &bool)| !self.is_absent(**source);
        self.synced.iter().filter(is_here).map(|(source, synced)| (*source, *synced))
    }

    /// How many sources have delivered.
    pub(crate) fn synced_count(&self) -> usize {
        self.synced.values().filter(|synced| **synced).count()
    }

    /// Whether some source has delivered, or what it can, so that what it asks for may be added.
    pub(crate) fn has_any_synced(&self) -> bool {
        self.synced.values().any(|synced| *synced) || !self.unreadable.is_empty()
    }

    /// Whether there are remembered services to serve although no source has delivered yet.
    pub(crate) const fn has_restored(&self) -> bool {
        self.restored_at.is_some()
    }

    /// Whether what is known is all there is to know now: told by every source that can be read, or remembered.
    pub(crate) fn is_complete(&self) -> bool {
        let has_told = |(source, synced)| synced || self.unreadable.contains(&source);
        self.has_restored() || self.sources().all(has_told)
    }

    /// Whether nothing is known of a source that cannot be read: it has not told, and nothing is remembered.
    pub(crate) fn lacks_unreadable_source(&self) -> bool {
        !self.has_restored() && !self.unreadable.is_empty()
    }
}
