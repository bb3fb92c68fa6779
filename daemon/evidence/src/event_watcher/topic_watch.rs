//! One watch of Events, over connections of its own.
//!
//! Invariant: the watch goes on where it was if the apiserver lets it, and begins with new Events otherwise; it never
//! lists old ones. Whatever an apiserver does, requests are sent at a bounded rate, and no failure here makes an
//! endpoint of the apiserver count as bad.

use std::sync::Arc;
use std::time::Duration;

use holdfast_knowledge::ClusterEvent;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::{EventCounters, Topic};
use holdfast_kubernetes::apiserver::{Access, Connection, JSON};
use holdfast_kubernetes::source::backoff::{random_chance, random_part};
use holdfast_kubernetes::source::line::Lines;
use holdfast_kubernetes::source::page::JsonPage;
use holdfast_kubernetes::source::piece::Piece;
use holdfast_kubernetes::source::resource::{self, push_parameter};

const PATH: &str = "/api/v1/events?";

/// How long a watch is asked to last at least; up to a quarter more is added by chance.
const WATCH_DURATION: Duration = Duration::from_secs(240);

/// The longest silence that is waited for: nothing tells that a watch of Events is alive, so it may be silent for as
/// long as it lasts.
const SILENCE_MAX: Duration = Duration::from_secs(330);

/// The longest time until an answer begins.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a watch that ended or did not begin, and the longest one: Events are not urgent.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long a watch has to last for the pause after it to be short again.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// One line of a watch.
#[derive(Deserialize)]
struct WatchLine {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// Follows the Events of one topic for ever.
pub(super) async fn watch_topic(access: Access, node: Arc<str>, topic: Topic, overheard: Arc<EventCounters>) {
    let mut version = None;
    let mut pause = PAUSE;
    loop {
        let begun = Instant::now();
        let ended = watch_once(&access, &node, topic, &overheard, &mut version).await;
        if let Err(error) = ended
            && overheard.mark_down(topic.name)
        {
            tracing::warn!(events = topic.name, %error, "Events are not followed; this is tried again");
        }
        pause = if begun.elapsed() >= HEALTHY_AFTER { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::time::sleep(pause / 2 + random_part(pause / 2, random_chance())).await;
    }
}

/// Watches until the server ends the watch. A version is forgotten if it is too old or led to an error.
async fn watch_once(
    access: &Access,
    node: &str,
    topic: Topic,
    overheard: &EventCounters,
    version: &mut Option<String>,
) -> Result<(), String> {
    let mut connection = access.connect().await.map_err(error_text)?;
    let from = match version.take() {
        Some(version) => version,
        None => {
            let (now, kept) = fetch_resource_version(access, topic, connection).await?;
            connection = kept;
            now
        }
    };
    let seconds = (WATCH_DURATION + random_part(WATCH_DURATION / 4, random_chance())).as_secs();
    let mut reply =
        request_events(access, &resource::watch_query(list_query(topic), &from, seconds), connection).await?;
    overheard.mark_up(topic.name);
    let mut lines = Lines::default();
    let mut last = Some(from);
    let mut error = None;
    while let Some(chunk) = reply.next_chunk(SILENCE_MAX).await.map_err(error_text)? {
        lines.push_chunk(&chunk, &mut |piece| {
            if let Piece::Whole(line) = piece {
                match handle_line(line, node, topic, overheard) {
                    Ok(version) => last = version.or(last.take()),
                    Err(message) => error = Some(message),
                }
            }
        });
        if let Some(error) = error {
            return Err(error);
        }
    }
    *version = last;
    Ok(())
}

fn error_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn list_query(topic: Topic) -> String {
    let mut query = PATH.to_owned();
    push_parameter(&mut query, "fieldSelector", topic.fields);
    query
}

/// The version that the Events have now, from a list of one Event.
async fn fetch_resource_version(
    access: &Access,
    topic: Topic,
    connection: Connection,
) -> Result<(String, Connection), String> {
    let mut reply =
        request_events(access, &resource::newest_version_query(list_query(topic)), connection).await?;
    let mut page = JsonPage::default();
    let mut none = |_: Piece<'_>| ();
    while let Some(chunk) = reply.next_chunk(REPLY_TIMEOUT).await.map_err(error_text)? {
        page.push_chunk(&chunk, &mut none).map_err(error_text)?;
    }
    let frame = page.finish(&mut none).map_err(error_text)?;
    Ok((frame.metadata.resource_version, reply.into_connection()))
}

async fn request_events(
    access: &Access,
    query: &str,
    connection: Connection,
) -> Result<holdfast_kubernetes::apiserver::Reply, String> {
    let asked = timeout(REPLY_TIMEOUT, access.get_best_effort(JSON, query, connection)).await;
    let reply = asked.map_err(|_| "no answer within 10 s".to_owned())?.map_err(error_text)?;
    match reply.status {
        200 => Ok(reply),
        403 => Err("this node may not list and watch events: see contrib/kubernetes/rbac.yaml".to_owned()),
        status => Err(format!("the apiserver answers {status}")),
    }
}

/// Takes a line, and returns the version that the watch has reached.
fn handle_line(
    line: &[u8],
    node: &str,
    topic: Topic,
    overheard: &EventCounters,
) -> Result<Option<String>, String> {
    let Ok(line) = serde_json::from_slice::<WatchLine>(line) else { return Ok(None) };
    let text = |pointer| line.object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let version = text("/metadata/resourceVersion");
    match line.kind.as_str() {
        "ADDED" | "MODIFIED" => {
            let event = ClusterEvent::from_json(&line.object);
            if !topic.own_node_only || event.host == node {
                overheard.count_event(&event);
            }
        }
        "ERROR" => return Err(text("/message").unwrap_or_default().chars().take(200).collect()),
        _ => {}
    }
    Ok(version)
}
