//! Writes one Event: creates it, or increments the count of the same one.
//!
//! Invariant: an Event takes at most three requests, each with a time limit. If the reply to a write is lost, the next
//! endpoint gets the write: a count may be one too high, but no Event is missing. A write that failed everywhere is not
//! retried.

use std::time::Duration;

use serde::Deserialize;

use super::cluster_event::ClusterEvent;
use crate::apiserver::{Access, AccessError, JSON, Reply, WriteRequest};

/// The path of Events. An apiserver that serves EndpointSlices serves this version too.
const ROOT: &str = "/apis/events.k8s.io/v1/namespaces";

/// The most bytes of a reply: an Event has a few hundred, and an error is a sentence.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// The longest gap between two chunks of a reply.
const REPLY_IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why an Event was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventWriteError {
    /// No apiserver replied.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// An apiserver refused.
    #[error(
        "{status}: {message}; the role of holdfast needs get, create and patch of events in events.k8s.io"
    )]
    Refused {
        /// The HTTP status: neither 2xx nor 409 for a new Event.
        status: u16,
        /// The apiserver's reason.
        message: String,
    },
}

/// The needed part of an existing Event.
#[derive(Default, Deserialize)]
struct ExistingEvent {
    series: Option<Series>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    count: u64,
}

/// The `Status` of a refusal.
#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

/// Writes the Event; returns once the apiserver has it.
pub(super) async fn write_event(
    access: &Access,
    notice: &ClusterEvent,
    node: &str,
) -> Result<(), EventWriteError> {
    let events = format!("{ROOT}/{}/events", notice.object.namespace());
    let body = notice.to_json(node).to_string();
    let reply = access.write_best_effort(&events, &WriteRequest::Create(&body)).await?;
    if reply.status == CONFLICT {
        return increment_series(access, notice, &format!("{events}/{}", notice.event_name(node))).await;
    }
    check_reply(reply).await.map(drop)
}

const CONFLICT: u16 = 409;

/// Increments the count of an existing Event.
async fn increment_series(access: &Access, notice: &ClusterEvent, path: &str) -> Result<(), EventWriteError> {
    let known = check_reply(access.get_best_effort(JSON, path, access.connect().await?).await?).await?;
    let known: ExistingEvent = serde_json::from_slice(&known).unwrap_or_default();
    // An Event without a series has occurred once.
    let count = known.series.map_or(1, |series| series.count).saturating_add(1);
    let body = notice.series_patch(count.max(2)).to_string();
    check_reply(access.write_best_effort(path, &WriteRequest::Merge(&body)).await?).await.map(drop)
}

async fn check_reply(reply: Reply) -> Result<bytes::Bytes, EventWriteError> {
    let status = reply.status;
    let (body, _) = reply.read_body(REPLY_BYTES_MAX, REPLY_IDLE_TIMEOUT).await?;
    if (200..300).contains(&status) {
        return Ok(body);
    }
    let body: Status = serde_json::from_slice(&body).unwrap_or_default();
    Err(EventWriteError::Refused { status, message: body.message })
}
