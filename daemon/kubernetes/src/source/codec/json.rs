//! Decodes an apiserver's replies in JSON.
//!
//! Invariant: an object's text is checked for UTF-8 once and parsed once; only an object that does not fit its type is
//! parsed again, to find the path of the error.

use std::fmt::Display;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::node::NodeWire;
use super::{
    Codec, FrameError, Framer, Splitter, WHOLE_OBJECT, WatchFrame, bookmark_version, import_messages,
    rejected_object, service_messages, slice_messages,
};
use crate::own_node::NodeDescription;
use crate::source::envelope::{self, EventPeek, Identity, Status};
use crate::source::line::Lines;
use crate::source::object::{Object, SinkMessage, identify_object};
use crate::source::page::{ItemSink, JsonPage, ListFrame, PageError, ReadAhead};
use crate::source::piece::Piece;
use crate::source::resource::Resource;
use holdfast_objects::{
    self as objects, ImportWire, ObjectError, Provenance, ServiceWire, SliceWire, from_value,
};

#[derive(Debug)]
pub(crate) struct Json;

impl Splitter for JsonPage {
    fn push_chunk(&mut self, chunk: &[u8], items: &mut dyn ItemSink) -> Result<(), PageError> {
        self.push_chunk(chunk, items)
    }

    fn finish(self, items: &mut dyn ItemSink) -> Result<ListFrame, PageError> {
        self.finish(items)
    }
}

impl Framer for Lines {
    fn push_chunk(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        self.push_chunk(chunk, each);
    }
}

impl Codec for Json {
    type Page = JsonPage;
    type Frames = Lines;

    fn parse_frame(bytes: &[u8]) -> Result<WatchFrame<'_>, FrameError> {
        let refuse = |error: &dyn Display| FrameError(error.to_string());
        let text = str::from_utf8(bytes).map_err(|error| refuse(&error))?;
        let frame: envelope::JsonFrame<'_> = serde_json::from_str(text).map_err(|error| refuse(&error))?;
        let object = frame.object.get();
        match &*frame.kind {
            "ADDED" | "MODIFIED" => Ok(WatchFrame::Applied(object.as_bytes())),
            "DELETED" => Ok(WatchFrame::Deleted(object.as_bytes())),
            "BOOKMARK" => {
                bookmark_version(Identity::peek_metadata(object.as_bytes())).map(WatchFrame::Bookmark)
            }
            "ERROR" => serde_json::from_str(object).map(WatchFrame::Failed).map_err(|error| refuse(&error)),
            other => Err(FrameError(format!("its type is {}", objects::quote_value(other)))),
        }
    }

    fn peek_identity(bytes: &[u8]) -> Option<Identity> {
        Identity::peek_metadata(bytes)
    }

    fn peek_event(bytes: &[u8]) -> EventPeek {
        EventPeek::from_json(bytes)
    }

    fn parse_object(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object {
        let fitted = match str::from_utf8(bytes) {
            Err(error) => Err((None, ObjectError::shape(WHOLE_OBJECT, &error))),
            Ok(text) => match what {
                Resource::Services => parse_exact(text, from_value::<ServiceWire<'_>>)
                    .map(|wire| service_messages(&wire, provenance)),
                Resource::Imports => parse_exact(text, from_value::<ImportWire<'_>>)
                    .map(|wire| import_messages(&wire, provenance)),
                Resource::Slices | Resource::ImportedSlices => parse_exact(text, from_value::<SliceWire<'_>>)
                    .map(|wire| slice_messages(&wire, provenance)),
                Resource::Node => {
                    parse_exact(text, from_value::<Value>).map(|it| vec![SinkMessage::Node(parse_node(&it))])
                }
            },
        };
        fitted.map_or_else(
            |(value, error)| {
                let identity = Identity::peek_metadata(bytes).unwrap_or_default();
                rejected_object(what, &identity, value, &error, provenance)
            },
            |messages| Object::new(messages, || identify_object(what, &Identity::peek_metadata(bytes)?)),
        )
    }

    fn parse_ahead(what: Resource, text: &str, provenance: &Provenance) -> ReadAhead<Object> {
        let messages = match what {
            Resource::Services => {
                parse_first::<ServiceWire<'_>>(text).map(|wire| service_messages(&wire, provenance))
            }
            Resource::Imports => {
                parse_first::<ImportWire<'_>>(text).map(|wire| import_messages(&wire, provenance))
            }
            Resource::Slices | Resource::ImportedSlices => {
                parse_first::<SliceWire<'_>>(text).map(|wire| slice_messages(&wire, provenance))
            }
            Resource::Node => ReadAhead::Unfit,
        };
        messages.map(|messages| {
            Object::new(messages, || identify_object(what, &Identity::peek_metadata(text.as_bytes())?))
        })
    }

    fn skip_ahead(text: &str) -> ReadAhead<()> {
        parse_first::<IgnoredAny>(text).map(|_| ())
    }

    fn parse_status(body: &[u8]) -> Option<Status> {
        serde_json::from_slice(body).ok()
    }
}

/// Parses the object at the start of a text.
fn parse_first<'t, Wire: Deserialize<'t>>(text: &'t str) -> ReadAhead<Wire> {
    let mut objects = serde_json::Deserializer::from_str(text).into_iter();
    match objects.next() {
        Some(Ok(wire)) => ReadAhead::Read(wire, objects.byte_offset()),
        Some(Err(error)) if !error.is_eof() => ReadAhead::Unfit,
        Some(Err(_)) | None => ReadAhead::Cut,
    }
}

/// A field as text; empty if it is not a string.
fn text_field<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Parses the whole text as one object; `again` finds the field that does not fit.
fn parse_exact<'t, Wire: Deserialize<'t>, Again>(
    text: &'t str,
    again: fn(&Value) -> Result<Again, ObjectError>,
) -> Result<Wire, (Option<Value>, ObjectError)> {
    serde_json::from_str(text).map_err(|error| match serde_json::from_str::<Value>(text) {
        Ok(value) => {
            let known = again(&value).err();
            let error = known.unwrap_or_else(|| ObjectError::shape(WHOLE_OBJECT, &error));
            (Some(value), error)
        }
        Err(error) => (None, ObjectError::shape(WHOLE_OBJECT, &format!("no JSON: {error}"))),
    })
}

fn parse_node(node: &Value) -> NodeDescription {
    let mut wire = NodeWire::default();
    let list =
        |pointer| node.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (key, value) in node.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten() {
        wire.add_label(key, value.as_str().unwrap_or_default());
    }
    for address in list("/status/addresses") {
        wire.add_address(text_field(address, "type"), text_field(address, "address"));
    }
    for taint in list("/spec/taints") {
        wire.add_taint(text_field(taint, "key"));
    }
    wire.is_deleted = node.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string);
    wire.to_description()
}

#[cfg(test)]
mod tests;
