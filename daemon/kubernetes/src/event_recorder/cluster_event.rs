//! One Event of `events.k8s.io/v1`.
//!
//! Invariant: an Event passes the apiserver's validation with any names and texts: its texts are bounded, it is in the
//! object's namespace, and its name is legal. Fields of the older API stay empty, as the newer one requires.

use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Timestamp};
use holdfast_core::keys::{ObjectName, ServiceKey};
use holdfast_core::snapshot::{Reason, ServiceView, Snapshot};
use holdfast_status::rfc3339::Rfc3339;
use serde_json::{Value, json};

use super::topics::Topic;

/// The reporting controller of every Event; the apiserver requires a qualified name.
const CONTROLLER: &str = "holdfast.io/holdfast";

/// The longest note that the apiserver accepts.
const NOTE_BYTES_MAX: usize = 1_024;

/// The longest reporting instance that the apiserver accepts.
const INSTANCE_BYTES_MAX: usize = 128;

/// The most bytes of the object's name in the Event's name, which may have 253.
const NAME_BYTES_MAX: usize = 240;

/// An Event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterEvent {
    /// The object of the Event.
    pub(super) object: ObjectName,
    kind: &'static str,
    api_version: &'static str,
    uid: Option<Arc<str>>,
    is_warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
    // Distinguishes this problem from others of the object. It is constant while the problem lasts.
    detail: String,
    /// The time of the snapshot that showed the problem.
    pub(super) at: Timestamp,
}

impl Topic {
    /// Builds the Event; `None`: its object is gone.
    pub(super) fn to_event(&self, snapshot: &Snapshot) -> Option<ClusterEvent> {
        let at = snapshot.published;
        match self {
            Self::Held(key, reason) => build_hold_event(find_service_view(snapshot, key)?, reason, snapshot),
            Self::Released(key) => Some(build_release_event(find_service_view(snapshot, key)?, at)),
            Self::Rejected(object, reason) => build_rejection_event(object, reason, at),
            Self::Conflict(key, address, owner) => {
                Some(build_conflict_event(find_service_view(snapshot, key)?, address, owner.as_ref(), at))
            }
        }
    }
}

fn find_service_view<'a>(snapshot: &'a Snapshot, key: &ServiceKey) -> Option<&'a ServiceView> {
    let views = snapshot.services.find_by_name(&key.name).map(AsRef::as_ref);
    views.filter(|view| view.facts.is_some()).find(|view| view.key == *key)
}

/// The texts of an Event about a service.
struct EventText {
    is_warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
    detail: String,
}

fn build_service_event(view: &ServiceView, wording: EventText, at: Timestamp) -> ClusterEvent {
    let EventText { is_warning, reason, action, note, detail } = wording;
    let uid = view.facts.as_ref().and_then(|facts| facts.meta.uid.clone());
    let object = view.key.name.clone();
    ClusterEvent {
        object,
        kind: "Service",
        api_version: "v1",
        uid,
        is_warning,
        reason,
        action,
        note,
        detail,
        at,
    }
}

fn build_hold_event(view: &ServiceView, reason: &str, snapshot: &Snapshot) -> Option<ClusterEvent> {
    let holds = || view.ports.iter().filter_map(|port| port.hold.as_deref());
    let backends: usize = holds().map(|hold| hold.rows().count()).sum();
    // A hold without a limit lasts longest.
    let until =
        holds().map(|hold| snapshot.hold_until(hold)).max_by_key(|until| (until.is_none(), *until))?;
    let until =
        until.map_or("without limit".to_owned(), |until| format!("until {} at the latest", Rfc3339(until)));
    let name = &view.key.name;
    let note = format!(
        "its endpoints are gone ({reason}); connections still go to the last {backends} backends, {until}. \
         On the node: holdfast explain {name}"
    );
    let is_warning = true;
    let action = "Hold";
    let detail = reason.to_owned();
    let wording = EventText { is_warning, reason: "BackendsHeld", action, note, detail };
    Some(build_service_event(view, wording, snapshot.published))
}

fn build_release_event(view: &ServiceView, at: Timestamp) -> ClusterEvent {
    let ended: Option<Reason> = view.ports.iter().find_map(|port| port.ended);
    let (reason, note) = match ended {
        Some(why) => {
            let why = why.as_str();
            let name = &view.key.name;
            let note = format!("connections are refused: {why}. On the node: holdfast history {name}");
            ("BackendsReleased", note)
        }
        None => ("BackendsReturned", "no list is held any more: the endpoints decide again".to_owned()),
    };
    let detail = ended.map_or("", Reason::as_str).to_owned();
    let wording = EventText { is_warning: ended.is_some(), reason, action: "Release", note, detail };
    build_service_event(view, wording, at)
}

fn build_rejection_event(object: &ObjectKey, reason: &str, at: Timestamp) -> Option<ClusterEvent> {
    let api_version = if object.kind() == "Service" { "v1" } else { "discovery.k8s.io/v1" };
    Some(ClusterEvent {
        object: object.name()?.clone(),
        kind: object.kind(),
        api_version,
        uid: None,
        is_warning: true,
        reason: "NotUnderstood",
        action: "Reject",
        note: format!("its valid part or its last good version is served: {reason}"),
        detail: reason.to_owned(),
        at,
    })
}

fn build_conflict_event(
    view: &ServiceView,
    address: &str,
    owner: Option<&ServiceKey>,
    at: Timestamp,
) -> ClusterEvent {
    let owner = owner.map_or("another service".to_owned(), |owner| owner.name.to_string());
    let note = format!("{address} is not served: it belongs to {owner}");
    let detail = format!("{address} {owner}");
    let wording = EventText { is_warning: true, reason: "AddressConflict", action: "Yield", note, detail };
    build_service_event(view, wording, at)
}

impl ClusterEvent {
    /// The Event as JSON for the apiserver.
    pub(super) fn to_json(&self, node: &str) -> Value {
        let mut regarding = json!({
            "apiVersion": self.api_version, "kind": self.kind,
            "namespace": self.object.namespace(), "name": self.object.name(),
        });
        if let (Some(uid), Some(fields)) = (&self.uid, regarding.as_object_mut()) {
            fields.insert("uid".to_owned(), uid.as_ref().into());
        }
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"namespace": self.object.namespace(), "name": self.event_name(node)},
            "eventTime": Rfc3339(self.at).to_micro_time(),
            "reportingController": CONTROLLER,
            "reportingInstance": truncate_text(node, INSTANCE_BYTES_MAX),
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "reason": self.reason, "action": self.action,
            "note": truncate_text(&self.note, NOTE_BYTES_MAX),
            "regarding": regarding,
        })
    }

    /// The patch that sets the Event's count to `count`.
    pub(super) fn series_patch(&self, count: u64) -> Value {
        json!({"series": {"count": count, "lastObservedTime": Rfc3339(self.at).to_micro_time()}})
    }

    /// The Event's name, unique per problem, object and node.
    pub(super) fn event_name(&self, node: &str) -> String {
        let uid = self.uid.as_deref().unwrap_or_default();
        let whole = [node, self.kind, uid, self.reason, &self.detail].join("\n");
        format!(
            "{}.{:08x}",
            truncate_text(self.object.name(), NAME_BYTES_MAX),
            crc32fast::hash(whole.as_bytes())
        )
    }
}

/// The longest prefix that fits.
fn truncate_text(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default()
}
