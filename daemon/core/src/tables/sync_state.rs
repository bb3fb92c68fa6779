//! Which sources have synced: delivered their first complete list.
//!
//! Invariant: a source that nothing waits for delays neither a removal nor a start.

use alloc::collections::BTreeSet;

use super::Tables;
use crate::facts::{ObjectKey, Rejection};
use crate::keys::{ServiceKey, Source};

impl Tables {
    /// Whether every source has synced, except those that nothing waits for.
    pub(crate) fn is_synced(&self) -> bool {
        self.sources().all(|(_, synced)| synced)
    }

    /// The same for Services only: ServiceImports come after them.
    pub(crate) fn has_services_synced(&self) -> bool {
        self.sources().all(|(source, synced)| synced || source == Source::ClusterSet)
    }

    /// Whether every source has synced.
    pub(crate) fn is_fully_synced(&self) -> bool {
        self.synced.values().all(|synced| *synced)
    }

    pub(crate) const fn unreadable(&self) -> &BTreeSet<Source> {
        &self.unreadable
    }

    /// Whether this rejection is the first sign that a source cannot be read.
    pub(crate) fn is_newly_unreadable(&self, rejection: &Rejection) -> bool {
        let ObjectKey::File(source, _) = &rejection.object else { return false };
        self.synced.get(source) == Some(&false) && !self.unreadable.contains(source)
    }

    /// Whether an unreadable source has delivered this service nevertheless.
    pub(crate) fn is_confirmed_service(&self, key: &ServiceKey) -> bool {
        let object = || ObjectKey::Service(key.clone());
        self.unreadable.contains(&key.source) && !self.unconfirmed.contains(&object())
    }

    /// Whether nothing waits for this source, which has no complete list.
    pub(crate) fn is_absent(&self, source: Source) -> bool {
        self.absent.contains(&source)
    }

    /// The sources, except those that nothing waits for, each with whether it has synced.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (Source, bool)> {
        let is_here = |(source, _): &(&Source, &bool)| !self.is_absent(**source);
        self.synced.iter().filter(is_here).map(|(source, synced)| (*source, *synced))
    }

    pub(crate) fn synced_count(&self) -> usize {
        self.synced.values().filter(|synced| **synced).count()
    }

    /// Whether some source has synced or is unreadable, so that frontends may be added.
    pub(crate) fn has_any_synced(&self) -> bool {
        self.synced.values().any(|synced| *synced) || !self.unreadable.is_empty()
    }

    /// Whether there is restored state to serve before any source has synced.
    pub(crate) const fn has_restored(&self) -> bool {
        self.restored_at.is_some()
    }

    /// Whether the state is as complete as it can be now: from every readable source, or restored.
    pub(crate) fn is_complete(&self) -> bool {
        let has_told = |(source, synced)| synced || self.unreadable.contains(&source);
        self.has_restored() || self.sources().all(has_told)
    }

    /// Whether an unreadable source is missing and there is no restored state to stand in.
    pub(crate) fn lacks_unreadable_source(&self) -> bool {
        !self.has_restored() && !self.unreadable.is_empty()
    }
}
