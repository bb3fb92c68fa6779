//! An Event as either API of Kubernetes has it, in one shape.
//!
//! Invariant: any JSON value gives a [`ClusterEvent`]; what is missing or of another type is empty. All text in it is
//! clean and bounded, every time in it is one that can be, and its count is at least 1.
//!
//! The fields are taken out of the JSON one by one. `k8s-openapi` has a type for either API, and both types refuse a
//! whole Event for one odd field: a count beyond 32 bits, a text that is no time, a number in place of a text.

use serde_json::Value;

use crate::entry::EventType;
use crate::limits::{NAME_BYTES_MAX, WORD_BYTES_MAX};
use crate::rfc3339::{Time, parse};
use crate::text::{clean, clean_message};

/// What client libraries put before a message that stands for several similar ones.
const MERGED_PREFIX: &str = "(combined from similar events): ";

/// The object that an Event is about, as far as the Event says. Only kind, namespace and name are always there:
/// kube-proxy and kubelet give no UID of a node, and their old versions give its name in place of the UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectRef {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Which part of the object, such as a container.
    pub field_path: String,
}

/// What a component of the cluster says about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEvent {
    /// The Event's own UID: an Event that is seen again is modified, and keeps it.
    pub uid: String,
    pub object: ObjectRef,
    pub reason: String,
    pub event_type: EventType,
    /// The message without the words that mark a merged Event.
    pub message: String,
    pub action: String,
    /// The component that sent the Event.
    pub component: String,
    /// Where the sender runs, or which of several senders it is.
    pub host: String,
    pub first: Option<Time>,
    pub last: Option<Time>,
    /// How often the Event was seen; at least once.
    pub count: u32,
    /// Whether it stands for several similar Events.
    pub merged: bool,
}

impl ClusterEvent {
    /// Takes an object of `v1` or of `events.k8s.io/v1`.
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

/// What stands at a path of members, such as `source/host`.
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

/// How often an Event was seen. A count of zero or less is no count, and without a count it was seen once: otherwise
/// there would be no Event.
fn parse_count(value: &Value) -> u32 {
    let counts = ["series/count", "count", "deprecatedCount"];
    let counted = counts.iter().filter_map(|path| value_at(value, path)?.as_i64());
    let count = counted.into_iter().find(|count| *count > 0).unwrap_or(1);
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
