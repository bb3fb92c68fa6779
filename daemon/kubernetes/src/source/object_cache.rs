//! The delivered objects of one kind and their versions, which a new list is compared with.
//!
//! Invariant: a list changes nothing until its commit, and then everything at once; objects leave only by a commit or
//! by their own deletion; a known version is not delivered again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::ObjectName;
use holdfast_core::limits;

use super::object::{Object, SinkMessage};
use super::version::{UntabledObject, UntabledObjects, Version};

/// With at most this many known objects, a list is a loss only if it removes all of them.
const LOSS_MIN: usize = 10;

#[derive(Debug)]
struct CachedObject {
    version: Version,
    /// The last list that contained it.
    list: u64,
}

/// The result of a committed list.
#[derive(Debug, Default)]
pub(super) struct ListCommit {
    pub(super) messages: Vec<SinkMessage>,
    pub(super) removed: usize,
    /// The count of objects before the list.
    pub(super) before: usize,
}

impl ListCommit {
    /// Whether so much vanished at once that an operator should look.
    pub(super) const fn is_loss(&self) -> bool {
        let is_everything = self.removed == self.before && self.before > 0;
        is_everything || (self.before > LOSS_MIN && self.removed * 2 > self.before)
    }
}

/// A list in progress.
#[derive(Debug, Default)]
struct PendingList {
    pending: Vec<(ObjectName, Version, Option<UntabledObject>)>,
    messages: Vec<SinkMessage>,
    unnamed: BTreeSet<ObjectKey>,
    /// How many of `pending` and `messages` came with whole pages.
    complete: (usize, usize),
}

/// The delivered objects.
#[derive(Debug, Default)]
pub(super) struct ObjectCache {
    objects: BTreeMap<ObjectName, CachedObject>,
    untabled_objects: Arc<UntabledObjects>,
    /// Objects that were rejected as a whole.
    bad: usize,
    lists: u64,
    listing: PendingList,
    /// Rejections of objects without a name; only a new list ends them.
    unnamed: BTreeSet<ObjectKey>,
}

impl ObjectCache {
    /// Restores a former process's objects. The untabled objects may be newer than the table: only those that agree
    /// with the table or replace nothing in it are taken. The watch delivers the later changes again.
    pub(super) fn restore(objects: Vec<(ObjectName, Version)>, untabled_objects: UntabledObjects) -> Self {
        let keep = |(name, version)| (name, CachedObject { version, list: 0 });
        let mut cache = Self { objects: objects.into_iter().map(keep).collect(), ..Self::default() };
        for (name, untabled) in untabled_objects {
            let matches_table = cache.version(&name).map(|version| *version == untabled.version);
            let is_taken = untabled.is_bad() || matches_table.unwrap_or_else(|| untabled.is_orphan());
            if is_taken {
                cache.insert_object(name, untabled.version.clone(), Some(untabled));
            }
        }
        cache
    }

    pub(super) fn untabled_objects(&self) -> Arc<UntabledObjects> {
        Arc::clone(&self.untabled_objects)
    }

    /// The rejections of objects with a name.
    pub(super) fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.untabled_objects.values().filter_map(|untabled| untabled.rejection.as_ref())
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// How many objects have an invalid last version.
    pub(super) fn bad_count(&self) -> usize {
        self.bad + self.unnamed.len()
    }

    pub(super) fn version(&self, name: &ObjectName) -> Option<&Version> {
        self.objects.get(name).map(|cached| &cached.version)
    }

    pub(super) fn versions(&self) -> impl Iterator<Item = (&ObjectName, &Version)> {
        self.objects.iter().map(|(name, cached)| (name, &cached.version))
    }

    /// Forgets all versions, so that the next list delivers everything again. The objects stay until then.
    pub(super) fn forget_versions(&mut self) {
        self.objects.values_mut().for_each(|cached| cached.version.resource_version = Arc::default());
    }

    /// Starts a list, and discards one that broke off.
    pub(super) fn begin_list(&mut self) {
        self.lists += 1;
        self.listing = PendingList::default();
    }

    /// Starts a list of names if it pays: enough objects, all with versions, no rejection without a name. `false`: not
    /// started.
    pub(super) fn begin_name_list(&mut self, known_min: usize) -> bool {
        let is_forgotten = self.objects.values().any(|cached| cached.version.resource_version.is_empty());
        let is_worth_it = self.objects.len() >= known_min && !is_forgotten && self.unnamed.is_empty();
        if is_worth_it {
            self.begin_list();
        }
        is_worth_it
    }

    /// Ends a page: its content stays, whatever happens to the next one.
    pub(super) fn end_page(&mut self) {
        self.listing.complete = (self.listing.pending.len(), self.listing.messages.len());
    }

    /// Discards the content of a page that broke off and will be read again.
    pub(super) fn undo_page(&mut self) {
        let (pending, messages) = self.listing.complete;
        self.listing.pending.truncate(pending);
        self.listing.messages.truncate(messages);
    }

    /// Marks an object as listed. `true`: this version is known and need not be read.
    pub(super) fn mark_listed(&mut self, name: &ObjectName, version: &Version) -> bool {
        let list = self.lists;
        let Some(cached) = self.objects.get_mut(name) else { return false };
        cached.list = list;
        cached.version.is_same(version)
    }

    /// Stages a new or changed object of the list.
    pub(super) fn stage_object(&mut self, object: Object) {
        if self.is_foreign(&object) {
            return;
        }
        let untabled = object.to_untabled();
        match object.name {
            Some((name, version)) => self.listing.pending.push((name, version, untabled)),
            None => self.listing.unnamed.extend(object.rejection_key()),
        }
        self.listing.messages.extend(object.messages);
    }

    /// Ends a whole list: all its changes take effect at once.
    pub(super) fn commit_list(&mut self, gone: impl Fn(&ObjectName) -> Option<SinkMessage>) -> ListCommit {
        let PendingList { pending, mut messages, unnamed, .. } = std::mem::take(&mut self.listing);
        let before = self.objects.len();
        for (name, version, untabled) in pending {
            self.insert_object(name, version, untabled);
        }
        // A missing object may be the one that has lost its name.
        let removed = if unnamed.is_empty() { self.sweep_missing() } else { Vec::new() };
        messages.extend(removed.iter().filter_map(gone));
        messages.extend(self.unnamed.difference(&unnamed).cloned().map(SinkMessage::rejection_ended));
        self.unnamed = unnamed;
        ListCommit { messages, removed: removed.len(), before }
    }

    fn sweep_missing(&mut self) -> Vec<ObjectName> {
        let list = self.lists;
        let is_gone =
            |(name, cached): (&ObjectName, &CachedObject)| (cached.list != list).then(|| name.clone());
        let gone: Vec<ObjectName> = self.objects.iter().filter_map(is_gone).collect();
        gone.into_iter().filter(|name| self.forget_object(name)).collect()
    }

    fn insert_object(&mut self, name: ObjectName, version: Version, untabled: Option<UntabledObject>) {
        self.set_untabled(&name, untabled);
        self.objects.insert(name, CachedObject { version, list: self.lists });
    }

    fn set_untabled(&mut self, name: &ObjectName, untabled: Option<UntabledObject>) {
        if untabled.is_none() && !self.untabled_objects.contains_key(name) {
            return;
        }
        self.bad += usize::from(untabled.as_ref().is_some_and(UntabledObject::is_bad));
        let untabled_objects = Arc::make_mut(&mut self.untabled_objects);
        let before = match untabled {
            Some(untabled) => untabled_objects.insert(name.clone(), untabled),
            None => untabled_objects.remove(name),
        };
        self.bad -= usize::from(before.is_some_and(|before| before.is_bad()));
    }

    /// Whether this is a slice that is not for proxies, and never was as far as is known.
    fn is_foreign(&self, object: &Object) -> bool {
        let is_known = object.name.as_ref().is_some_and(|(name, _)| self.objects.contains_key(name));
        object.is_headless() && !is_known
    }

    /// Applies an object of an event. `false`: the version is known, or the object is not for proxies.
    pub(super) fn apply_object(&mut self, object: &Object) -> bool {
        let Some((name, version)) = &object.name else {
            if self.unnamed.len() < limits::REJECTIONS_MAX {
                self.unnamed.extend(object.rejection_key());
            }
            return true;
        };
        if self.is_foreign(object) {
            return false;
        }
        if self.version(name).is_some_and(|known| known.is_same(version)) {
            return false;
        }
        self.insert_object(name.clone(), version.clone(), object.to_untabled());
        true
    }

    /// Removes an object after a deletion event. `false`: it was unknown, or another object has that name now.
    pub(super) fn remove_object(&mut self, name: &ObjectName, gone: &Version) -> bool {
        if self.objects.get(name).is_some_and(|cached| cached.version.is_another_object(gone)) {
            return false;
        }
        self.forget_object(name)
    }

    fn forget_object(&mut self, name: &ObjectName) -> bool {
        self.set_untabled(name, None);
        self.objects.remove(name).is_some()
    }
}

#[cfg(test)]
mod tests;
