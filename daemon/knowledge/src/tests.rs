//! The knowledge is complete, and recognises the real messages of Kubernetes.

mod corrections;
mod fixtures;
mod overrides;
mod page;
mod properties;
mod standing;
mod whole;

use serde_json::json;

use crate::{ClusterEvent, Knowledge, Recognition};

/// An Event about `shop/web`.
fn event(reason: &str, component: &str, kind: &str, message: &str) -> ClusterEvent {
    ClusterEvent::from_json(&json!({
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "involvedObject": {"kind": kind, "namespace": "shop", "name": "web"},
        "lastTimestamp": "2026-03-01T12:00:00Z",
        "count": 1,
    }))
}

fn recognise(event: &ClusterEvent) -> Recognition<'static> {
    Knowledge::built_in().recognise(event)
}

/// The id of the first cause.
#[track_caller]
fn cause(reason: &str, component: &str, kind: &str, message: &str) -> &'static str {
    recognise(&event(reason, component, kind, message)).cause.map_or("-", |cause| cause.id.as_str())
}
