//! Objects of a former process: they stay until their source confirms them or completes its first list without them.
//!
//! Invariant: an object that its source rejects still exists. It stays as restored while it, or the file that it came
//! from, is rejected.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Tables;
use crate::change::Cause;
use crate::event::Event;
use crate::facts::{Meta, ObjectKey, ServiceFacts, SliceFacts};
use crate::index::{Index, Seed};
use crate::keys::Source;
use crate::op::ServiceId;
use crate::snapshot::ServiceView;

#[derive(Debug)]
enum RestoredObject {
    Service(Arc<ServiceFacts>),
    Slice(Arc<SliceFacts>),
}

impl RestoredObject {
    fn meta(&self) -> &Meta {
        match self {
            Self::Service(facts) => &facts.meta,
            Self::Slice(facts) => &facts.meta,
        }
    }

    fn key(&self) -> ObjectKey {
        match self {
            Self::Service(facts) => ObjectKey::Service(facts.key.clone()),
            Self::Slice(facts) => ObjectKey::Slice(facts.key.clone()),
        }
    }
}

/// A restored object that its source has not delivered.
#[derive(Debug)]
struct UnconfirmedObject {
    known: RestoredObject,
    /// Its source has it and cannot parse it.
    is_rejected: bool,
}

/// Restored objects that their source has not delivered. It is hashed because a start puts every object here.
#[derive(Debug)]
pub(super) struct UnconfirmedIndex {
    objects: Index<ObjectKey, UnconfirmedObject>,
    /// Whether the files that they came from are rejected as a whole.
    files: BTreeMap<ObjectKey, bool>,
}

impl UnconfirmedIndex {
    pub(super) fn new(seed: Seed) -> Self {
        Self { objects: Index::new(seed), files: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn contains(&self, object: &ObjectKey) -> bool {
        self.objects.get(object).is_some()
    }

    pub(super) fn confirm(&mut self, object: &ObjectKey) {
        self.objects.remove(object);
    }

    pub(super) fn confirm_all(&mut self, source: Source) {
        self.objects.retain(|object, _| object.source() != source);
        self.objects.shrink();
    }

    /// Records that the object or the whole file exists and cannot be parsed, so that its restored objects stay.
    pub(super) fn reject(&mut self, object: &ObjectKey) {
        if let Some(unconfirmed) = self.objects.get_mut(object) {
            unconfirmed.is_rejected = true;
        }
        if let Some(is_rejected) = self.files.get_mut(object) {
            *is_rejected = true;
        }
    }

    fn end_rejection(&mut self, object: &ObjectKey) {
        if let Some(is_rejected) = self.files.get_mut(object) {
            *is_rejected = false;
        }
    }

    fn put(&mut self, known: RestoredObject) {
        let object = known.key();
        self.files.extend(origin_file(&object, known.meta()).map(|file| (file, false)));
        self.objects.insert(object, UnconfirmedObject { known, is_rejected: false });
    }

    fn take_if(&mut self, gone: impl Fn(&ObjectKey, &UnconfirmedObject) -> bool) -> Vec<RestoredObject> {
        self.objects.take_if(gone).into_iter().map(|(_, unconfirmed)| unconfirmed.known).collect()
    }

    /// Takes the source's undelivered objects, except those that it rejects.
    fn take_unconfirmed(&mut self, source: Source) -> Vec<RestoredObject> {
        let files = core::mem::take(&mut self.files);
        let is_of_bad_file = |object: &ObjectKey, it: &UnconfirmedObject| {
            origin_file(object, it.known.meta()).is_some_and(|file| files.get(&file) == Some(&true))
        };
        let gone = self.take_if(|object, it| {
            object.source() == source && !it.is_rejected && !is_of_bad_file(object, it)
        });
        self.files = files;
        self.objects.shrink();
        gone
    }
}

fn origin_file(object: &ObjectKey, meta: &Meta) -> Option<ObjectKey> {
    Some(ObjectKey::File(object.source(), meta.origin.clone()?))
}

impl Tables {
    /// Reserves capacity for restored objects, so that no table grows and rehashes meanwhile.
    pub(crate) fn reserve_restored(&mut self, services: usize, slices: usize) {
        self.names.reserve(services.min(self.services_max));
        self.services.reserve(services.min(self.services_max));
        self.slices.reserve(slices);
        self.unconfirmed.objects.reserve(services.saturating_add(slices));
    }

    /// Restores a service with its slices. `None`: there is no capacity, so they wait.
    pub(crate) fn restore_service(&mut self, view: &ServiceView) -> Option<ServiceId> {
        if let Some(facts) = &view.facts {
            self.unconfirmed.put(RestoredObject::Service(Arc::clone(facts)));
        }
        for slice in view.slices.iter() {
            self.unconfirmed.put(RestoredObject::Slice(Arc::clone(slice)));
        }
        let Some(id) = self.restore_id(&view.key) else {
            self.restore_waiting(view);
            return None;
        };
        if view.facts.is_some() {
            self.assign_quota(id);
        }
        for slice in view.slices.iter() {
            self.slices.insert(slice.key.clone(), (Arc::clone(slice), Some(id)));
        }
        let known = self.services.get_mut(id.0 as usize)?.as_mut()?;
        (known.facts, known.slices) = (view.facts.clone(), view.slices.to_vec());
        Some(id)
    }

    /// Enqueues a restored service that no longer fits because the limit is lower.
    fn restore_waiting(&mut self, view: &ServiceView) {
        view.facts.iter().for_each(|facts| self.enqueue_service(Arc::clone(facts)));
        view.slices.iter().for_each(|slice| self.enqueue_slice(&view.key, Arc::clone(slice)));
    }

    /// Completes a source's first list: restored objects that it did not deliver are deleted, unless it rejects them.
    pub(super) fn source_synced(&mut self, source: Source, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        let gone = self.unconfirmed.take_unconfirmed(source);
        self.delete_restored(gone, dirty);
        self.synced.insert(source, true);
        self.absent.remove(&source);
        self.unreadable.remove(&source);
    }

    /// Records that a rejected object or file is parsed or gone. Its remaining restored objects are deleted, because
    /// the source has already delivered what the file still has.
    pub(super) fn rejection_ended(&mut self, object: &ObjectKey, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.rejections.end(object);
        self.unconfirmed.end_rejection(object);
        if self.synced.get(&object.source()) != Some(&true) || self.unconfirmed.is_empty() {
            return;
        }
        let gone = self.unconfirmed.take_if(|remembered, it| match object {
            ObjectKey::File(source, file) => {
                let is_of_it =
                    remembered.source() == *source && it.known.meta().origin.as_ref() == Some(file);
                is_of_it && !it.is_rejected
            }
            _ => remembered == object,
        });
        self.delete_restored(gone, dirty);
    }

    fn delete_restored(&mut self, gone: Vec<RestoredObject>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        for known in gone {
            let meta = Some(Box::new(known.meta().clone()));
            let event = match &known {
                RestoredObject::Service(facts) => Event::ServiceDeleted(facts.key.clone(), meta),
                RestoredObject::Slice(facts) => Event::SliceDeleted(facts.key.clone(), meta),
            };
            self.apply(event, dirty);
        }
    }
}
