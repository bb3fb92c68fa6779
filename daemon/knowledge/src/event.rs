//! One type for the Events of both Kubernetes APIs.
//!
//! Invariant: any JSON value gives a [`ClusterEvent`]; a missing field, or one of another type, is empty. All text in
//! it is clean and bounded, every time is possible, and the count is at least 1.
//!
//! The fields are read from the JSON one by one. `k8s-openapi` has a type for either API, but both reject a whole Event
//! for one bad field: a count beyond 32 bits, a text that is no time, a number instead of a text.

use serde_json::Value;

use crate::entry::EventType;
use crate::limits::{NAME_BYTES_MAX, WORD_BYTES_MAX};
use crate::rfc3339::{Time, parse};
use crate::text::{clean, clean_message};

/// Client libraries put this before a message that stands for several similar ones.
const MERGED_PREFIX: &str = "(combined from similar events): ";

/// The object of an Event, as far as the Event names it. Only kind, namespace and name are always set: kube-proxy and
/// kubelet set no UID of a node, and their old versions set its name as the UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectRef {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The part of the object, such as a container.
    pub field_path: String,
}

/// An Event: a component's message about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEvent {
    /// The Event's own UID. An Event that recurs is modified, and keeps it.
    pub uid: String,
    pub object: ObjectRef,
    pub reason: String,
    pub event_type: EventType,
    /// The message without the prefix of a merged Event.
    pub message: String,
    pub action: String,
    /// The component that sent the Event.
    pub component: String,
    /// The sender's host, or its instance.
    pub host: String,
    pub first: Option<Time>,
    pub last: Option<Time>,
    /// How often the Event occurred; at least once.
    pub count: u32,
    /// Whether it stands for several similar Events.
    pub merged: bool,
}

impl ClusterEvent {
    /// Reads an object of `v1` or of `events.k8s.io/v1`.
    pub fn from_json(value: &Value) -> Self {
        let (message, merged) = parse_message(value);
        let word = |paths: &[&str]| clean(first_text(value, paths), WORD_BYTES_MAX);
        Self {
            uid: word(&["metadata/uid"]),
            object: parse_object(value),
            reason: word(&["reason"]),
            event_type: parse_event_type(first_text(value, &["type"])),
            message,
            action: word(&["action"]),
            component: word(&[
                "reportingComponent",
                "reportingController",
                "source/component",
                "deprecatedSource/component",
            ]),
            host: clean(
                first_text(value, &["source/host", "deprecatedSource/host", "reportingInstance"]),
                NAME_BYTES_MAX,
            ),
            first: first_time(
                value,
                &["firstTimestamp", "deprecatedFirstTimestamp", "eventTime", "metadata/creationTimestamp"],
            ),
            last: first_time(
                value,
                &[
                    "series/lastObservedTime",
                    "lastTimestamp",
                    "deprecatedLastTimestamp",
                    "eventTime",
                    "metadata/creationTimestamp",
                ],
            ),
            count: parse_count(value),
            merged,
        }
    }
}

/// The value at a path of members, such as `source/host`.
fn value_at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('/').try_fold(value, |value, member| value.get(member))
}

fn first_text<'v>(value: &'v Value, paths: &[&str]) -> &'v str {
    let texts = paths.iter().filter_map(|path| value_at(value, path)?.as_str());
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

fn parse_object(value: &Value) -> ObjectRef {
    let objects = ["involvedObject", "regarding"].into_iter().filter_map(|member| value.get(member));
    let object = objects.into_iter().find(|object| object.is_object()).unwrap_or(&Value::Null);
    let name = |member: &str| clean(first_text(object, &[member]), NAME_BYTES_MAX);
    ObjectRef {
        kind: name("kind"),
        namespace: name("namespace"),
        name: name("name"),
        uid: name("uid"),
        field_path: name("fieldPath"),
    }
}

fn parse_event_type(text: &str) -> EventType {
    match text {
        "Normal" => EventType::Normal,
        "Warning" => EventType::Warning,
        _ => EventType::Other,
    }
}

fn parse_message(value: &Value) -> (String, bool) {
    let text = first_text(value, &["message", "note"]);
    match text.trim_start().strip_prefix(MERGED_PREFIX) {
        Some(rest) => (clean_message(rest), true),
        None => (clean_message(text), false),
    }
}

fn first_time(value: &Value, paths: &[&str]) -> Option<Time> {
    paths.iter().find_map(|path| parse(value_at(value, path)?.as_str()?))
}

/// How often an Event occurred. A count below one, or none, means once: otherwise there would be no Event.
fn parse_count(value: &Value) -> u32 {
    let counts = ["series/count", "count", "deprecatedCount"];
    let counted = counts.iter().filter_map(|path| value_at(value, path)?.as_i64());
    let count = counted.into_iter().find(|count| *count > 0).unwrap_or(1);
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
