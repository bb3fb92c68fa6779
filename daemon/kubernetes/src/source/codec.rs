//! The encodings of an apiserver's bodies: one implementation of [`Codec`] each.
//!
//! Invariant: an unreadable object harms no other, and is named if its metadata is readable. The facts of a readable
//! object do not depend on its encoding.

mod json;
mod node;
mod protobuf;

use std::fmt::Debug;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{Rejection, ServiceFacts};
use serde_json::{Value, json};

use super::envelope::{EventPeek, Identity, Status};
use super::object::{Object, SinkMessage, identify_object};
use super::page::{ItemSink, ListFrame, PageError, ReadAhead};
use super::piece::Piece;
use super::resource::Resource;
use holdfast_objects::{
    self as objects, ImportWire, ObjectError, ObjectKind, Provenance, ServiceWire, SliceWire,
};

pub(super) use json::Json;
pub(super) use protobuf::Protobuf;

/// The field to name in a rejection of the whole object.
const WHOLE_OBJECT: &str = "the object";

/// One event of a watch, decoded from its frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchFrame<'a> {
    /// An object was added or changed.
    Applied(&'a [u8]),
    /// An object was deleted; this is its last version.
    Deleted(&'a [u8]),
    /// Everything up to this version has been sent.
    Bookmark(String),
    /// The watch failed.
    Failed(Status),
}

/// Why a frame is unreadable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a watch event: {0}")]
pub(super) struct FrameError(pub(super) String);

/// Splits a list into items while it arrives.
pub(super) trait Splitter: Debug + Default + Send {
    /// Takes a chunk, and emits the items that are complete.
    fn push_chunk(&mut self, chunk: &[u8], items: &mut dyn ItemSink) -> Result<(), PageError>;

    /// Emits the last items, and returns the list's frame.
    fn finish(self, items: &mut dyn ItemSink) -> Result<ListFrame, PageError>;
}

/// Splits a watch into frames while it arrives.
pub(super) trait Framer: Debug + Default + Send {
    /// Takes a chunk, and emits each frame that ends in it.
    fn push_chunk(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>));
}

pub(super) trait Codec: Debug + Send + Sync + 'static {
    type Page: Splitter;
    type Frames: Framer;

    /// Decodes an event from its frame.
    fn parse_frame(bytes: &[u8]) -> Result<WatchFrame<'_>, FrameError>;

    /// The identity of an object, even if the rest is invalid.
    fn peek_identity(bytes: &[u8]) -> Option<Identity>;

    /// The readable start of an event that is invalid or was cut.
    fn peek_event(bytes: &[u8]) -> EventPeek;

    fn parse_object(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object;

    /// Parses the `Status` of an error body.
    fn parse_status(body: &[u8]) -> Option<Status>;

    /// Reads the object at the start of a text that may go on. Encodings with length prefixes do not need it.
    fn parse_ahead(_: Resource, _: &str, _: &Provenance) -> ReadAhead<Object> {
        ReadAhead::Unfit
    }

    /// Finds the end of the object at the start of a text that may go on.
    fn skip_ahead(_: &str) -> ReadAhead<()> {
        ReadAhead::Unfit
    }
}

/// Rejects an object without reading it.
pub(super) fn reject_object(
    what: Resource,
    identity: Option<Identity>,
    reason: &dyn std::fmt::Display,
    provenance: &Provenance,
) -> Object {
    rejected_object(
        what,
        &identity.unwrap_or_default(),
        None,
        &ObjectError::shape(WHOLE_OBJECT, reason),
        provenance,
    )
}

/// Reads a bookmark's version. A bookmark looks like an object but must not be read as one.
fn bookmark_version(identity: Option<Identity>) -> Result<String, FrameError> {
    let version = identity.and_then(|identity| identity.resource_version);
    version.filter(|it| !it.is_empty()).ok_or_else(|| FrameError("a bookmark without a version".to_owned()))
}

fn service_messages(wire: &ServiceWire, provenance: &Provenance) -> Vec<SinkMessage> {
    to_messages(objects::parse_service(wire, provenance))
}

fn import_messages(wire: &ImportWire, provenance: &Provenance) -> Vec<SinkMessage> {
    to_messages(objects::parse_import(wire, provenance))
}

fn to_messages(read: Result<ServiceFacts, Rejection>) -> Vec<SinkMessage> {
    let applied = read.map(|facts| Event::ServiceApplied(Arc::new(facts)));
    vec![SinkMessage::Event(applied.unwrap_or_else(Event::Rejected))]
}

fn slice_messages(wire: &SliceWire, provenance: &Provenance) -> Vec<SinkMessage> {
    match objects::parse_slice(wire, provenance) {
        Ok((facts, partial)) => {
            let applied = Event::SliceApplied(Arc::new(facts));
            // Skipped parts are reported after the object, because an applied object ends earlier rejections.
            [Some(applied), partial.map(Event::Rejected)]
                .into_iter()
                .flatten()
                .map(SinkMessage::Event)
                .collect()
        }
        Err(rejection) => vec![SinkMessage::Event(Event::Rejected(rejection))],
    }
}

/// Rejects an object that does not fit its type, named as far as its metadata allows.
fn rejected_object(
    what: Resource,
    identity: &Identity,
    value: Option<Value>,
    error: &ObjectError,
    provenance: &Provenance,
) -> Object {
    let known = || json!({"metadata": {"namespace": identity.namespace, "name": identity.name}});
    let value = value.unwrap_or_else(known);
    let messages =
        build_rejection(what, &value, error, provenance).map(|it| SinkMessage::Event(Event::Rejected(it)));
    Object {
        name: identify_object(what, identity),
        messages: messages.into_iter().collect(),
        is_bad: true,
        is_doubtful: false,
    }
}

/// The rejection for the engine. A Node has none: the engine does not know it, and its earlier facts stay.
fn build_rejection(
    what: Resource,
    value: &Value,
    error: &ObjectError,
    provenance: &Provenance,
) -> Option<Rejection> {
    let kind = match what {
        Resource::Services | Resource::Imports => ObjectKind::Service,
        Resource::Slices | Resource::ImportedSlices => ObjectKind::Slice,
        Resource::Node => return None,
    };
    Some(objects::reject_object(kind, value, error, provenance))
}

#[cfg(test)]
mod tests;
