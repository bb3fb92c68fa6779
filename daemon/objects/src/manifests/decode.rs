//! Decodes one file into objects, each on its own.
//!
//! Invariant: a file that is not YAML or JSON is rejected whole; an object in a good file fails alone. An ignored kind
//! is reported once, however many objects have it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Rejection, ServiceFacts, SliceFacts};
use holdfast_core::keys::Source;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::{self as objects, Defaulting, ObjectError, ObjectKind, Provenance, ServiceWire, SliceWire};

/// The deepest accepted nesting, equal to `serde_json`'s own limit; real objects have about 20.
const DEPTH_MAX: usize = 128;

/// Anchors and aliases per file: some are convenient, masses are a bomb.
const ALIASES_MAX: usize = 1_000;

/// Nodes that aliases may expand to in one file; enough for a hundred large objects.
const ALIAS_EVENTS_MAX: usize = 100_000;

/// Documents in one YAML file, each an object or a list. A file has at most 64 MiB, a document at least two bytes.
const DOCUMENTS_MAX: usize = 100_000;

/// Events of the YAML parser for one file. The limit on the file size is the effective one.
const YAML_EVENTS_MAX: usize = 1 << 26;

/// How many ignored kinds are reported per file; a file with more is not meant for this daemon.
const KINDS_NAMED_MAX: usize = 16;

/// The longest kind or version, in characters, that is shown unquoted; real ones are shorter.
const KIND_LENGTH_MAX: usize = 60;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectFacts {
    Service(Arc<ServiceFacts>),
    Slice(Arc<SliceFacts>),
}

/// One file's version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectVersion {
    /// `None` if the object could not be parsed.
    pub facts: Option<ObjectFacts>,
    /// The faults of the object or of parts of it.
    pub rejections: Vec<Rejection>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileContents {
    pub objects: BTreeMap<ObjectKey, ObjectVersion>,
    /// Ignored kinds, each with the number of its objects in the file.
    pub ignored: BTreeMap<ObjectKey, usize>,
}

/// Decodes a file; `Err` says why nothing in it can be read.
pub fn decode_file(file: &Arc<str>, bytes: &[u8]) -> Result<FileContents, String> {
    let text = str::from_utf8(bytes).map_err(|error| format!("is not UTF-8: {error}"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let documents: Vec<Document> =
        if file.ends_with(".json") { parse_json(text)? } else { parse_yaml(text)? };
    let mut reading = Decoder::new(file);
    for (position, document) in documents.into_iter().enumerate() {
        reading.decode_document(&format!("document {}", position + 1), document);
    }
    Ok(reading.contents)
}

/// Parses a file into its documents as they are, whatever their kinds.
pub fn parse_documents(file: &str, bytes: &[u8]) -> Result<Vec<Value>, String> {
    let text = str::from_utf8(bytes).map_err(|error| format!("is not UTF-8: {error}"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if file.ends_with(".json") { parse_json(text) } else { parse_yaml(text) }
}

fn parse_json<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    let documents = serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>();
    documents.map_err(|error| format!("is not JSON: {error}"))
}

fn parse_yaml<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    let budget = serde_saphyr::budget! {
        max_events: YAML_EVENTS_MAX,
        max_nodes: YAML_EVENTS_MAX,
        max_total_scalar_bytes: super::FILE_BYTES_MAX,
        max_depth: DEPTH_MAX,
        flow_nesting_limit: DEPTH_MAX,
        max_aliases: ALIASES_MAX,
        max_anchors: ALIASES_MAX,
        max_documents: DOCUMENTS_MAX,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_EVENTS_MAX },
        // As in the apiserver, only `true` and `false` are booleans: a port may be named `on`.
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| format!("is not YAML: {error}"))
}

/// One document: an object or a list of objects. `items` is decoded while it is read, because a whole cluster's list is
/// large and may name its kind only after its items.
#[derive(Debug, Default)]
struct Document {
    fields: Map<String, Value>,
    items: Vec<Item>,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object or a List of them")
    }

    fn visit_unit<E>(self) -> Result<Document, E> {
        Ok(Document::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let mut document = Document::default();
        while let Some(field) = map.next_key::<String>()? {
            if field == "items" {
                document.items = map.next_value::<Option<Vec<Item>>>()?.unwrap_or_default();
            } else {
                document.fields.insert(field, map.next_value()?);
            }
        }
        Ok(document)
    }
}

impl Document {
    fn text_field(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    /// `Some` for a list, with the kind that the list names for items without one.
    fn list_kind(&self) -> Option<Option<ObjectKind>> {
        match (self.text_field("kind")?, self.text_field("apiVersion").unwrap_or_default()) {
            ("List", "v1") => Some(None),
            ("ServiceList", "v1") => Some(Some(ObjectKind::Service)),
            ("EndpointSliceList", "discovery.k8s.io/v1") => Some(Some(ObjectKind::Slice)),
            _ => None,
        }
    }
}

#[derive(Debug)]
enum Item {
    Service(Box<ServiceWire<'static>>),
    Slice(Box<SliceWire<'static>>),
    /// An object of an ignored kind, with the kind to show.
    Ignored(String),
    /// An object without a kind: its list may name one for all items.
    Untyped(Value),
    /// An object that does not fit, or of an unsupported version.
    Refused(ObjectKind, Value, ObjectError),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::new)
    }
}

impl Item {
    fn new(value: Value) -> Self {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let version = text("apiVersion");
        let kind = match text("kind") {
            "" => return Self::Untyped(value),
            "Service" if !version.contains('/') => ObjectKind::Service,
            "EndpointSlice" if version.starts_with("discovery.k8s.io/") || !version.contains('/') => {
                ObjectKind::Slice
            }
            other => return Self::Ignored(format_kind(other, version)),
        };
        if version == kind.api_version() {
            return Self::from_kind(kind, value);
        }
        let error = ObjectError::Version { shown: format!("{version:?}"), legal: kind.api_version() };
        Self::Refused(kind, value, error)
    }

    fn from_kind(kind: ObjectKind, value: Value) -> Self {
        let fitted = match kind {
            ObjectKind::Service => objects::from_value(&value).map(|wire| Self::Service(Box::new(wire))),
            ObjectKind::Slice => objects::from_value(&value).map(|wire| Self::Slice(Box::new(wire))),
        };
        fitted.unwrap_or_else(|error| Self::Refused(kind, value, error))
    }
}

/// A kind with its version, as in `Ingress (networking.k8s.io/v1)`.
/// Why objects of a kind are ignored. A diagnosis reads pods, but no pod is served for being in a file.
fn describe_ignored(kind: &str) -> &'static str {
    match kind {
        "Pod (v1)" => {
            "gives no Service a backend, an EndpointSlice (discovery.k8s.io/v1) does; only `holdfast diagnose` reads it"
        }
        _ => {
            "is not read, so its objects are ignored; Service (v1) and EndpointSlice (discovery.k8s.io/v1) are read"
        }
    }
}

fn format_kind(kind: &str, version: &str) -> String {
    let is_plain = |text: &str| {
        let legal = |it: char| it.is_ascii_alphanumeric() || "./-".contains(it);
        !text.is_empty() && text.len() <= KIND_LENGTH_MAX && text.chars().all(legal)
    };
    let shown = |text: &str| if is_plain(text) { text.to_owned() } else { objects::quote_value(text) };
    format!("{} ({})", shown(kind), shown(version))
}

struct Decoder {
    provenance: Provenance,
    file: Arc<str>,
    contents: FileContents,
}

impl Decoder {
    fn new(file: &Arc<str>) -> Self {
        let provenance = Provenance {
            source: Source::Manifests,
            origin: Some(Arc::clone(file)),
            defaulting: Defaulting::AsApiserver,
        };
        Self { provenance, file: Arc::clone(file), contents: FileContents::default() }
    }

    fn decode_document(&mut self, position: &str, document: Document) {
        if let Some(kind) = document.list_kind() {
            for (number, item) in document.items.into_iter().enumerate() {
                self.decode_item(&format!("{position}, items[{number}]"), item.with_kind(kind));
            }
        } else if !(document.fields.is_empty() && document.items.is_empty()) {
            self.decode_item(position, Item::new(Value::Object(document.fields)));
        }
    }

    fn decode_item(&mut self, position: &str, item: Item) {
        match item {
            Item::Service(wire) => match objects::parse_service(&wire, &self.provenance) {
                Ok(facts) => {
                    let key = ObjectKey::Service(facts.key.clone());
                    self.record_object(key, Some(ObjectFacts::Service(Arc::new(facts))), None);
                }
                Err(rejection) => self.record_rejection(position, rejection),
            },
            Item::Slice(wire) => match objects::parse_slice(&wire, &self.provenance) {
                Ok((facts, skipped)) => {
                    let key = ObjectKey::Slice(facts.key.clone());
                    self.record_object(key, Some(ObjectFacts::Slice(Arc::new(facts))), skipped);
                }
                Err(rejection) => self.record_rejection(position, rejection),
            },
            Item::Refused(kind, value, error) => {
                let rejection = objects::reject_object(kind, &value, &error, &self.provenance);
                self.record_rejection(position, rejection);
            }
            Item::Untyped(_) => self.reject_untyped(position),
            Item::Ignored(kind) => self.record_ignored(&kind),
        }
    }

    /// Reports an ignored kind under the kind, not the file: a cluster's archive has few kinds and many files.
    fn record_ignored(&mut self, kind: &str) {
        let object = ObjectKey::Kind(self.provenance.source, kind.into());
        let has_room = self.contents.ignored.len() < KINDS_NAMED_MAX;
        if let Some(count) = self.contents.ignored.get_mut(&object) {
            *count += 1;
        } else if has_room {
            self.contents.ignored.insert(object.clone(), 1);
            let reason = describe_ignored(kind);
            let origin = self.provenance.origin.clone();
            let rejection =
                Rejection { object: object.clone(), origin, reason: reason.into(), partial: true };
            self.record_object(object, None, Some(rejection));
        }
    }

    fn reject_untyped(&mut self, position: &str) {
        let reason = "kind is missing; Service and EndpointSlice are read, alone or in a List";
        let object = ObjectKey::Unnamed(self.provenance.source, "".into());
        let origin = self.provenance.origin.clone();
        self.record_rejection(position, Rejection { object, origin, reason: reason.into(), partial: false });
    }

    fn record_rejection(&mut self, position: &str, mut rejection: Rejection) {
        if let ObjectKey::Unnamed(source, _) = rejection.object {
            rejection.object = ObjectKey::Unnamed(source, format!("{}, {position}", self.file).into());
        }
        self.record_object(rejection.object.clone(), None, Some(rejection));
    }

    fn record_object(&mut self, key: ObjectKey, facts: Option<ObjectFacts>, rejection: Option<Rejection>) {
        let repeated = Rejection {
            object: key.clone(),
            origin: self.provenance.origin.clone(),
            reason: "is in this file more than once; the first one counts".into(),
            partial: true,
        };
        let version = self.contents.objects.entry(key).or_default();
        if version.facts.is_some() {
            // One notice is enough, however often the object is repeated.
            version.rejections.retain(|rejection| *rejection != repeated);
            version.rejections.push(repeated);
        } else {
            version.facts = facts;
            version.rejections.extend(rejection);
        }
    }
}

impl Item {
    /// Applies the list's kind to an item without one.
    fn with_kind(self, kind: Option<ObjectKind>) -> Self {
        match (self, kind) {
            (Self::Untyped(value), Some(kind)) => Self::from_kind(kind, value),
            (item, _) => item,
        }
    }
}
