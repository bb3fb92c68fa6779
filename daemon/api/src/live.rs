//! `/watch`: every record as it is made, and every event of an object that changed nothing for clients.
//!
//! Invariant: a watcher that does not keep up is told so and sent away; it never makes anybody wait. There is a bound
//! on watchers, each holds no more than one record, and a silent stream still shows that it is alive.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::answer::Refusal;
use super::door::{Permit, Visit};
use super::form::Form;
use super::hint::Hint;
use super::query::Query;
use super::{answer, limits};
use holdfast_agent::recorder::{Line, Watch, WatchEvent};

/// The content type of what browsers call server-sent events.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// A comment, which clients skip, for a stream that has nothing else to say.
const STILL_HERE: &str = ": still here\n\n";

/// The comment with which a stream begins at once, so that a client knows that nothing from now on is missed.
const BEGUN: &str = ": watching\n\n";

/// The whole stream, until the client goes or the daemon stops.
pub(super) async fn watch(visit: Visit, query: Query, _: Form) -> Response {
    let Some(place) = visit.door.watchers.take(visit.peer) else {
        let error = format!("there are {} watchers already", limits::WATCHERS_MAX);
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, Hint::Watchers).into_response();
    };
    let heard = visit.readings.history.watch(query.filter.service);
    let watching = Watching { heard, stage: Stage::Begins, _place: Some(place) };
    let pieces = stream::unfold(watching, async |mut watching| {
        let piece = watching.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(piece)), watching))
    });
    answer::typed(StatusCode::OK, EVENT_STREAM, Body::from_stream(pieces))
}

/// What a watcher that has not read for too long is told.
const LATE: &str = "you did not read in time, and records are lost from here on: watch again, and look for them in the history";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begins,
    Goes,
    Ended,
}

struct Watching {
    heard: Watch,
    stage: Stage,
    /// The place among the watchers of its door, taken as long as the stream goes.
    _place: Option<Permit>,
}

impl Watching {
    async fn next(&mut self) -> Option<String> {
        match self.stage {
            Stage::Begins => {
                self.stage = Stage::Goes;
                Some(BEGUN.to_owned())
            }
            Stage::Goes => match tokio::time::timeout(limits::HEARTBEAT, self.event()).await {
                Ok(event) => Some(event),
                Err(_) => Some(STILL_HERE.to_owned()),
            },
            Stage::Ended => None,
        }
    }

    async fn event(&mut self) -> String {
        match self.heard.next().await {
            WatchEvent::Line(line) => record(&line),
            WatchEvent::Late => self.last("dropped", LATE),
            WatchEvent::End => self.last("end", "the daemon stops"),
        }
    }

    fn last(&mut self, event: &str, why: &str) -> String {
        self.stage = Stage::Ended;
        format!("event: {event}\ndata: {}\n\n", serde_json::json!({ "why": why }))
    }
}

fn record(line: &Line) -> String {
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

    fn watching(history: &Arc<History>, service: Option<&str>) -> Watching {
        let service = service.map(|name| ObjectName::new("default", name).unwrap());
        Watching { heard: history.watch(service), stage: Stage::Goes, _place: None }
    }

    async fn all(mut watching: Watching) -> Vec<String> {
        let mut pieces = Vec::new();
        while let Some(piece) = watching.next().await {
            pieces.push(piece);
        }
        pieces
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_shows_that_it_is_alive() {
        let history = Arc::default();
        let mut watching = watching(&history, None);
        let begun = tokio::time::Instant::now();
        assert_eq!(watching.next().await.as_deref(), Some(STILL_HERE));
        assert_eq!(begun.elapsed().as_secs(), limits::HEARTBEAT.as_secs());
    }

    #[tokio::test]
    async fn whoever_does_not_keep_up_is_told_so_and_sent_away() {
        let history = Arc::default();
        let watching = watching(&history, None);
        std::thread::spawn(move || tell_many(&history, 3_000)).join().unwrap();
        let mut pieces = all(watching).await;
        let last = pieces.pop().unwrap();
        assert_eq!(last, format!("event: dropped\ndata: {{\"why\":\"{LATE}\"}}\n\n"));
        assert!((1..3_000).contains(&pieces.len()), "what waited is told before: {}", pieces.len());
    }

    #[tokio::test]
    async fn only_what_is_asked_for_comes_and_at_last_the_end() {
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
