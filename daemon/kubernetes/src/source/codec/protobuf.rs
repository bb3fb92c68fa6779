//! Decodes an apiserver's replies in protobuf: half the bytes of JSON, and less work for both sides.
//!
//! Invariant: an object that cannot be decoded to its end is doubtful, not invalid: it is refetched as JSON. A decoded
//! object is validated like one from JSON.

mod frames;
mod list;
mod objects;

use std::borrow::Cow;
use std::fmt::Display;

use holdfast_objects::{ObjectError, Provenance, ServiceWire, SliceWire};

use super::node::NodeWire;
use super::{Codec, FrameError, WHOLE_OBJECT, WatchFrame, rejected_object, service_messages, slice_messages};
use crate::source::envelope::{EventPeek, Identity, Status};
use crate::source::object::{Object, SinkMessage as Told, identify_object};
use crate::source::resource::Resource;
use holdfast_objects::protobuf::{DecodeError, Field, Fields};
use objects::ProtobufMessage;

/// The prefix of each standalone message.
const MAGIC: &[u8] = b"k8s\0";

/// The fields of `runtime.Unknown`, which wraps each standalone message.
const TYPE_META: u32 = 1;
const UNKNOWN_RAW: u32 = 2;

/// The field with every object's name.
const METADATA: u32 = 1;

#[derive(Debug)]
pub(crate) struct Protobuf;

impl Codec for Protobuf {
    type Page = list::ProtobufList;
    type Frames = frames::Frames;

    fn parse_frame(bytes: &[u8]) -> Result<WatchFrame<'_>, FrameError> {
        let refuse = |malformed: DecodeError| FrameError(malformed.to_string());
        let (kind, object) = parse_event(Fields::new(bytes)).map_err(refuse)?;
        let object = unwrap_unknown(object.unwrap_or_default()).map_err(refuse)?;
        let object = object.ok_or_else(|| FrameError("it has no object".to_owned()))?;
        match &*kind {
            "ADDED" | "MODIFIED" => Ok(WatchFrame::Applied(object)),
            "DELETED" => Ok(WatchFrame::Deleted(object)),
            "BOOKMARK" => super::bookmark_version(Self::peek_identity(object)).map(WatchFrame::Bookmark),
            "ERROR" => decode_status(object).map(WatchFrame::Failed).map_err(refuse),
            other => Err(FrameError(format!("its type is {}", holdfast_objects::quote_value(other)))),
        }
    }

    fn peek_identity(bytes: &[u8]) -> Option<Identity> {
        let mut found = None;
        let mut fields = Fields::from_prefix(bytes);
        // The name comes first, so that it is readable even if later bytes are not.
        while let Ok(Some(field)) = fields.next_field() {
            if field.number == METADATA && read_identity(found.get_or_insert_default(), field).is_err() {
                break;
            }
        }
        found
    }

    fn peek_event(bytes: &[u8]) -> EventPeek {
        let mut found = EventPeek::default();
        let Ok((kind, object)) = parse_event(Fields::from_prefix(bytes)) else { return found };
        found.kind = Some(kind.into_owned()).filter(|kind| !kind.is_empty());
        let object = object.and_then(|object| object.strip_prefix(MAGIC));
        let mut fields = Fields::from_prefix(object.unwrap_or_default());
        while let Ok(Some(field)) = fields.next_field() {
            if field.number == UNKNOWN_RAW {
                found.identity = field.bytes().ok().and_then(Self::peek_identity);
            }
        }
        found
    }

    fn parse_object(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object {
        let read = match what {
            Resource::Services => ServiceWire::decode(bytes).map(|wire| service_messages(&wire, provenance)),
            Resource::Slices | Resource::ImportedSlices => SliceWire::decode(bytes).map(|mut wire| {
                // An apiserver does not distinguish a missing list from an empty one, and JSON has it as null.
                wire.endpoints.get_or_insert_default();
                slice_messages(&wire, provenance)
            }),
            Resource::Node => NodeWire::decode(bytes).map(|node| vec![Told::Node(node.to_description())]),
            // No apiserver encodes custom resources as protobuf, so these bytes are something else.
            Resource::Imports => Err(DecodeError::Mistyped(METADATA)),
        };
        read.map_or_else(
            |malformed| Object { is_doubtful: true, ..doubtful_object(what, bytes, &malformed, provenance) },
            |messages| {
                let object = Object::new(messages, || identify_object(what, &Self::peek_identity(bytes)?));
                // Every object has a name. Without one, the bytes were decoded wrongly.
                Object { is_doubtful: object.name.is_none(), ..object }
            },
        )
    }

    fn parse_status(body: &[u8]) -> Option<Status> {
        decode_status(unwrap_unknown(body).ok()??).ok()
    }
}

/// The rejection of a doubtful object that cannot be refetched as JSON.
fn doubtful_object(what: Resource, bytes: &[u8], reason: &dyn Display, provenance: &Provenance) -> Object {
    let identity = Protobuf::peek_identity(bytes).unwrap_or_default();
    rejected_object(
        what,
        &identity,
        None,
        &ObjectError::shape(WHOLE_OBJECT, &format!("no protobuf: {reason}")),
        provenance,
    )
}

/// The type of an event, and its wrapped object.
fn parse_event<'a>(mut fields: Fields<'a>) -> Result<(Cow<'a, str>, Option<&'a [u8]>), DecodeError> {
    const TYPE: u32 = 1;
    const OBJECT: u32 = 2;
    const RAW: u32 = 1;
    let (mut kind, mut object) = (Cow::Borrowed(""), None);
    while let Some(field) = fields.next_field()? {
        match field.number {
            TYPE => kind = field.text()?,
            OBJECT => object = fields.nested_fields(field.bytes()?).last_bytes(RAW)?.or(object),
            _ => {}
        }
    }
    Ok((kind, object))
}

/// Unwraps a standalone message; `None` if the prefix is missing.
fn unwrap_unknown(bytes: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
    let Some(unknown) = bytes.strip_prefix(MAGIC) else { return Ok(None) };
    Fields::new(unknown).last_bytes(UNKNOWN_RAW)
}

/// Reads `apiVersion` and `kind`.
fn parse_type_meta(message: &[u8]) -> Result<(String, String), DecodeError> {
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut fields = Fields::new(message);
    while let Some(field) = fields.next_field()? {
        match field.number {
            1 => api_version = field.text()?.into_owned(),
            2 => kind = field.text()?.into_owned(),
            _ => {}
        }
    }
    Ok((api_version, kind))
}

fn decode_status(message: &[u8]) -> Result<Status, DecodeError> {
    let mut status = Status::default();
    let mut fields = Fields::new(message);
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

/// Reads name and version from an object's metadata.
fn read_identity(identity: &mut Identity, metadata: Field<'_>) -> Result<(), DecodeError> {
    const HEADLESS: &str = "service.kubernetes.io/headless";
    let mut fields = metadata.message()?;
    while let Some(field) = fields.next_field()? {
        let text = || field.text().map(|text| Some(text.into_owned()));
        match field.number {
            1 => identity.name = text()?,
            3 => identity.namespace = text()?,
            5 => identity.uid = text()?,
            6 => identity.resource_version = text()?,
            11 if field.message()?.last_bytes(1)? == Some(HEADLESS.as_bytes()) => identity.set_headless(),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
