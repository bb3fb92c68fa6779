//! Versions of objects, and facts about objects that the table does not hold.
//!
//! Invariant: versions are only compared for equality, as Kubernetes requires.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::facts::{Meta, Rejection};
use holdfast_core::keys::ObjectName;

/// One version of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Differs between a re-created object and the old one of the same name.
    pub uid: Arc<str>,
    pub resource_version: Arc<str>,
}

impl Version {
    pub(super) fn from_meta(meta: &Meta) -> Self {
        let text = |text: &Option<Arc<str>>| text.clone().unwrap_or_default();
        Self { uid: text(&meta.uid), resource_version: text(&meta.resource_version) }
    }

    /// Whether the other is certainly another object; without a uid it may be any object of its name.
    pub(super) fn is_another_object(&self, other: &Self) -> bool {
        !self.uid.is_empty() && !other.uid.is_empty() && self.uid != other.uid
    }

    /// Whether both are certainly the same version; an object without a version may be any version.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self == other && !self.resource_version.is_empty()
    }
}

/// Facts that the table does not hold: the object was rejected in part or whole, or belongs to no service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntabledObject {
    pub version: Version,
    /// `None`: the object is valid and belongs to no service.
    pub rejection: Option<Rejection>,
}

impl UntabledObject {
    /// Whether the whole version was rejected.
    pub(super) fn is_bad(&self) -> bool {
        self.rejection.as_ref().is_some_and(|rejection| !rejection.partial)
    }

    /// Whether the version is valid and only belongs to no service.
    pub(super) const fn is_orphan(&self) -> bool {
        self.rejection.is_none()
    }
}

/// The untabled objects of one kind.
pub type UntabledObjects = BTreeMap<ObjectName, UntabledObject>;
