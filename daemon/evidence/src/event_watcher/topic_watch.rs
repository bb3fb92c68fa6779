//! One watch of Events, over its own connections.
//!
//! Invariant: the watch resumes at its last version if the apiserver allows it, and otherwise starts with new Events;
//! it never lists old ones. Requests are sent at a bounded rate, whatever an apiserver does, and no failure here marks
//! an endpoint of the apiserver as bad.

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

/// The least duration that a watch requests; up to a quarter is added at random.
const WATCH_DURATION: Duration = Duration::from_secs(240);

/// The longest silence: a watch of Events has no sign of life, so it may be silent as long as it lasts.
const SILENCE_MAX: Duration = Duration::from_secs(330);

/// The longest time until a reply begins.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a watch that ended or failed, and the longest one: Events are not urgent.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A watch of at least this length resets the pause.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct WatchLine {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

pub(super) async fn watch_topic(access: Access, node: Arc<str>, topic: Topic, counters: Arc<EventCounters>) {
    let mut version = None;
    let mut pause = PAUSE;
    loop {
        let begun = Instant::now();
        let ended = watch_once(&access, &node, topic, &counters, &mut version).await;
        if let Err(error) = ended
            && counters.mark_down(topic.name)
        {
            tracing::warn!(events = topic.name, %error, "cannot watch Events; this is tried again");
        }
        pause = if begun.elapsed() >= HEALTHY_AFTER { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::time::sleep(pause / 2 + random_part(pause / 2, random_chance())).await;
    }
}

/// Watches until the server ends the watch. An error or a version that is too old resets the version.
async fn watch_once(
    access: &Access,
    node: &str,
    topic: Topic,
    counters: &EventCounters,
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
    counters.mark_up(topic.name);
    let mut lines = Lines::default();
    let mut last = Some(from);
    let mut error = None;
    while let Some(chunk) = reply.next_chunk(SILENCE_MAX).await.map_err(error_text)? {
        lines.push_chunk(&chunk, &mut |piece| {
            if let Piece::Whole(line) = piece {
                match handle_line(line, node, topic, counters) {
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

/// The current version of the Events, from a list of one Event.
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
    let reply = timeout(REPLY_TIMEOUT, access.get_best_effort(JSON, query, connection)).await;
    let reply = reply.map_err(|_| "no answer within 10 s".to_owned())?.map_err(error_text)?;
    match reply.status {
        200 => Ok(reply),
        403 => Err("this node may not list and watch events: see contrib/kubernetes/rbac.yaml".to_owned()),
        status => Err(format!("the apiserver answers {status}")),
    }
}

/// Handles a line, and returns the version that the watch has reached.
fn handle_line(
    line: &[u8],
    node: &str,
    topic: Topic,
    counters: &EventCounters,
) -> Result<Option<String>, String> {
    let Ok(line) = serde_json::from_slice::<WatchLine>(line) else { return Ok(None) };
    let text = |pointer| line.object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let version = text("/metadata/resourceVersion");
    match line.kind.as_str() {
        "ADDED" | "MODIFIED" => {
            let event = ClusterEvent::from_json(&line.object);
            if !topic.own_node_only || event.host == node {
                counters.count_event(&event);
            }
        }
        "ERROR" => return Err(text("/message").unwrap_or_default().chars().take(200).collect()),
        _ => {}
    }
    Ok(version)
}
