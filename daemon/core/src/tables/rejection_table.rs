//! The objects that are rejected now.
//!
//! Invariant: each object counts once while it is rejected. An unnamed rejection becomes named as soon as one ends.
//! Every namespace gets its share of the names, so one tenant's noise never hides another tenant's only rejection.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::facts::{ObjectKey, Rejection};
use crate::limits;
use crate::snapshot::Rejections;

/// All rejections. The named ones are shared with readers, so they are few.
#[derive(Debug, Default)]
pub(crate) struct RejectionTable {
    shared: Arc<Rejections>,
    unnamed: BTreeMap<ObjectKey, Rejection>,
    /// How many are named, by namespace; files and the like have none.
    named_counts: BTreeMap<Arc<str>, usize>,
}

impl RejectionTable {
    pub(crate) fn publish(&mut self, waiting: usize) -> Arc<Rejections> {
        let more = self.unnamed.len();
        if (self.shared.more, self.shared.waiting) != (more, waiting) {
            let shared = Arc::make_mut(&mut self.shared);
            (shared.more, shared.waiting) = (more, waiting);
        }
        Arc::clone(&self.shared)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.named.is_empty() && self.unnamed.is_empty()
    }

    pub(crate) fn get(&self, object: &ObjectKey) -> Option<&Rejection> {
        self.shared.named.get(object).or_else(|| self.unnamed.get(object))
    }

    pub(crate) fn put(&mut self, rejection: Rejection) {
        Arc::make_mut(&mut self.shared).total += 1;
        let object = &rejection.object;
        let is_known = self.shared.named.contains_key(object);
        if is_known || self.shared.named.len() < limits::REJECTIONS_MAX || self.displace(object) {
            self.unnamed.remove(object);
            return self.add_named(rejection);
        }
        Arc::make_mut(&mut self.shared).dropped += 1;
        if self.unnamed.len() < limits::REJECTED_MAX || self.unnamed.contains_key(object) {
            self.unnamed.insert(object.clone(), rejection);
        }
    }

    pub(crate) fn end(&mut self, object: &ObjectKey) {
        if self.unnamed.remove(object).is_some() || !self.shared.named.contains_key(object) {
            return;
        }
        self.remove_named(object);
        if let Some((_, next)) = self.unnamed.pop_first() {
            self.add_named(next);
        }
    }

    fn add_named(&mut self, rejection: Rejection) {
        let object = rejection.object.clone();
        if Arc::make_mut(&mut self.shared).named.insert(object.clone(), rejection).is_none() {
            *self.named_counts.entry(namespace_label(&object).into()).or_default() += 1;
        }
    }

    fn remove_named(&mut self, object: &ObjectKey) -> Option<Rejection> {
        let taken = Arc::make_mut(&mut self.shared).named.remove(object)?;
        if let Some(count) = self.named_counts.get_mut(namespace_label(object)) {
            *count -= 1;
            if *count == 0 {
                self.named_counts.remove(namespace_label(object));
            }
        }
        Some(taken)
    }

    /// Takes a named position from the namespace with the most, if this object's namespace has fewer.
    fn displace(&mut self, object: &ObjectKey) -> bool {
        let own = self.named_counts.get(namespace_label(object)).copied().unwrap_or_default();
        let Some((most, _)) =
            self.named_counts.iter().max_by_key(|(_, count)| **count).filter(|it| *it.1 > own + 1)
        else {
            return false;
        };
        let last = self.shared.named.keys().rev().find(|it| *namespace_label(it) == **most).cloned();
        let Some(displaced) = last.and_then(|last| self.remove_named(&last)) else { return false };
        if self.unnamed.len() < limits::REJECTED_MAX {
            self.unnamed.insert(displaced.object.clone(), displaced);
        }
        true
    }
}

fn namespace_label(object: &ObjectKey) -> &str {
    object.name().map_or("", |name| name.namespace())
}

#[cfg(test)]
mod tests;
