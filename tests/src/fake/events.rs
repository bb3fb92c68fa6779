//! Validates and stores Events as an apiserver does.
//!
//! Invariant: it stores only Events that pass the validation of `events.k8s.io/v1`.

use std::io;

use serde_json::Value;
use tokio::io::AsyncWrite;

use super::Kind;
use super::cluster::Cluster;
use super::request::Head;
use super::writer::Writer;

/// Creates an Event.
pub(super) async fn create<W: AsyncWrite + Unpin>(
    cluster: &Cluster,
    head: &Head,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    let namespace = head.name.as_deref().unwrap_or_default();
    let Ok(event) = serde_json::from_slice::<Value>(&head.body) else {
        return writer.status(400, "BadRequest", None).await;
    };
    if head.kind != Kind::Events || !is_legal(&event, namespace) {
        return writer.status(422, "Invalid", None).await;
    }
    let name = format!("{namespace}/{}", text(&event, "/metadata/name"));
    if cluster.object(Kind::Events, &name).is_some() {
        return writer.status(409, "AlreadyExists", None).await;
    }
    let body = event.to_string();
    // `apply` cannot fail: a valid Event has a kind and a name.
    let _ = cluster.apply(event);
    writer.whole(201, "", &body).await
}

/// Patches an Event; only its series may change.
pub(super) async fn patch<W: AsyncWrite + Unpin>(
    cluster: &Cluster,
    head: &Head,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    if head.headers.get("content-type").map(String::as_str) != Some("application/merge-patch+json") {
        return writer.status(415, "UnsupportedMediaType", None).await;
    }
    let found = cluster.object(head.kind, head.name.as_deref().unwrap_or_default());
    let found = found.and_then(|object| serde_json::from_str::<Value>(&object.typed()).ok());
    let patch = serde_json::from_slice::<Value>(&head.body).ok();
    let (Some(mut event), Some(patch)) = (found, patch) else {
        return writer.status(404, "NotFound", None).await;
    };
    let fields = patch.as_object().filter(|fields| fields.keys().all(|key| key == "series"));
    let (Some(series), Some(fields)) = (fields.and_then(|it| it.get("series")), event.as_object_mut()) else {
        return writer.status(422, "Invalid", None).await;
    };
    if !is_series(series) {
        return writer.status(422, "Invalid", None).await;
    }
    fields.insert("series".to_owned(), series.clone());
    let body = event.to_string();
    let _ = cluster.apply(event);
    writer.whole(200, "", &body).await
}

fn text<'a>(event: &'a Value, pointer: &str) -> &'a str {
    event.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is_legal(event: &Value, namespace: &str) -> bool {
    let within = |pointer, most| (1..=most).contains(&text(event, pointer).len());
    let is_name = |name: &str| {
        let legal = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || matches!(it, '-' | '.');
        !name.is_empty() && name.len() <= 253 && name.chars().all(legal)
    };
    let (prefix, name) = text(event, "/reportingController").split_once('/').unwrap_or_default();
    text(event, "/kind") == "Event"
        && text(event, "/apiVersion") == "events.k8s.io/v1"
        && text(event, "/metadata/namespace") == namespace
        && text(event, "/regarding/namespace") == namespace
        && is_name(text(event, "/metadata/name"))
        && is_micro_time(text(event, "/eventTime"))
        && is_name(prefix)
        && is_name(name)
        && within("/reportingInstance", 128)
        && within("/action", 128)
        && within("/reason", 128)
        && text(event, "/note").len() <= 1024
        && matches!(text(event, "/type"), "Normal" | "Warning")
        && event.get("series").is_none_or(is_series)
        && ["count", "firstTimestamp", "lastTimestamp", "source"].iter().all(|it| event.get(it).is_none())
}

fn is_series(series: &Value) -> bool {
    let count = series.get("count").and_then(Value::as_u64).unwrap_or_default();
    count >= 2 && is_micro_time(text(series, "/lastObservedTime"))
}

/// Whether the text has the form `2006-01-02T15:04:05.000000Z`.
fn is_micro_time(text: &str) -> bool {
    let shape: String = text.chars().map(|it| if it.is_ascii_digit() { '0' } else { it }).collect();
    shape == "0000-00-00T00:00:00.000000Z"
}
