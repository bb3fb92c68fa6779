//! Objects that only a former process saw: they stand until their source confirms them or ends its first list without.
//!
//! Invariant: an object that its source rejects is not gone, and stays as it is remembered for as long as the rejection of
//! it, or of the file that it came from, lasts. Deliberately absent: how it is remembered.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Known, Tables};
use crate::change::Cause;
use crate::event::Event;
use crate::facts::{Meta, ObjectKey};
use crate::keys::Source;
use crate::op::ServiceId;
use crate::snapshot::ServiceView;

/// Remembered objects that their source has not spoken of, with the version and origin remembered.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    objects: BTreeMap<ObjectKey, Meta>,
}

impl Unconfirmed {
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn confirm(&mut self, object: &ObjectKey) {
        self.objects.remove(object);
    }

    pub(super) fn confirm_all(&mut self, source: Source) {
        self.objects.retain(|object, _| object.source() != source);
    }

    fn take_if(&mut self, gone: impl Fn(&ObjectKey, &Meta) -> bool) -> Vec<(ObjectKey, Meta)> {
        self.objects.extract_if(.., |object, meta| gone(object, meta)).collect()
    }
}

impl Tables {
    /// Takes a service with its slices as a former process wrote them down. `None`: there is no room.
    pub(crate) fn remember(&mut self, view: &ServiceView) -> Option<ServiceId> {
        let id = self.id(&view.key)?;
        if let Some(facts) = &view.facts {
            self.unconfirmed.objects.insert(ObjectKey::Service(facts.key.clone()), facts.meta.clone());
        }
        for slice in view.slices.iter() {
            self.unconfirmed.objects.insert(ObjectKey::Slice(slice.key.clone()), slice.meta.clone());
            self.slices.insert(slice.key.clone(), (Arc::clone(slice), Some(id)));
        }
        let slices = view.slices.to_vec();
        *self.services.get_mut(id.0 as usize)? =
            Some(Known { key: view.key.clone(), facts: view.facts.clone(), slices });
        Some(id)
    }

    /// What this source did not speak of in its first list is gone, unless it was there and could not be understood.
    pub(super) fn source_synced(&mut self, source: Source, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        let named = &self.rejections.named;
        let rejected = |object: &ObjectKey, meta: &Meta| {
            let file = || Some(ObjectKey::File(source, meta.origin.clone()?));
            named.contains_key(object) || file().is_some_and(|file| named.contains_key(&file))
        };
        let gone =
            self.unconfirmed.take_if(|object, meta| object.source() == source && !rejected(object, meta));
        self.forget_remembered(gone, dirty);
        self.synced.insert(source, true);
    }

    /// What was rejected is understood or gone. Whatever of it is only remembered by now is gone too; what the file still has
    /// was told before.
    pub(super) fn rejection_ended(&mut self, object: &ObjectKey, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        self.end_rejection(object);
        if self.synced.get(&object.source()) != Some(&true) || self.unconfirmed.is_empty() {
            return;
        }
        let named = &self.rejections.named;
        let gone = self.unconfirmed.take_if(|remembered, meta| match object {
            ObjectKey::File(source, file) => {
                let is_of_it = remembered.source() == *source && meta.origin.as_ref() == Some(file);
                is_of_it && !named.contains_key(remembered)
            }
            _ => remembered == object,
        });
        self.forget_remembered(gone, dirty);
    }

    fn forget_remembered(&mut self, gone: Vec<(ObjectKey, Meta)>, dirty: &mut dyn FnMut(ServiceId, Cause)) {
        for (object, meta) in gone {
            let meta = Some(Box::new(meta));
            match object {
                ObjectKey::Service(key) => self.apply(Event::ServiceDeleted(key, meta), dirty),
                ObjectKey::Slice(key) => self.apply(Event::SliceDeleted(key, meta), dirty),
                ObjectKey::File(..) | ObjectKey::Unnamed(..) => {}
            }
        }
    }
}
