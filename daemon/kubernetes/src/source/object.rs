//! One object as it was read: its name, its version, and the messages to deliver.
//!
//! Invariant: an invalid object delivers only its own rejection.

use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{Meta, ObjectKey, Rejection};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey};

use super::envelope::Identity;
use super::resource::Resource;
use super::version::{UntabledObject, Version};
use crate::own_node::NodeDescription;

/// The namespace of cluster-wide objects; no real namespace can have this name.
const NO_NAMESPACE: &str = "-";

/// A message to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SinkMessage {
    /// For the engine.
    Event(Event),
    /// For the task that tracks the node's zone and addresses.
    Node(NodeDescription),
}

impl SinkMessage {
    pub(super) const fn rejection_ended(object: ObjectKey) -> Self {
        Self::Event(Event::RejectionEnded(object))
    }

    /// The message that everything up to a version was delivered; a restart resumes there.
    pub(super) fn progress(what: Resource, version: &Arc<str>) -> Option<Self> {
        Some(Self::Event(Event::Progress(what.engine_kind()?, Arc::clone(version))))
    }

    /// The message that an object was deleted, with its last version if known. A Node has none: its facts stay, as with
    /// kube-proxy, which exits when its Node goes and leaves its rules.
    pub(super) fn deletion(what: Resource, name: &ObjectName, meta: Option<Meta>) -> Option<Self> {
        let (name, source) = (name.clone(), what.source());
        let meta = meta.map(Box::new);
        Some(Self::Event(match what {
            Resource::Services | Resource::Imports => {
                Event::ServiceDeleted(ServiceKey { name, source }, meta)
            }
            Resource::Slices | Resource::ImportedSlices => {
                Event::SliceDeleted(SliceKey { name, source }, meta)
            }
            Resource::Node => return None,
        }))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Object {
    /// Name and version; `None` if the object has no name.
    pub(super) name: Option<(ObjectName, Version)>,
    pub(super) messages: Vec<SinkMessage>,
    /// The object is invalid.
    pub(super) is_bad: bool,
    /// The encoding may be the cause, so that another one may work.
    pub(super) is_doubtful: bool,
}

impl Object {
    /// An object that was read; `name` is called only if no message has the name.
    pub(super) fn new(
        messages: Vec<SinkMessage>,
        name: impl FnOnce() -> Option<(ObjectName, Version)>,
    ) -> Self {
        let is_bad =
            messages.iter().any(|it| matches!(it, SinkMessage::Event(Event::Rejected(one)) if !one.partial));
        let own = messages.iter().find_map(|it| match it {
            SinkMessage::Event(Event::ServiceApplied(facts)) => {
                Some((facts.key.name.clone(), Version::from_meta(&facts.meta)))
            }
            SinkMessage::Event(Event::SliceApplied(facts)) => {
                Some((facts.key.name.clone(), Version::from_meta(&facts.meta)))
            }
            _ => None,
        });
        Self { name: own.or_else(name), messages, is_bad, is_doubtful: false }
    }

    /// The facts that the table does not hold: a rejection, or that a slice belongs to no service.
    pub(super) fn to_untabled(&self) -> Option<UntabledObject> {
        let (_, version) = self.name.as_ref()?;
        let rejection = self.rejection().cloned();
        let is_loose = self.messages.iter().any(|it| match it {
            SinkMessage::Event(Event::SliceApplied(facts)) => facts.service.is_none(),
            _ => false,
        });
        (rejection.is_some() || is_loose).then(|| UntabledObject { version: version.clone(), rejection })
    }

    /// Whether this is a slice with the label that excludes it from proxies.
    pub(super) fn is_headless(&self) -> bool {
        self.messages
            .iter()
            .any(|it| matches!(it, SinkMessage::Event(Event::SliceApplied(facts)) if facts.headless))
    }

    /// The key of the object's rejection, if any.
    pub(super) fn rejection_key(&self) -> Option<ObjectKey> {
        self.rejection().map(|rejection| rejection.object.clone())
    }

    pub(super) fn rejection(&self) -> Option<&Rejection> {
        self.messages.iter().find_map(|it| match it {
            SinkMessage::Event(Event::Rejected(rejection)) => Some(rejection),
            _ => None,
        })
    }

    /// Version and last writer of a valid object.
    pub(super) fn meta(&self) -> Option<&Meta> {
        self.messages.iter().find_map(|it| match it {
            SinkMessage::Event(Event::ServiceApplied(facts)) => Some(&facts.meta),
            SinkMessage::Event(Event::SliceApplied(facts)) => Some(&facts.meta),
            _ => None,
        })
    }
}

/// Name and version, if the object has a name.
pub(super) fn identify_object(what: Resource, identity: &Identity) -> Option<(ObjectName, Version)> {
    let namespace = match what {
        Resource::Node => Some(NO_NAMESPACE),
        _ => identity.namespace.as_deref(),
    };
    let name = ObjectName::new(namespace?, identity.name.as_deref()?).ok()?;
    let version = Version {
        uid: identity.uid.as_deref().unwrap_or_default().into(),
        resource_version: identity.resource_version.as_deref().unwrap_or_default().into(),
    };
    Some((name, version))
}
