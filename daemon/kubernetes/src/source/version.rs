//! Versions of objects, and the odd objects, of which the table does not say everything.
//!
//! Invariant: versions are compared for equality only, as Kubernetes asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::facts::{Meta, Rejection};
use holdfast_core::keys::ObjectName;

/// One version of one object. Versions are compared for equality only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Tells a re-created object from the old one of the same name.
    pub uid: Arc<str>,
    /// The apiserver's version.
    pub resource_version: Arc<str>,
}

impl Version {
    pub(super) fn from_meta(meta: &Meta) -> Self {
        let text = |text: &Option<Arc<str>>| text.clone().unwrap_or_default();
        Self { uid: text(&meta.uid), resource_version: text(&meta.resource_version) }
    }

    /// Whether the other one is surely another object; an object without a uid may be any object of its name.
    pub(super) fn is_another_object(&self, other: &Self) -> bool {
        !self.uid.is_empty() && !other.uid.is_empty() && self.uid != other.uid
    }

    /// Whether both are surely the same version; an object without a version may be any version.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self == other && !self.resource_version.is_empty()
    }
}

/// What the table does not say of an object: that a version of it could not be understood, in part or at all, or that
/// it belongs to no service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntabledObject {
    pub version: Version,
    /// What could not be understood; `None`: the object belongs to no service, and nothing of it is wrong.
    pub rejection: Option<Rejection>,
}

impl UntabledObject {
    /// Whether nothing of this version was understood.
    pub(super) fn is_bad(&self) -> bool {
        self.rejection.as_ref().is_some_and(|rejection| !rejection.partial)
    }

    /// Whether nothing of this version was wrong, and it only belongs to no service.
    pub(super) const fn is_orphan(&self) -> bool {
        self.rejection.is_none()
    }
}

/// The odd objects of one kind.
pub type UntabledObjects = BTreeMap<ObjectName, UntabledObject>;
