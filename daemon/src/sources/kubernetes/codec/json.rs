//! Answers of an apiserver in JSON, taken apart.
//!
//! Invariant: the text of an object is checked for UTF-8 once and read once; only an object that does not fit its type
//! is read again, for the path to what is wrong.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::Rejection;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{Codec, Frame, Framer, NoFrame, Splitter};
use crate::node::Described;
use crate::sources::kubernetes::envelope::{self, Glimpse, Identity};
use crate::sources::kubernetes::line::Lines;
use crate::sources::kubernetes::object::{Message, Object, named};
use crate::sources::kubernetes::page::{Ahead, Items, ListFrame, NoPage, Page};
use crate::sources::kubernetes::piece::Piece;
use crate::sources::kubernetes::resource::Resource;
use holdfast_objects::{self as objects, Kind, ObjectError, Provenance, ServiceWire, SliceWire, from_value};

/// The label by which a Node says in which zone it is.
const ZONE_LABEL: &str = "/metadata/labels/topology.kubernetes.io~1zone";

/// How many addresses of a Node are looked at. A kubelet writes one or two of each kind.
const NODE_ADDRESSES_MAX: usize = 256;

/// The taint that a node gets before it is taken away.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// How many taints of a Node are looked at. A node has a handful.
const NODE_TAINTS_MAX: usize = 256;

/// What is named as wrong where no field can be named.
const WHOLE: &str = "the object";

#[derive(Debug)]
pub(in crate::sources::kubernetes) struct Json;

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
    const OBJECTS: &'static str = "application/json";
    const METADATA: &'static str =
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
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
            "BOOKMARK" => bookmark(object).map(Frame::Bookmark),
            "ERROR" => serde_json::from_str(object).map(Frame::Failed).map_err(|error| refuse(&error)),
            other => Err(NoFrame(format!("its type is {}", objects::quoted(other)))),
        }
    }

    fn peek(bytes: &[u8]) -> Option<Identity> {
        Identity::peek(bytes)
    }

    fn is_deletion(bytes: &[u8]) -> Option<bool> {
        match &*Glimpse::of(bytes).kind? {
            "ADDED" | "MODIFIED" => Some(false),
            "DELETED" => Some(true),
            _ => None,
        }
    }

    fn read(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object {
        let fitted = match str::from_utf8(bytes) {
            Err(error) => Err((None, ObjectError::shape(WHOLE, &error))),
            Ok(text) => match what {
                Resource::Services => {
                    fit(text, from_value::<ServiceWire<'_>>).map(|wire| service(&wire, provenance))
                }
                Resource::Slices => {
                    fit(text, from_value::<SliceWire<'_>>).map(|wire| slice(&wire, provenance))
                }
                Resource::Node => fit(text, from_value::<Value>).map(|it| vec![node(&it)]),
            },
        };
        fitted.map_or_else(
            |(value, error)| refused(what, bytes, value, &error, provenance),
            |messages| Object::new(messages, || named(what, &Identity::peek(bytes)?)),
        )
    }

    fn read_ahead(what: Resource, text: &str, provenance: &Provenance) -> Ahead<Object> {
        let messages = match what {
            Resource::Services => first::<ServiceWire<'_>>(text).map(|wire| service(&wire, provenance)),
            Resource::Slices => first::<SliceWire<'_>>(text).map(|wire| slice(&wire, provenance)),
            Resource::Node => Ahead::Unfit,
        };
        messages.map(|messages| Object::new(messages, || named(what, &Identity::peek(text.as_bytes())?)))
    }

    fn skip_ahead(text: &str) -> Ahead<()> {
        first::<IgnoredAny>(text).map(|_| ())
    }

    fn refuse(what: Resource, bytes: &[u8], reason: &dyn Display, provenance: &Provenance) -> Object {
        refused(what, bytes, None, &ObjectError::shape(WHOLE, reason), provenance)
    }
}

/// Reads the version of a bookmark, which is shaped like an object and must not be read as one.
fn bookmark(object: &str) -> Result<String, NoFrame> {
    let version = Identity::peek(object.as_bytes()).and_then(|identity| identity.resource_version);
    version.filter(|it| !it.is_empty()).ok_or_else(|| NoFrame("a bookmark without a version".to_owned()))
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

fn service(wire: &ServiceWire, provenance: &Provenance) -> Vec<Message> {
    let event = match objects::service(wire, provenance) {
        Ok(facts) => Event::ServiceApplied(Arc::new(facts)),
        Err(rejection) => Event::Rejected(rejection),
    };
    vec![Message::Event(event)]
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

fn node(node: &Value) -> Message {
    let zone = node.pointer(ZONE_LABEL).and_then(Value::as_str);
    let zone = zone.filter(|zone| !zone.is_empty()).map(Into::into);
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array).map(Vec::as_slice);
    let addresses = primaries(addresses.unwrap_or_default());
    Message::Node(Described { zone, addresses, is_leaving: is_leaving(node) })
}

/// Whether the node is about to go, as kube-proxy judges it: its object is being deleted, or the autoscaler says that
/// it will be.
fn is_leaving(node: &Value) -> bool {
    let taints =
        node.pointer("/spec/taints").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is_deleted = node.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string);
    is_deleted || taints.iter().take(NODE_TAINTS_MAX).any(|taint| taint["key"] == TO_BE_DELETED)
}

/// Of each family the first internal address, else the first external one, as kube-proxy takes them.
fn primaries(addresses: &[Value]) -> Vec<IpAddr> {
    let of_kind = |kind: &'static str| {
        let addresses = addresses.iter().take(NODE_ADDRESSES_MAX).filter(move |it| it["type"] == kind);
        addresses.filter_map(|it| Some(it["address"].as_str()?.parse::<IpAddr>().ok()?.to_canonical()))
    };
    let all: Vec<_> = of_kind("InternalIP").chain(of_kind("ExternalIP")).collect();
    let first = |is_v4| all.iter().copied().find(|address| address.is_ipv4() == is_v4);
    [first(true), first(false)].into_iter().flatten().collect()
}

/// An object that does not even fit its type, named as far as its metadata tells.
fn refused(
    what: Resource,
    bytes: &[u8],
    value: Option<Value>,
    error: &ObjectError,
    provenance: &Provenance,
) -> Object {
    let identity = Identity::peek(bytes).unwrap_or_default();
    let known = || json!({"metadata": {"namespace": identity.namespace, "name": identity.name}});
    let value = value.unwrap_or_else(known);
    let messages = rejection(what, &value, error, provenance).map(|it| Message::Event(Event::Rejected(it)));
    Object { name: named(what, &identity), messages: messages.into_iter().collect(), is_bad: true }
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
        Resource::Services => Kind::Service,
        Resource::Slices => Kind::Slice,
        Resource::Node => return None,
    };
    Some(objects::reject(kind, value, error, provenance))
}

#[cfg(test)]
mod tests;
