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

use super::{Overheard, Topic};
use holdfast_kubernetes::apiserver::{Access, Connection, JSON};
use holdfast_kubernetes::source::line::Lines;
use holdfast_kubernetes::source::pace::{chance, part};
use holdfast_kubernetes::source::page::Page;
use holdfast_kubernetes::source::piece::Piece;
use holdfast_kubernetes::source::resource::{self, push};

const PATH: &str = "/api/v1/events?";

/// How long a watch is asked to last at least; up to a quarter more is added by chance.
const WATCH: Duration = Duration::from_secs(240);

/// The longest silence that is waited for: nothing tells that a watch of Events is alive, so it may be silent for as
/// long as it lasts.
const SILENCE: Duration = Duration::from_secs(330);

/// The longest time until an answer begins.
const ANSWER: Duration = Duration::from_secs(10);

/// The pause after a watch that ended or did not begin, and the longest one: Events are not urgent.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long a watch has to last for the pause after it to be short again.
const LASTED: Duration = Duration::from_secs(30);

/// One line of a watch.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// Follows the Events of one topic for ever.
pub(super) async fn run(access: Access, node: Arc<str>, topic: Topic, overheard: Arc<Overheard>) {
    let mut version = None;
    let mut pause = PAUSE;
    loop {
        let begun = Instant::now();
        let ended = watch(&access, &node, topic, &overheard, &mut version).await;
        if let Err(error) = ended
            && overheard.went_down(topic.name)
        {
            tracing::warn!(events = topic.name, %error, "Events are not followed; this is tried again");
        }
        pause = if begun.elapsed() >= LASTED { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::time::sleep(pause / 2 + part(pause / 2, chance())).await;
    }
}

/// Watches until the server ends the watch. A version is forgotten if it is too old or led to an error.
async fn watch(
    access: &Access,
    node: &str,
    topic: Topic,
    overheard: &Overheard,
    version: &mut Option<String>,
) -> Result<(), String> {
    let mut connection = access.connect().await.map_err(shown)?;
    let from = match version.take() {
        Some(version) => version,
        None => {
            let (now, kept) = newest(access, topic, connection).await?;
            connection = kept;
            now
        }
    };
    let seconds = (WATCH + part(WATCH / 4, chance())).as_secs();
    let mut reply = ask(access, &resource::watch(list(topic), &from, seconds), connection).await?;
    overheard.is_up(topic.name);
    let mut lines = Lines::default();
    let mut last = Some(from);
    let mut error = None;
    while let Some(chunk) = reply.chunk(SILENCE).await.map_err(shown)? {
        lines.take(&chunk, &mut |piece| {
            if let Piece::Whole(line) = piece {
                match heard(line, node, topic, overheard) {
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

fn shown(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn list(topic: Topic) -> String {
    let mut query = PATH.to_owned();
    push(&mut query, "fieldSelector", topic.fields);
    query
}

/// The version that the Events have now, from a list of one Event.
async fn newest(
    access: &Access,
    topic: Topic,
    connection: Connection,
) -> Result<(String, Connection), String> {
    let mut reply = ask(access, &resource::newest(list(topic)), connection).await?;
    let mut page = Page::default();
    let mut none = |_: Piece<'_>| ();
    while let Some(chunk) = reply.chunk(ANSWER).await.map_err(shown)? {
        page.take(&chunk, &mut none).map_err(shown)?;
    }
    let frame = page.end(&mut none).map_err(shown)?;
    Ok((frame.metadata.resource_version, reply.into_connection()))
}

async fn ask(
    access: &Access,
    query: &str,
    connection: Connection,
) -> Result<holdfast_kubernetes::apiserver::Reply, String> {
    let asked = timeout(ANSWER, access.ask_aside(JSON, query, connection)).await;
    let reply = asked.map_err(|_| "no answer within 10 s".to_owned())?.map_err(shown)?;
    match reply.status {
        200 => Ok(reply),
        403 => Err("this node may not list and watch events: see contrib/kubernetes/rbac.yaml".to_owned()),
        status => Err(format!("the apiserver answers {status}")),
    }
}

/// Takes a line, and returns the version that the watch has reached.
fn heard(line: &[u8], node: &str, topic: Topic, overheard: &Overheard) -> Result<Option<String>, String> {
    let Ok(line) = serde_json::from_slice::<Line>(line) else { return Ok(None) };
    let text = |pointer| line.object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let version = text("/metadata/resourceVersion");
    match line.kind.as_str() {
        "ADDED" | "MODIFIED" => {
            let event = ClusterEvent::from_json(&line.object);
            if !topic.of_node || event.host == node {
                overheard.count(&event);
            }
        }
        "ERROR" => return Err(text("/message").unwrap_or_default().chars().take(200).collect()),
        _ => {}
    }
    Ok(version)
}
