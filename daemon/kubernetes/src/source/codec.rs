//! How an apiserver's bodies are written, behind one trait: each encoding is an implementation.
//!
//! Invariant: one object that cannot be read harms no other, and is named if its metadata can be read. What is told of
//! an object that can be read does not depend on its encoding.

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

/// What is named as wrong where no field can be named.
const WHOLE_OBJECT: &str = "the object";

/// One event of a watch, taken out of its frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchFrame<'a> {
    /// An object is there, new or changed.
    Applied(&'a [u8]),
    /// An object is gone; this is its last version.
    Deleted(&'a [u8]),
    /// Everything up to this version has been sent.
    Bookmark(String),
    /// The watch has failed.
    Failed(Status),
}

/// Why a frame cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a watch event: {0}")]
pub(super) struct FrameError(pub(super) String);

/// A list that is taken apart while it comes.
pub(super) trait Splitter: Debug + Default + Send {
    /// Takes a chunk, and gives out items that end in it, or in an earlier one.
    fn push_chunk(&mut self, chunk: &[u8], items: &mut dyn ItemSink) -> Result<(), PageError>;

    /// Gives out the last items, and what the list says of itself.
    fn finish(self, items: &mut dyn ItemSink) -> Result<ListFrame, PageError>;
}

/// A watch that is taken apart while it comes.
pub(super) trait Framer: Debug + Default + Send {
    /// Takes a chunk, and gives out each frame that ends in it.
    fn push_chunk(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>));
}

pub(super) trait Codec: Debug + Send + Sync + 'static {
    /// Takes a list apart.
    type Page: Splitter;
    /// Takes a watch apart.
    type Frames: Framer;

    /// Takes an event out of its frame.
    fn parse_frame(bytes: &[u8]) -> Result<WatchFrame<'_>, FrameError>;

    /// The identity of an object, whatever the rest of it is.
    fn peek_identity(bytes: &[u8]) -> Option<Identity>;

    /// What the beginning of an event says that cannot be read, or was cut.
    fn peek_event(bytes: &[u8]) -> EventPeek;

    /// Reads an object.
    fn parse_object(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object;

    /// What a body says of an error.
    fn parse_status(body: &[u8]) -> Option<Status>;

    /// Reads the object at the beginning of a text that may go on. An encoding that says how long an object is has no
    /// use for it.
    fn parse_ahead(_: Resource, _: &str, _: &Provenance) -> ReadAhead<Object> {
        ReadAhead::Unfit
    }

    /// Finds the end of the object at the beginning of a text that may go on.
    fn skip_ahead(_: &str) -> ReadAhead<()> {
        ReadAhead::Unfit
    }
}

/// Rejects an object for this reason, without reading it.
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

/// Reads the version of a bookmark, which is shaped like an object and must not be read as one.
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
            // What was skipped is reported after the object, because an applied object ends earlier rejections.
            [Some(applied), partial.map(Event::Rejected)]
                .into_iter()
                .flatten()
                .map(SinkMessage::Event)
                .collect()
        }
        Err(rejection) => vec![SinkMessage::Event(Event::Rejected(rejection))],
    }
}

/// An object that does not even fit its type, named as far as its metadata tells.
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

/// The rejection for the engine. There is none of a Node, which the engine does not know: what the Node said before
/// stays.
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
