//! The form of the apiserver's objects that the table lacks.
//!
//! Invariant: an untabled object is identified by its kind and name, whatever is wrong with it. Objects without a
//! name are omitted: only a list can find them again.

use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::ObjectName;
use serde::{Deserialize, Serialize};

use holdfast_kubernetes::source::{UntabledObject, UntabledObjects, Version};

#[derive(Serialize, Deserialize)]
pub(crate) struct UntabledForm {
    name: ObjectName,
    uid: Arc<str>,
    resource_version: Arc<str>,
    rejection: Option<RejectionForm>,
}

#[derive(Serialize, Deserialize)]
struct RejectionForm {
    origin: Option<Arc<str>>,
    reason: Arc<str>,
    partial: bool,
}

impl From<(&ObjectName, &UntabledObject)> for UntabledForm {
    fn from((name, object): (&ObjectName, &UntabledObject)) -> Self {
        let rejection = object.rejection.as_ref().map(|it| RejectionForm {
            origin: it.origin.clone(),
            reason: Arc::clone(&it.reason),
            partial: it.partial,
        });
        Self {
            name: name.clone(),
            uid: Arc::clone(&object.version.uid),
            resource_version: Arc::clone(&object.version.resource_version),
            rejection,
        }
    }
}

impl UntabledForm {
    fn into_object(self, key: fn(ObjectName) -> ObjectKey) -> (ObjectName, UntabledObject) {
        let object = key(self.name.clone());
        let rejection = self.rejection.map(|it| Rejection {
            object,
            origin: it.origin,
            reason: it.reason,
            partial: it.partial,
        });
        let version = Version { uid: self.uid, resource_version: self.resource_version };
        (self.name, UntabledObject { version, rejection })
    }
}

pub(crate) fn to_forms(objects: &UntabledObjects, most: usize) -> Vec<UntabledForm> {
    objects.iter().take(most).map(UntabledForm::from).collect()
}

/// The untabled objects of these forms, as objects of one kind.
pub(crate) fn from_forms(forms: Vec<UntabledForm>, key: fn(ObjectName) -> ObjectKey) -> Arc<UntabledObjects> {
    Arc::new(forms.into_iter().map(|form| form.into_object(key)).collect())
}
