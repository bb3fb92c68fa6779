//! Writes one Event: a new one, or the count of the one that says the same.
//!
//! Invariant: an Event takes at most three requests, each bounded in time. If the answer to a write is lost, the write
//! is tried at the next endpoint: so a count may be one too high, and no Event is missing. A write that failed
//! everywhere is not tried again later.

use std::time::Duration;

use serde::Deserialize;

use super::cluster_event::ClusterEvent;
use crate::apiserver::{Access, AccessError, JSON, Reply, WriteRequest};

/// Where Events are. An apiserver that serves EndpointSlices serves this version of Events as well.
const ROOT: &str = "/apis/events.k8s.io/v1/namespaces";

/// The most bytes that an answer may have: an Event has a few hundred, and an error is a sentence.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// The longest time between two pieces of an answer.
const REPLY_IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why an Event was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventWriteError {
    /// No apiserver answers at any endpoint.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// An apiserver answered, and refused.
    #[error(
        "{status}: {message}; the role of holdfast needs get, create and patch of events in events.k8s.io"
    )]
    Refused {
        /// The HTTP status, neither 2xx nor 409 for a new Event.
        status: u16,
        /// Why it refused, in the apiserver's words.
        message: String,
    },
}

/// What is needed of an Event that exists.
#[derive(Default, Deserialize)]
struct ExistingEvent {
    series: Option<Series>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    count: u64,
}

/// The body of a refusal, a `Status`.
#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

/// Writes the Event, and returns when the apiserver has it.
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

/// Adds one to the count of an Event that exists already.
async fn increment_series(access: &Access, notice: &ClusterEvent, path: &str) -> Result<(), EventWriteError> {
    let known = check_reply(access.get_best_effort(JSON, path, access.connect().await?).await?).await?;
    let known: ExistingEvent = serde_json::from_slice(&known).unwrap_or_default();
    // An Event without a series has happened once.
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
