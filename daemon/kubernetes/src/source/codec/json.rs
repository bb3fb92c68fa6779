//! Answers of an apiserver in JSON, taken apart.
//!
//! Invariant: the text of an object is checked for UTF-8 once and read once; only an object that does not fit its type
//! is read again, for the path to what is wrong.

use std::fmt::Display;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::node::NodeWire;
use super::{Codec, Frame, Framer, NoFrame, Splitter, WHOLE, bookmark, import, refused, service, slice};
use crate::own_node::Described;
use crate::source::envelope::{self, Glimpse, Identity, Status};
use crate::source::line::Lines;
use crate::source::object::{Message, Object, named};
use crate::source::page::{Ahead, Items, ListFrame, NoPage, Page};
use crate::source::piece::Piece;
use crate::source::resource::Resource;
use holdfast_objects::{
    self as objects, ImportWire, ObjectError, Provenance, ServiceWire, SliceWire, from_value,
};

#[derive(Debug)]
pub(crate) struct Json;

impl Splitter for Page {
    fn take(&mut self, chunk: &[u8], items: &mut dyn Items) -> Result<(), NoPage> {
        self.take(chunk, items)
    }

    fn end(self, items: &mut dyn Items) -> Result<ListFrame, NoPage> {
        self.end(items)
    }
}

impl Framer for Lines {
    fn take(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        self.take(chunk, each);
    }
}

impl Codec for Json {
    type Page = Page;
    type Frames = Lines;

    fn frame(bytes: &[u8]) -> Result<Frame<'_>, NoFrame> {
        let refuse = |error: &dyn Display| NoFrame(error.to_string());
        let text = str::from_utf8(bytes).map_err(|error| refuse(&error))?;
        let frame: envelope::Frame<'_> = serde_json::from_str(text).map_err(|error| refuse(&error))?;
        let object = frame.object.get();
        match &*frame.kind {
            "ADDED" | "MODIFIED" => Ok(Frame::Applied(object.as_bytes())),
            "DELETED" => Ok(Frame::Deleted(object.as_bytes())),
            "BOOKMARK" => bookmark(Identity::peek(object.as_bytes())).map(Frame::Bookmark),
            "ERROR" => serde_json::from_str(object).map(Frame::Failed).map_err(|error| refuse(&error)),
            other => Err(NoFrame(format!("its type is {}", objects::quoted(other)))),
        }
    }

    fn peek(bytes: &[u8]) -> Option<Identity> {
        Identity::peek(bytes)
    }

    fn glimpse(bytes: &[u8]) -> Glimpse {
        Glimpse::of(bytes)
    }

    fn read(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object {
        let fitted = match str::from_utf8(bytes) {
            Err(error) => Err((None, ObjectError::shape(WHOLE, &error))),
            Ok(text) => match what {
                Resource::Services => {
                    fit(text, from_value::<ServiceWire<'_>>).map(|wire| service(&wire, provenance))
                }
                Resource::Imports => {
                    fit(text, from_value::<ImportWire<'_>>).map(|wire| import(&wire, provenance))
                }
                Resource::Slices | Resource::ImportedSlices => {
                    fit(text, from_value::<SliceWire<'_>>).map(|wire| slice(&wire, provenance))
                }
                Resource::Node => fit(text, from_value::<Value>).map(|it| vec![Message::Node(node(&it))]),
            },
        };
        fitted.map_or_else(
            |(value, error)| {
                let identity = Identity::peek(bytes).unwrap_or_default();
                refused(what, &identity, value, &error, provenance)
            },
            |messages| Object::new(messages, || named(what, &Identity::peek(bytes)?)),
        )
    }

    fn read_ahead(what: Resource, text: &str, provenance: &Provenance) -> Ahead<Object> {
        let messages = match what {
            Resource::Services => first::<ServiceWire<'_>>(text).map(|wire| service(&wire, provenance)),
            Resource::Imports => first::<ImportWire<'_>>(text).map(|wire| import(&wire, provenance)),
            Resource::Slices | Resource::ImportedSlices => {
                first::<SliceWire<'_>>(text).map(|wire| slice(&wire, provenance))
            }
            Resource::Node => Ahead::Unfit,
        };
        messages.map(|messages| Object::new(messages, || named(what, &Identity::peek(text.as_bytes())?)))
    }

    fn skip_ahead(text: &str) -> Ahead<()> {
        first::<IgnoredAny>(text).map(|_| ())
    }

    fn status(body: &[u8]) -> Option<Status> {
        serde_json::from_slice(body).ok()
    }
}

/// The object at the beginning of a text.
fn first<'t, Wire: Deserialize<'t>>(text: &'t str) -> Ahead<Wire> {
    let mut objects = serde_json::Deserializer::from_str(text).into_iter();
    match objects.next() {
        Some(Ok(wire)) => Ahead::Read(wire, objects.byte_offset()),
        Some(Err(error)) if !error.is_eof() => Ahead::Unfit,
        Some(Err(_)) | None => Ahead::Cut,
    }
}

/// A field that is a text, empty if it is not.
fn word<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// All of a text as one object; `again` finds what does not fit.
fn fit<'t, Wire: Deserialize<'t>, Again>(
    text: &'t str,
    again: fn(&Value) -> Result<Again, ObjectError>,
) -> Result<Wire, (Option<Value>, ObjectError)> {
    serde_json::from_str(text).map_err(|error| match serde_json::from_str::<Value>(text) {
        Ok(value) => {
            let known = again(&value).err();
            let error = known.unwrap_or_else(|| ObjectError::shape(WHOLE, &error));
            (Some(value), error)
        }
        Err(error) => (None, ObjectError::shape(WHOLE, &format!("no JSON: {error}"))),
    })
}

fn node(node: &Value) -> Described {
    let mut wire = NodeWire::default();
    let list =
        |pointer| node.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (key, value) in node.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten() {
        wire.label(key, value.as_str().unwrap_or_default());
    }
    for address in list("/status/addresses") {
        wire.address(word(address, "type"), word(address, "address"));
    }
    for taint in list("/spec/taints") {
        wire.taint(word(taint, "key"));
    }
    wire.is_deleted = node.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string);
    wire.described()
}

#[cfg(test)]
mod tests;
