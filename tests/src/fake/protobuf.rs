//! Encodes the same objects in protobuf, as Kubernetes' generated code does.
//!
//! Invariant: as in Go, a field that is no pointer is written even if it is empty. A JSON value of the wrong type is
//! written as an unreadable field, so a malformed object is malformed in both encodings.

use serde_json::Value;

use super::Kind;

/// The prefix of each standalone message.
const MAGIC: &[u8] = b"k8s\0";

/// Wire types: a number, bytes, and the start of a group, which no reader accepts.
const NUMBER: u64 = 0;
const BYTES: u64 = 2;
const GROUP: u64 = 3;

/// A field of a message: its name in JSON, its number, its type.
type Field = (&'static str, u64, Type);

#[derive(Clone, Copy)]
enum Type {
    /// Texts and numbers that are always written.
    Text,
    Number,
    /// Texts, numbers and booleans that may be absent.
    Given,
    Texts,
    /// Seconds since 1970.
    Time,
    /// A map of texts.
    Map,
    /// A message, and a list of messages.
    One(&'static [Field]),
    Many(&'static [Field]),
    /// A port by number or by name.
    Port,
    /// Any JSON, verbatim.
    Json,
    /// Bytes that no protobuf reader accepts.
    Broken,
}

use Type::{Broken, Given, Json, Many, Map, Number, One, Port, Text, Texts, Time};

const META: &[Field] = &[
    ("name", 1, Text),
    ("generateName", 2, Text),
    ("namespace", 3, Text),
    ("selfLink", 4, Text),
    ("uid", 5, Text),
    ("resourceVersion", 6, Text),
    ("generation", 7, Number),
    ("creationTimestamp", 8, Time),
    ("deletionTimestamp", 9, Time),
    ("labels", 11, Map),
    ("annotations", 12, Map),
    ("ownerReferences", 13, Many(OWNER)),
    ("finalizers", 14, Texts),
    ("managedFields", 17, Many(MANAGED)),
];

const OWNER: &[Field] = &[
    ("kind", 1, Text),
    ("name", 3, Text),
    ("uid", 4, Text),
    ("apiVersion", 5, Text),
    ("controller", 6, Given),
];

const MANAGED: &[Field] = &[
    ("manager", 1, Text),
    ("operation", 2, Text),
    ("apiVersion", 3, Text),
    ("time", 4, Time),
    ("fieldsType", 6, Text),
    ("fieldsV1", 7, Json),
    ("subresource", 8, Text),
];

const SERVICE: &[Field] = &[
    ("metadata", 1, One(META)),
    ("spec", 2, One(SERVICE_SPEC)),
    ("status", 3, One(SERVICE_STATUS)),
    ONLY_IN_JSON,
];

const SERVICE_SPEC: &[Field] = &[
    ("ports", 1, Many(SERVICE_PORT)),
    ("selector", 2, Map),
    ("clusterIP", 3, Text),
    ("type", 4, Text),
    ("externalIPs", 5, Texts),
    ("sessionAffinity", 7, Text),
    ("loadBalancerIP", 8, Text),
    ("loadBalancerSourceRanges", 9, Texts),
    ("externalName", 10, Text),
    ("externalTrafficPolicy", 11, Text),
    ("healthCheckNodePort", 12, Number),
    ("publishNotReadyAddresses", 13, Given),
    ("sessionAffinityConfig", 14, One(&[("clientIP", 1, One(&[("timeoutSeconds", 1, Given)]))])),
    ("ipFamilyPolicy", 17, Given),
    ("clusterIPs", 18, Texts),
    ("ipFamilies", 19, Texts),
    ("allocateLoadBalancerNodePorts", 20, Given),
    ("loadBalancerClass", 21, Given),
    ("internalTrafficPolicy", 22, Given),
    ("trafficDistribution", 23, Given),
];

const SERVICE_PORT: &[Field] = &[
    ("name", 1, Text),
    ("protocol", 2, Text),
    ("port", 3, Number),
    ("targetPort", 4, Port),
    ("nodePort", 5, Number),
    ("appProtocol", 6, Given),
];

const SERVICE_STATUS: &[Field] = &[("loadBalancer", 1, One(&[("ingress", 1, Many(INGRESS))]))];

const INGRESS: &[Field] = &[("ip", 1, Text), ("hostname", 2, Text), ("ipMode", 3, Given)];

const SLICE: &[Field] = &[
    ("metadata", 1, One(META)),
    ("endpoints", 2, Many(ENDPOINT)),
    ("ports", 3, Many(SLICE_PORT)),
    ("addressType", 4, Text),
    ONLY_IN_JSON,
];

/// A field that Kubernetes does not have: it makes an object malformed in protobuf and valid in JSON.
const ONLY_IN_JSON: Field = ("onlyInJson", 99, Broken);

const ENDPOINT: &[Field] = &[
    ("addresses", 1, Texts),
    ("conditions", 2, One(&[("ready", 1, Given), ("serving", 2, Given), ("terminating", 3, Given)])),
    ("hostname", 3, Given),
    ("targetRef", 4, One(TARGET)),
    ("deprecatedTopology", 5, Map),
    ("nodeName", 6, Given),
    ("zone", 7, Given),
    (
        "hints",
        8,
        One(&[("forZones", 1, Many(&[("name", 1, Text)])), ("forNodes", 2, Many(&[("name", 1, Text)]))]),
    ),
];

const TARGET: &[Field] = &[
    ("kind", 1, Text),
    ("namespace", 2, Text),
    ("name", 3, Text),
    ("uid", 4, Text),
    ("apiVersion", 5, Text),
    ("resourceVersion", 6, Text),
    ("fieldPath", 7, Text),
];

const SLICE_PORT: &[Field] =
    &[("name", 1, Given), ("protocol", 2, Given), ("port", 3, Given), ("appProtocol", 4, Given)];

const NODE: &[Field] = &[
    ("metadata", 1, One(META)),
    ("spec", 2, One(&[("podCIDR", 1, Text), ("taints", 5, Many(TAINT))])),
    (
        "status",
        3,
        One(&[("phase", 3, Text), ("addresses", 5, Many(&[("type", 1, Text), ("address", 2, Text)]))]),
    ),
];

const TAINT: &[Field] = &[("key", 1, Text), ("value", 2, Text), ("effect", 3, Text)];

const METADATA: &[Field] = &[("metadata", 1, One(META))];

const STATUS: &[Field] = &[
    ("metadata", 1, One(LIST_META)),
    ("status", 2, Text),
    ("message", 3, Text),
    ("reason", 4, Text),
    ("code", 6, Number),
];

const LIST_META: &[Field] = &[
    ("selfLink", 1, Text),
    ("resourceVersion", 2, Text),
    ("continue", 3, Text),
    ("remainingItemCount", 4, Given),
];

fn fields_of(kind: &str) -> &'static [Field] {
    match kind {
        "Service" => SERVICE,
        "EndpointSlice" => SLICE,
        "Node" => NODE,
        "Status" => STATUS,
        _ => &[],
    }
}

/// An encoded object for lists; empty for a kind without protobuf.
#[derive(Debug)]
pub(super) struct Item {
    message: Vec<u8>,
    /// The length of the metadata, which comes first.
    metadata: usize,
}

impl Item {
    pub(super) fn encode(kind: Kind, object: &Value) -> Self {
        let (word, _) = kind.names();
        let message = message(fields_of(word), object);
        let metadata = if message.is_empty() { 0 } else { self::message(METADATA, object).len() };
        Self { message, metadata }
    }

    pub(super) fn bytes(&self, only_metadata: bool) -> &[u8] {
        if only_metadata { self.message.get(..self.metadata).unwrap_or_default() } else { &self.message }
    }
}

/// Whether lists and watches of a kind have a protobuf encoding.
pub(super) const fn has_protobuf(kind: Kind) -> bool {
    matches!(kind, Kind::Services | Kind::Slices | Kind::Nodes)
}

/// A list; its own metadata is given as JSON.
pub(super) fn list<'a>(
    kind: &str,
    api_version: &str,
    meta: &Value,
    items: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut list = Vec::new();
    put_bytes(&mut list, 1, &message(LIST_META, meta));
    items.for_each(|item| put_bytes(&mut list, 2, item));
    alone(&format!("{kind}List"), api_version, &list)
}

/// A standalone object with its kind.
pub(super) fn object(object: &Value) -> Vec<u8> {
    let word = |key| object.get(key).and_then(Value::as_str).unwrap_or_default();
    alone(word("kind"), word("apiVersion"), &message(fields_of(word("kind")), object))
}

/// Encodes the line of a watch as a frame. A malformed line becomes a malformed frame.
pub(super) fn frame(line: &str) -> Vec<u8> {
    let mut event = Vec::new();
    match serde_json::from_str::<Value>(line) {
        Ok(told) => {
            put_bytes(&mut event, 1, told.get("type").and_then(Value::as_str).unwrap_or_default().as_bytes());
            let mut raw = Vec::new();
            put_bytes(&mut raw, 1, &object(told.get("object").unwrap_or(&Value::Null)));
            put_bytes(&mut event, 2, &raw);
        }
        Err(_) => event.extend_from_slice(line.as_bytes()),
    }
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[..], &event].concat()
}

fn alone(kind: &str, api_version: &str, raw: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    put_bytes(&mut types, 1, api_version.as_bytes());
    put_bytes(&mut types, 2, kind.as_bytes());
    let mut out = MAGIC.to_vec();
    put_bytes(&mut out, 1, &types);
    put_bytes(&mut out, 2, raw);
    put_bytes(&mut out, 3, b"");
    put_bytes(&mut out, 4, b"");
    out
}

fn message(fields: &[Field], object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, number, kind) in fields {
        put(&mut out, *number, *kind, object.get(name).unwrap_or(&Value::Null));
    }
    out
}

fn put(out: &mut Vec<u8>, number: u64, kind: Type, value: &Value) {
    match (kind, value) {
        (Text, Value::Null) => put_bytes(out, number, b""),
        (Number, Value::Null) => put_number(out, number, 0),
        (Time, Value::Null) if number == 8 => put_bytes(out, number, b""),
        (Given | Texts | Time | Map | One(_) | Many(_) | Port | Json | Broken, Value::Null) => {}
        (Text | Given, Value::String(text)) => put_bytes(out, number, text.as_bytes()),
        (Number | Given, Value::Number(value)) => match value.as_i64() {
            Some(value) => put_number(out, number, value.cast_unsigned()),
            None => put_key(out, number, GROUP),
        },
        (Given, Value::Bool(truth)) => put_number(out, number, u64::from(*truth)),
        (Texts | Many(_), Value::Array(items)) => {
            let one = if let Many(fields) = kind { One(fields) } else { Text };
            items.iter().for_each(|item| put(out, number, one, if item.is_null() { &EMPTY } else { item }));
        }
        (Time, Value::String(text)) => match holdfast_objects::parse_time(text) {
            Some(time) => put_bytes(out, number, &counted(time.0.cast_unsigned())),
            None => put_key(out, number, GROUP),
        },
        (Map, Value::Object(entries)) => {
            for (key, value) in entries {
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, key.as_bytes());
                put(&mut entry, 2, Text, value);
                put_bytes(out, number, &entry);
            }
        }
        (One(fields), Value::Object(_)) => put_bytes(out, number, &message(fields, value)),
        (Port, Value::Number(_)) => put_port(out, number, (2, Number), value),
        (Port, Value::String(_)) => put_port(out, number, (3, Text), value),
        (Json, value) => {
            let mut raw = Vec::new();
            put_bytes(&mut raw, 1, value.to_string().as_bytes());
            put_bytes(out, number, &raw);
        }
        _ => put_key(out, number, GROUP),
    }
}

/// Stands for a null in a list.
const EMPTY: Value = Value::Bool(false);

fn put_port(out: &mut Vec<u8>, number: u64, (at, kind): (u64, Type), value: &Value) {
    let mut port = Vec::new();
    put(&mut port, at, kind, value);
    put_bytes(out, number, &port);
}

/// A time with `seconds` and no `nanos`.
fn counted(seconds: u64) -> Vec<u8> {
    let mut time = Vec::new();
    put_number(&mut time, 1, seconds);
    put_number(&mut time, 2, 0);
    time
}

fn put_key(out: &mut Vec<u8>, number: u64, kind: u64) {
    put_varint(out, number << 3 | kind);
}

fn put_number(out: &mut Vec<u8>, number: u64, value: u64) {
    put_key(out, number, NUMBER);
    put_varint(out, value);
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_key(out, number, BYTES);
    put_varint(out, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
