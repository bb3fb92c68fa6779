//! `/watch`: every record as it is made, and every event of an object that changed nothing for clients.
//!
//! Invariant: a watcher that lags is notified and disconnected; it never blocks anything. The number of watchers has a
//! bound, each holds at most one record, and a silent stream has heartbeats.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::admin_listener::{Permit, RequestContext};
use super::form::Form;
use super::hint::Hint;
use super::query::Query;
use super::response::ApiError;
use super::{limits, response};
use holdfast_agent::recorder::{Line, Watch, WatchEvent};

pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// A comment, which clients skip, for a silent stream.
const HEARTBEAT_COMMENT: &str = ": still here\n\n";

/// The comment at the start of a stream, so that a client knows that it misses nothing from now on.
const START_COMMENT: &str = ": watching\n\n";

/// The whole stream, until the client goes or the daemon stops.
pub(super) async fn watch(visit: RequestContext, query: Query, _: Form) -> Response {
    let Some(place) = visit.listener.watchers.try_acquire(visit.peer) else {
        let error = format!("there are {} watchers already", limits::WATCHERS_MAX);
        return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error, Hint::Watchers).into_response();
    };
    let records = visit.readings.history.watch(query.filter.service);
    let watching = RecordStream { records, stage: WatchStage::Starting, _place: Some(place) };
    let pieces = stream::unfold(watching, async |mut watching| {
        let piece = watching.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(piece)), watching))
    });
    response::typed_response(StatusCode::OK, EVENT_STREAM, Body::from_stream(pieces))
}

/// The message to a watcher that has not read for too long.
const LAGGING_REASON: &str =
    "this watcher lagged, and records are lost from here on: watch again, and find them in the history";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchStage {
    Starting,
    Streaming,
    Ended,
}

struct RecordStream {
    records: Watch,
    stage: WatchStage,
    /// The permit for a watcher of its listener, held until the stream ends.
    _place: Option<Permit>,
}

impl RecordStream {
    async fn next(&mut self) -> Option<String> {
        match self.stage {
            WatchStage::Starting => {
                self.stage = WatchStage::Streaming;
                Some(START_COMMENT.to_owned())
            }
            WatchStage::Streaming => match tokio::time::timeout(limits::HEARTBEAT, self.next_event()).await {
                Ok(event) => Some(event),
                Err(_) => Some(HEARTBEAT_COMMENT.to_owned()),
            },
            WatchStage::Ended => None,
        }
    }

    async fn next_event(&mut self) -> String {
        match self.records.next().await {
            WatchEvent::Line(line) => render_record(&line),
            WatchEvent::Late => self.end_with("dropped", LAGGING_REASON),
            WatchEvent::End => self.end_with("end", "the daemon stops"),
        }
    }

    fn end_with(&mut self, event: &str, why: &str) -> String {
        self.stage = WatchStage::Ended;
        format!("event: {event}\ndata: {}\n\n", serde_json::json!({ "why": why }))
    }
}

fn render_record(line: &Line) -> String {
    let id = line.seq.map(|seq| format!("id: {seq}\n")).unwrap_or_default();
    format!("{id}event: record\ndata: {}\n\n", line.json)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_core::keys::ObjectName;

    use super::*;
    use holdfast_agent::recorder::History;
    use holdfast_agent::recorder::tests::{tell_incident, tell_many};

    fn watching(history: &Arc<History>, service: Option<&str>) -> RecordStream {
        let service = service.map(|name| ObjectName::new("default", name).unwrap());
        RecordStream { records: history.watch(service), stage: WatchStage::Streaming, _place: None }
    }

    async fn all(mut watching: RecordStream) -> Vec<String> {
        let mut pieces = Vec::new();
        while let Some(piece) = watching.next().await {
            pieces.push(piece);
        }
        pieces
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_sends_heartbeats() {
        let history = Arc::default();
        let mut watching = watching(&history, None);
        let begun = tokio::time::Instant::now();
        assert_eq!(watching.next().await.as_deref(), Some(HEARTBEAT_COMMENT));
        assert_eq!(begun.elapsed().as_secs(), limits::HEARTBEAT.as_secs());
    }

    #[tokio::test]
    async fn a_lagging_watcher_is_notified_and_disconnected() {
        let history = Arc::default();
        let watching = watching(&history, None);
        std::thread::spawn(move || tell_many(&history, 3_000)).join().unwrap();
        let mut pieces = all(watching).await;
        let last = pieces.pop().unwrap();
        assert_eq!(last, format!("event: dropped\ndata: {{\"why\":\"{LAGGING_REASON}\"}}\n\n"));
        assert!((1..3_000).contains(&pieces.len()), "waiting records come first: {}", pieces.len());
    }

    #[tokio::test]
    async fn a_watch_gets_records_of_its_service_and_then_the_end() {
        let history = Arc::default();
        let watching = watching(&history, Some("kubernetes-intranet"));
        std::thread::spawn(move || tell_incident(&history)).join().unwrap();
        let pieces = all(watching).await;
        let begins: Vec<&str> = pieces.iter().map(|piece| piece.get(..20).unwrap()).collect();
        assert_eq!(
            begins,
            [
                "id: 2\nevent: record\n",
                "event: record\ndata: ",
                "id: 5\nevent: record\n",
                "event: end\ndata: {\"w"
            ]
        );
        assert!(pieces[1].contains("\"kind\":\"event\""), "{}", pieces[1]);
    }
}
