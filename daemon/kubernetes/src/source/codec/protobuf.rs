//! Answers of an apiserver in protobuf, taken apart: half the bytes of JSON, and less work for either side.
//!
//! Invariant: an object that cannot be read to its end is doubtful, not bad: it is asked for again alone, as JSON. What
//! a readable object says is judged as if it had come as JSON.

mod frames;
mod list;
mod objects;

use std::borrow::Cow;
use std::fmt::Display;

use holdfast_objects::{ObjectError, Provenance, ServiceWire, SliceWire};

use super::node::NodeWire;
use super::{Codec, Frame, NoFrame, WHOLE, refused, service, slice};
use crate::source::envelope::{Glimpse, Identity, Status};
use crate::source::object::{Message as Told, Object, named};
use crate::source::resource::Resource;
use holdfast_objects::protobuf::{Field, Fields, Malformed};
use objects::Message;

/// What stands before each message that stands alone.
const MAGIC: &[u8] = b"k8s\0";

/// The fields of `runtime.Unknown`, in which each such message is wrapped.
const TYPE_META: u32 = 1;
const UNKNOWN_RAW: u32 = 2;

/// The field of every object that says its name.
const METADATA: u32 = 1;

#[derive(Debug)]
pub(crate) struct Protobuf;

impl Codec for Protobuf {
    type Page = list::List;
    type Frames = frames::Frames;

    fn frame(bytes: &[u8]) -> Result<Frame<'_>, NoFrame> {
        let refuse = |malformed: Malformed| NoFrame(malformed.to_string());
        let (kind, object) = event(Fields::of(bytes)).map_err(refuse)?;
        let object = alone(object.unwrap_or_default()).map_err(refuse)?;
        let object = object.ok_or_else(|| NoFrame("it has no object".to_owned()))?;
        match &*kind {
            "ADDED" | "MODIFIED" => Ok(Frame::Applied(object)),
            "DELETED" => Ok(Frame::Deleted(object)),
            "BOOKMARK" => super::bookmark(Self::peek(object)).map(Frame::Bookmark),
            "ERROR" => status(object).map(Frame::Failed).map_err(refuse),
            other => Err(NoFrame(format!("its type is {}", holdfast_objects::quoted(other)))),
        }
    }

    fn peek(bytes: &[u8]) -> Option<Identity> {
        let mut found = None;
        let mut fields = Fields::of_beginning(bytes);
        // The name stands first of all, so that something wrong behind it leaves it legible.
        while let Ok(Some(field)) = fields.next_field() {
            if field.number == METADATA && identify(found.get_or_insert_default(), field).is_err() {
                break;
            }
        }
        found
    }

    fn glimpse(bytes: &[u8]) -> Glimpse {
        let mut found = Glimpse::default();
        let Ok((kind, object)) = event(Fields::of_beginning(bytes)) else { return found };
        found.kind = Some(kind.into_owned()).filter(|kind| !kind.is_empty());
        let object = object.and_then(|object| object.strip_prefix(MAGIC));
        let mut fields = Fields::of_beginning(object.unwrap_or_default());
        while let Ok(Some(field)) = fields.next_field() {
            if field.number == UNKNOWN_RAW {
                found.identity = field.bytes().ok().and_then(Self::peek);
            }
        }
        found
    }

    fn read(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object {
        let read = match what {
            Resource::Services => ServiceWire::of(bytes).map(|wire| service(&wire, provenance)),
            Resource::Slices | Resource::ImportedSlices => SliceWire::of(bytes).map(|mut wire| {
                // An apiserver keeps no difference between no list and an empty one, and JSON has it as null.
                wire.endpoints.get_or_insert_default();
                slice(&wire, provenance)
            }),
            Resource::Node => NodeWire::of(bytes).map(|node| vec![Told::Node(node.described())]),
            // No apiserver writes custom resources as protobuf, so these bytes are something else.
            Resource::Imports => Err(Malformed::Mistyped(METADATA)),
        };
        read.map_or_else(
            |malformed| Object { is_doubtful: true, ..doubtful(what, bytes, &malformed, provenance) },
            |messages| {
                let object = Object::new(messages, || named(what, &Self::peek(bytes)?));
                // Each object has a name. Where none can be found, something else was read than was written.
                Object { is_doubtful: object.name.is_none(), ..object }
            },
        )
    }

    fn status(body: &[u8]) -> Option<Status> {
        status(alone(body).ok()??).ok()
    }
}

/// What is told of a doubtful object if it cannot be had as JSON.
fn doubtful(what: Resource, bytes: &[u8], reason: &dyn Display, provenance: &Provenance) -> Object {
    let identity = Protobuf::peek(bytes).unwrap_or_default();
    refused(what, &identity, None, &ObjectError::shape(WHOLE, &format!("no protobuf: {reason}")), provenance)
}

/// The type of an event, and the bytes of its object, wrapped.
fn event<'a>(mut fields: Fields<'a>) -> Result<(Cow<'a, str>, Option<&'a [u8]>), Malformed> {
    const TYPE: u32 = 1;
    const OBJECT: u32 = 2;
    const RAW: u32 = 1;
    let (mut kind, mut object) = (Cow::Borrowed(""), None);
    while let Some(field) = fields.next_field()? {
        match field.number {
            TYPE => kind = field.text()?,
            OBJECT => object = fields.alike(field.bytes()?).last(RAW)?.or(object),
            _ => {}
        }
    }
    Ok((kind, object))
}

/// The message that stands alone in these bytes; none if nothing says that they are one.
fn alone(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let Some(unknown) = bytes.strip_prefix(MAGIC) else { return Ok(None) };
    Fields::of(unknown).last(UNKNOWN_RAW)
}

/// `apiVersion` and `kind`.
fn type_meta(message: &[u8]) -> Result<(String, String), Malformed> {
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut fields = Fields::of(message);
    while let Some(field) = fields.next_field()? {
        match field.number {
            1 => api_version = field.text()?.into_owned(),
            2 => kind = field.text()?.into_owned(),
            _ => {}
        }
    }
    Ok((api_version, kind))
}

fn status(message: &[u8]) -> Result<Status, Malformed> {
    let mut status = Status::default();
    let mut fields = Fields::of(message);
    let filled = |field: Field<'_>| Ok(Some(field.text()?.into_owned()).filter(|text| !text.is_empty()));
    while let Some(field) = fields.next_field()? {
        match field.number {
            3 => status.message = filled(field)?,
            4 => status.reason = filled(field)?,
            6 => status.code = u16::try_from(field.number()?).ok().filter(|code| *code != 0),
            _ => {}
        }
    }
    Ok(status)
}

/// Takes name and version from the metadata of an object.
fn identify(identity: &mut Identity, metadata: Field<'_>) -> Result<(), Malformed> {
    const HEADLESS: &str = "service.kubernetes.io/headless";
    let mut fields = metadata.message()?;
    while let Some(field) = fields.next_field()? {
        let text = || field.text().map(|text| Some(text.into_owned()));
        match field.number {
            1 => identity.name = text()?,
            3 => identity.namespace = text()?,
            5 => identity.uid = text()?,
            6 => identity.resource_version = text()?,
            11 if field.message()?.last(1)? == Some(HEADLESS.as_bytes()) => identity.set_headless(),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
