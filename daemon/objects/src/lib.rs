//! Parses Kubernetes objects into facts, as tolerantly as kube-proxy, and folders of manifests into events.
//!
//! Invariant: the crate is pure: no file, no socket, no clock. The same object always gives the same facts, or one
//! rejection that names the object, the fault and the legal values. No object affects another.

mod address;
mod error;
mod import;
mod intern;
pub mod manifests;
mod meta;
pub mod protobuf;
mod service;
mod slice;
mod wire;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey, Source};
use holdfast_core::limits;
use serde::Deserialize;
use serde_json::Value;

pub use error::{ObjectError, quote_value};
pub use holdfast_core::rfc3339::{parse as parse_time, parse_micros as parse_time_micros};
pub use import::parse_import;
pub use intern::intern_text;
pub use service::parse_service;
pub use slice::parse_slice;
pub use wire::{
    AffinityConfigWire, AffinityWire, AnnotationsWire, ConditionsWire, EndpointWire, HintWire, HintsWire,
    ImportSpecWire, ImportWire, IngressWire, LabelsWire, LoadBalancerWire, ManagedFieldsWire, MetaWire,
    ServicePortWire, ServiceSpecWire, ServiceStatusWire, ServiceWire, SlicePortWire, SliceWire, TargetWire,
    Text, TimeWire,
};

/// The kinds of objects that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Kind `Service` of `v1`; from the source of ServiceImports, kind `ServiceImport`.
    Service,
    /// Kind `EndpointSlice` of `discovery.k8s.io/v1`.
    Slice,
}

impl ObjectKind {
    /// The only supported `apiVersion` of this kind.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Service => "v1",
            Self::Slice => "discovery.k8s.io/v1",
        }
    }

    fn object_key(self, name: ObjectName, source: Source) -> ObjectKey {
        match self {
            Self::Service => ObjectKey::Service(ServiceKey { name, source }),
            Self::Slice => ObjectKey::Slice(SliceKey { name, source }),
        }
    }
}

/// The kind as Kubernetes spells it.
impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::Slice => "EndpointSlice",
        })
    }
}

/// Who fills in fields that an object leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defaulting {
    /// The reader fills them in, as the apiserver would when storing the object.
    AsApiserver,
    /// The apiserver has filled them in. For fields that are still absent, only kube-proxy's rules apply.
    Done,
}

/// Where an object was read, and how to fill in absent fields.
#[derive(Clone, Debug)]
pub struct Provenance {
    pub source: Source,
    /// The file or apiserver endpoint.
    pub origin: Option<Arc<str>>,
    pub defaulting: Defaulting,
}

/// Reads one object into its wire type; an error gives the path of the wrong value.
pub fn from_value<Wire: Deserialize<'static>>(value: &Value) -> Result<Wire, ObjectError> {
    Wire::deserialize(value.clone()).or_else(|_| {
        // Only an object that does not fit pays for the path.
        serde_path_to_error::deserialize(value.clone())
            .map_err(|error| ObjectError::shape(&error.path().to_string(), &error.inner()))
    })
}

/// Rejects an object that does not fit its wire type, under its name if that is legal.
pub fn reject_object(
    kind: ObjectKind,
    value: &Value,
    error: &ObjectError,
    provenance: &Provenance,
) -> Rejection {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str);
    let name = meta::object_name(text("/metadata/namespace"), text("/metadata/name"), provenance.defaulting);
    let object = match name {
        Ok(name) => kind.object_key(name, provenance.source),
        Err(_) => unnamed_key(kind, text("/metadata/name"), provenance),
    };
    build_rejection(object, error, provenance, false)
}

/// The name of an object, or a rejection with the object's origin and quoted name.
fn require_name(
    kind: ObjectKind,
    wire: &MetaWire<'_>,
    provenance: &Provenance,
) -> Result<ObjectName, Rejection> {
    let namespace = wire.namespace.as_deref();
    let name = wire.name.as_deref();
    meta::object_name(namespace, name, provenance.defaulting)
        .map_err(|error| build_rejection(unnamed_key(kind, name, provenance), &error, provenance, false))
}

fn unnamed_key(kind: ObjectKind, name: Option<&str>, provenance: &Provenance) -> ObjectKey {
    let name = error::quote_value(name.unwrap_or_default());
    let kind = match (kind, provenance.source) {
        (ObjectKind::Service, Source::ClusterSet) => "ServiceImport".to_owned(),
        _ => kind.to_string(),
    };
    let index = match &provenance.origin {
        Some(origin) => format!("{origin}, {kind} {name}"),
        None => format!("{kind} {name}"),
    };
    ObjectKey::Unnamed(provenance.source, index.into())
}

fn build_rejection(
    object: ObjectKey,
    reason: &dyn fmt::Display,
    provenance: &Provenance,
    partial: bool,
) -> Rejection {
    Rejection {
        object,
        origin: provenance.origin.clone(),
        reason: truncate_reason(&reason.to_string()),
        partial,
    }
}

/// Truncates a reason to the length limit of a rejection.
pub fn truncate_reason(reason: &str) -> Arc<str> {
    match reason.char_indices().nth(limits::REJECTION_REASON_LENGTH_MAX) {
        None => reason.into(),
        Some(_) => reason
            .chars()
            .take(limits::REJECTION_REASON_LENGTH_MAX - 1)
            .chain(['…'])
            .collect::<String>()
            .into(),
    }
}
