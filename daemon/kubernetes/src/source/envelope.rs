//! The wrappers of objects: a watch event's frame, an error's `Status`, and an object's identity.
//!
//! Invariant: an object is identified by its metadata alone, so that one that is invalid later on, or cut, still has a
//! name.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The most characters shown of a server's error.
const MESSAGE_LENGTH_MAX: usize = 200;

/// One event of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct JsonFrame<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// An error from the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: Option<u16>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

impl Status {
    /// The `Status` of a refusal, or its body as text.
    pub(super) fn from_refusal(code: u16, status: Option<Self>, body: &[u8]) -> Self {
        let text = || String::from_utf8_lossy(body).split_whitespace().collect::<Vec<_>>().join(" ");
        let status = status.unwrap_or_else(|| Self { message: Some(text()), ..Self::default() });
        Self { code: Some(code), ..status }
    }

    /// Whether the requested version or token has expired.
    pub(super) fn is_gone(&self) -> bool {
        self.code == Some(410) || matches!(self.reason.as_deref(), Some("Gone" | "Expired"))
    }
}

/// Formats `410 Expired: too old resource version`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.code.map(|code| code.to_string()), self.reason.clone()];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))?;
        match self.message.as_deref().unwrap_or_default() {
            "" => Ok(()),
            message => write!(f, ": {}", message.chars().take(MESSAGE_LENGTH_MAX).collect::<String>()),
        }
    }
}

/// The identity of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    labels: Option<Labels>,
}

/// The labels that decide whether an object is for proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Labels {
    #[serde(rename = "service.kubernetes.io/headless")]
    headless: Option<String>,
}

impl Identity {
    /// Whether this is a slice that proxies ignore.
    pub(super) fn is_headless(&self) -> bool {
        self.labels.as_ref().is_some_and(|labels| labels.headless.is_some())
    }

    /// Sets the label that excludes a slice from proxies.
    pub(super) fn set_headless(&mut self) {
        self.labels.get_or_insert_default().headless = Some(String::new());
    }

    /// Reads the metadata only, so that the rest may be invalid or missing.
    pub(super) fn peek_metadata(text: &[u8]) -> Option<Self> {
        EventPeek::from_json(text).identity
    }
}

/// The start of an object or of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventPeek {
    /// `ADDED`, …, if it precedes the object.
    pub(super) kind: Option<String>,
    pub(super) identity: Option<Identity>,
}

impl EventPeek {
    /// Whether the event deletes its object; `None`: unknown.
    pub(super) fn is_deletion(&self) -> Option<bool> {
        match self.kind.as_deref()? {
            "ADDED" | "MODIFIED" => Some(false),
            "DELETED" => Some(true),
            _ => None,
        }
    }

    /// Reads up to the end of the metadata of an object, or of the object in an event.
    pub(super) fn from_json(text: &[u8]) -> Self {
        let mut found = Self::default();
        // Usually an error, which is expected: reading stops at the metadata.
        let _stopped = PeekVisitor(&mut found).deserialize(&mut serde_json::Deserializer::from_slice(text));
        found
    }
}

/// Stops at the metadata, and stores what it read.
struct PeekVisitor<'p>(&'p mut EventPeek);

impl<'de> DeserializeSeed<'de> for PeekVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PeekVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match &*key {
                "metadata" => {
                    map.next_value_seed(IdentityVisitor(&mut self.0.identity))?;
                    return Err(A::Error::custom("seen"));
                }
                "object" => return map.next_value_seed(self),
                "type" if self.0.kind.is_none() => self.0.kind = map.next_value()?,
                _ => {
                    let _unread: IgnoredAny = map.next_value()?;
                }
            }
        }
        Ok(())
    }
}

/// Reads an identity field by field: the fields before the end of the text or before an invalid one count.
struct IdentityVisitor<'p>(&'p mut Option<Identity>);

/// The relevant fields of `metadata`.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum MetadataField {
    Namespace,
    Name,
    Uid,
    ResourceVersion,
    Labels,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for IdentityVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IdentityVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the metadata of an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key()? {
            match key {
                MetadataField::Namespace => self.0.get_or_insert_default().namespace = map.next_value()?,
                MetadataField::Name => self.0.get_or_insert_default().name = map.next_value()?,
                MetadataField::Uid => self.0.get_or_insert_default().uid = map.next_value()?,
                MetadataField::ResourceVersion => {
                    self.0.get_or_insert_default().resource_version = map.next_value()?;
                }
                MetadataField::Labels => self.0.get_or_insert_default().labels = map.next_value()?,
                MetadataField::Other => {
                    let _unread: IgnoredAny = map.next_value()?;
                }
            }
        }
        self.0.get_or_insert_default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_peek(text: &str, expected: Option<[&str; 4]>) {
        let found = Identity::peek_metadata(text.as_bytes()).map(|found| {
            [found.namespace, found.name, found.uid, found.resource_version].map(Option::unwrap_or_default)
        });
        assert_eq!(found, expected.map(|it| it.map(str::to_owned)), "of {text}");
    }

    #[test]
    fn an_object_is_identified_by_its_metadata_alone() {
        let metadata =
            r#""metadata":{"name":"n","namespace":"s","uid":"u","resourceVersion":"7","labels":{"a":"b"}}"#;
        let known = Some(["s", "n", "u", "7"]);
        check_peek(&format!("{{{metadata}}}"), known);
        check_peek(&format!(r#"{{"kind":"Service","a":[1,{{}}],{metadata},"spec":{{wrong"#), known);
        check_peek(&format!(r#"{{"type":"ADDED","object":{{{metadata},"endpoints":[{{"addr"#), known);
        check_peek(r#"{"metadata":{"name":"n","namespace":null}}"#, Some(["", "n", "", ""]));
    }

    /// A tenant can make an object's metadata as long as an object may be.
    #[test]
    fn an_object_cut_in_its_metadata_keeps_the_earlier_fields() {
        let metadata = r#"{"metadata":{"name":"n","namespace":"s","uid":"u","resourceVersion":"7""#;
        let known = Some(["s", "n", "u", "7"]);
        check_peek(&format!(r#"{metadata},"ownerReferences":[{{"name":"xxx"#), known);
        check_peek(&format!(r#"{{"type":"ADDED","object":{metadata},"managedFields":[{{"a"#), known);
        check_peek(&format!(r#"{metadata},"labels":{{"a":"b"#), known);
        check_peek(r#"{"metadata":{"name":"n","namespace":"s","uid":"u"#, Some(["s", "n", "", ""]));
    }

    #[test]
    fn an_object_without_legible_metadata_has_no_identity() {
        for text in [
            "",
            "null",
            "{}",
            "[]",
            r#"{"metadata":"#,
            r#"{"metadata":{"name":7}}"#,
            r#"{"spec":{}}"#,
            "<html>",
        ] {
            check_peek(text, None);
        }
    }

    #[track_caller]
    fn check_kind(text: &str, expected: Option<&str>) {
        assert_eq!(EventPeek::from_json(text.as_bytes()).kind.as_deref(), expected, "of {text}");
    }

    #[test]
    fn an_events_type_is_read_only_before_its_object() {
        check_kind(r#"{"type":"DELETED","object":{"metadata":{"name":"n"},"spec":{oops"#, Some("DELETED"));
        check_kind(r#"{"type":"DELETED","object":{"type":"own","metadata":{"name":"n"}"#, Some("DELETED"));
        check_kind(r#"{"object":{"metadata":{"name":"n"}},"type":"DELETED"}"#, None);
        check_kind(r#"{"type":"DELE"#, None);
    }

    #[test]
    fn a_frame_is_read_in_any_order_of_its_fields() {
        for text in [r#"{"type":"ADDED","object":{"a":1}}"#, r#"{"object":{"a":1}, "type":"ADDED"}"#] {
            let frame: JsonFrame<'_> = serde_json::from_str(text).unwrap();
            assert_eq!((&*frame.kind, frame.object.get()), ("ADDED", r#"{"a":1}"#));
        }
    }

    fn refusal_status(code: u16, body: &[u8]) -> Status {
        Status::from_refusal(code, serde_json::from_slice(body).ok(), body)
    }

    #[track_caller]
    fn check_status(code: u16, body: &str, shown: &str, is_gone: bool) {
        let status = refusal_status(code, body.as_bytes());
        assert_eq!((status.to_string().as_str(), status.is_gone()), (shown, is_gone));
    }

    #[test]
    fn errors_are_shown_shortened() {
        let gone = r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}"#;
        check_status(410, gone, "410 Expired: too old resource version", true);
        check_status(410, "", "410", true);
        check_status(503, "<html>\n  <b>no</b>\n</html>", "503: <html> <b>no</b> </html>", false);
        check_status(500, r#"{"reason":"Gone","message":null}"#, "500 Gone", true);
        let long = refusal_status(500, "x".repeat(9_000).as_bytes()).to_string();
        assert_eq!(long.len(), "500: ".len() + MESSAGE_LENGTH_MAX);
    }
}
