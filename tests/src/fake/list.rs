//! Answers lists, their pages, and single objects.
//!
//! Invariant: all pages of a list show the objects at the time of the first page. A list at a past `resourceVersion`
//! shows the newest objects.

use std::fmt::Write;
use std::io;

use serde_json::json;
use tokio::io::AsyncWrite;

use super::cluster::{Cluster, Object, Page};
use super::fault::Verb;
use super::request::Head;
use super::selector::Selector;
use super::writer::{Encoding, Writer};
use super::{Kind, protobuf};

/// Objects are written in pieces of about this size.
const PIECE_BYTES: usize = 64 * 1024;

/// The `continue` parameter: the version of the list, and the offset of the next page.
type Token = (u64, usize);

/// Answers with one object.
pub(super) async fn get<W: AsyncWrite + Unpin>(
    cluster: &Cluster,
    head: &Head,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    if head.kind == Kind::Ready {
        return writer.whole(200, "", "ok").await;
    }
    match cluster.object(head.kind, head.name.as_deref().unwrap_or_default()) {
        Some(object) => writer.whole(200, "", &object.typed()).await,
        None => writer.missing(head.name.as_deref().unwrap_or_default()).await,
    }
}

/// Answers with a page of objects.
pub(super) async fn list<W: AsyncWrite + Unpin>(
    cluster: &Cluster,
    head: &Head,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    let parsed = Selector::parse(head.parameter("labelSelector"), head.parameter("fieldSelector"));
    let Ok(selector) = parsed else { return writer.status(400, "BadRequest", None).await };
    let selector = selector.within(head.namespace.as_deref());
    if head.number("resourceVersion").is_some_and(|wanted: u64| wanted > cluster.version()) {
        return writer.status(504, "Timeout", Some(1)).await;
    }
    let from = token(head.parameter("continue"));
    let limit = head.number("limit").filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    match cluster.page(head.kind, &selector, from, limit) {
        Ok(page) => write_page(head, &page, writer).await,
        Err(_) => writer.status(410, "Expired", None).await,
    }
}

async fn write_page<W: AsyncWrite + Unpin>(
    head: &Head,
    page: &Page,
    writer: &mut Writer<W>,
) -> io::Result<()> {
    writer.begin().await?;
    if writer.encoding == Encoding::Protobuf {
        for piece in in_protobuf(head, page).chunks(PIECE_BYTES) {
            writer.chunk(piece).await?;
        }
        return writer.end().await;
    }
    let mut text = opening(head, page);
    for (place, object) in page.items.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        text.push_str(&item(head.verb, object));
        if text.len() >= PIECE_BYTES {
            writer.chunk(text.as_bytes()).await?;
            text.clear();
        }
    }
    text.push_str("]}\n");
    writer.chunk(text.as_bytes()).await?;
    writer.end().await
}

fn in_protobuf(head: &Head, page: &Page) -> Vec<u8> {
    let (kind, api_version) = names(head);
    let mut meta = json!({"resourceVersion": page.version.to_string()});
    if let Some((next, remaining)) = page.next {
        meta = json!({
            "resourceVersion": page.version.to_string(),
            "continue": format!("{}.{next}", page.version), "remainingItemCount": remaining,
        });
    }
    let only_metadata = head.verb == Verb::Audit;
    let items = page.items.iter().map(|object| object.protobuf.bytes(only_metadata));
    protobuf::list(kind, api_version, &meta, items)
}

const fn names(head: &Head) -> (&'static str, &'static str) {
    match head.verb {
        Verb::Audit => ("PartialObjectMetadata", "meta.k8s.io/v1"),
        _ => head.kind.names(),
    }
}

fn item(verb: Verb, object: &Object) -> String {
    if verb == Verb::Audit { object.metadata() } else { object.json.clone() }
}

fn opening(head: &Head, page: &Page) -> String {
    let (kind, api_version) = names(head);
    let version = page.version;
    let mut text = format!(
        r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{version}""#
    );
    if let Some((next, remaining)) = page.next {
        // Writing to a string does not fail.
        let _ = write!(text, r#","continue":"{version}.{next}","remainingItemCount":{remaining}"#);
    }
    text.push_str(r#"},"items":["#);
    text
}

fn token(text: &str) -> Option<Token> {
    let (version, place) = text.split_once('.')?;
    Some((version.parse().ok()?, place.parse().ok()?))
}
