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

use super::envelope::{Glimpse, Identity, Status};
use super::object::{Message, Object, named};
use super::page::{Ahead, Items, ListFrame, NoPage};
use super::piece::Piece;
use super::resource::Resource;
use holdfast_objects::{self as objects, ImportWire, Kind, ObjectError, Provenance, ServiceWire, SliceWire};

pub(super) use json::Json;
pub(super) use protobuf::Protobuf;

/// What is named as wrong where no field can be named.
const WHOLE: &str = "the object";

/// One event of a watch, taken out of its frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
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
pub(super) struct NoFrame(pub(super) String);

/// A list that is taken apart while it comes.
pub(super) trait Splitter: Debug + Default + Send {
    /// Takes a chunk, and gives out items that end in it, or in an earlier one.
    fn take(&mut self, chunk: &[u8], items: &mut dyn Items) -> Result<(), NoPage>;

    /// Gives out the last items, and what the list says of itself.
    fn end(self, items: &mut dyn Items) -> Result<ListFrame, NoPage>;
}

/// A watch that is taken apart while it comes.
pub(super) trait Framer: Debug + Default + Send {
    /// Takes a chunk, and gives out each frame that ends in it.
    fn take(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>));
}

pub(super) trait Codec: Debug + Send + Sync + 'static {
    /// Takes a list apart.
    type Page: Splitter;
    /// Takes a watch apart.
    type Frames: Framer;

    /// Takes an event out of its frame.
    fn frame(bytes: &[u8]) -> Result<Frame<'_>, NoFrame>;

    /// The identity of an object, whatever the rest of it is.
    fn peek(bytes: &[u8]) -> Option<Identity>;

    /// What the beginning of an event says that cannot be read, or was cut.
    fn glimpse(bytes: &[u8]) -> Glimpse;

    /// Reads an object.
    fn read(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object;

    /// What a body says of an error.
    fn status(body: &[u8]) -> Option<Status>;

    /// Reads the object at the beginning of a text that may go on. An encoding that says how long an object is has no
    /// use for it.
    fn read_ahead(_: Resource, _: &str, _: &Provenance) -> Ahead<Object> {
        Ahead::Unfit
    }

    /// Finds the end of the object at the beginning of a text that may go on.
    fn skip_ahead(_: &str) -> Ahead<()> {
        Ahead::Unfit
    }
}

/// Rejects an object for this reason, without reading it.
pub(super) fn refuse(
    what: Resource,
    identity: Option<Identity>,
    reason: &dyn std::fmt::Display,
    provenance: &Provenance,
) -> Object {
    refused(what, &identity.unwrap_or_default(), None, &ObjectError::shape(WHOLE, reason), provenance)
}

/// Reads the version of a bookmark, which is shaped like an object and must not be read as one.
fn bookmark(identity: Option<Identity>) -> Result<String, NoFrame> {
    let version = identity.and_then(|identity| identity.resource_version);
    version.filter(|it| !it.is_empty()).ok_or_else(|| NoFrame("a bookmark without a version".to_owned()))
}

fn service(wire: &ServiceWire, provenance: &Provenance) -> Vec<Message> {
    told(objects::service(wire, provenance))
}

fn import(wire: &ImportWire, provenance: &Provenance) -> Vec<Message> {
    told(objects::import(wire, provenance))
}

fn told(read: Result<ServiceFacts, Rejection>) -> Vec<Message> {
    let applied = read.map(|facts| Event::ServiceApplied(Arc::new(facts)));
    vec![Message::Event(applied.unwrap_or_else(Event::Rejected))]
}

fn slice(wire: &SliceWire, provenance: &Provenance) -> Vec<Message> {
    match objects::slice(wire, provenance) {
        Ok((facts, partial)) => {
            let applied = Event::SliceApplied(Arc::new(facts));
            // What was skipped is reported after the object, because an applied object ends earlier rejections.
            [Some(applied), partial.map(Event::Rejected)].into_iter().flatten().map(Message::Event).collect()
        }
        Err(rejection) => vec![Message::Event(Event::Rejected(rejection))],
    }
}

/// An object that does not even fit its type, named as far as its metadata tells.
fn refused(
    what: Resource,
    identity: &Identity,
    value: Option<Value>,
    error: &ObjectError,
    provenance: &Provenance,
) -> Object {
    let known = || json!({"metadata": {"namespace": identity.namespace, "name": identity.name}});
    let value = value.unwrap_or_else(known);
    let messages = rejection(what, &value, error, provenance).map(|it| Message::Event(Event::Rejected(it)));
    Object {
        name: named(what, identity),
        messages: messages.into_iter().collect(),
        is_bad: true,
        is_doubtful: false,
    }
}

/// The rejection for the engine. There is none of a Node, which the engine does not know: what the Node said before
/// stays.
fn rejection(
    what: Resource,
    value: &Value,
    error: &ObjectError,
    provenance: &Provenance,
) -> Option<Rejection> {
    let kind = match what {
        Resource::Services | Resource::Imports => Kind::Service,
        Resource::Slices | Resource::ImportedSlices => Kind::Slice,
        Resource::Node => return None,
    };
    Some(objects::reject(kind, value, error, provenance))
}

#[cfg(test)]
mod tests;
