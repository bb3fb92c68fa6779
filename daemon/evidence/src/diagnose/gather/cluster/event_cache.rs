//! Events of the cluster, read on demand: rarely, bounded, and cached for a while.
//!
//! Invariant: an apiserver does not cache Events, so it scans all Events of a namespace for each query. Therefore only
//! one diagnosis in [`EVENTS_PACE`] reads any, however many clients ask, and its answers are cached for
//! [`EVENTS_CACHE_TTL`]. No diagnosis waits for its turn. An Event is foreign text, and decides nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_diagnose::evidence::{Lookup, ReceivedEvents, Right};
use holdfast_diagnose::limits::{EVENTS_READ_MAX, PAGES_MAX};
use holdfast_knowledge::ClusterEvent;
use serde_json::Value;
use tokio::time::Instant;

use super::api_query::{ApiQuery, ListFormat, QuerySession};
use super::paths::{self, PathSegment};
use super::rbac_right;
use crate::diagnose::limits::{EVENTS_CACHE_TTL, EVENTS_PACE, EVENTS_QUESTIONS_MAX};

/// Recent answers, shared by all diagnoses.
#[derive(Debug, Default)]
pub(crate) struct EventCache {
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    last_read: Option<Instant>,
    answers: BTreeMap<String, CachedAnswer>,
}

#[derive(Debug)]
struct CachedAnswer {
    asked: Instant,
    received: ReceivedEvents,
}

impl CachedAnswer {
    /// Whether the answer is too old. A refusal expires sooner: the daemon may get the right a moment later.
    fn is_expired(&self, now: Instant) -> bool {
        let limit = if self.received.list.answer().is_some() { EVENTS_CACHE_TTL } else { EVENTS_PACE };
        now.saturating_duration_since(self.asked) >= limit
    }
}

/// One diagnosis as a reader of Events.
#[derive(Debug)]
pub(super) struct EventReader<'a> {
    events: &'a EventCache,
    is_enabled: bool,
    begun: Instant,
    /// Time since another diagnosis read Events, if that is too short for this one to read.
    wait: Option<Duration>,
}

impl EventCache {
    /// Starts a diagnosis. Shortly after another one it gets cached answers only.
    pub(super) fn start_reading(&self, is_on: bool, now: Instant) -> EventReader<'_> {
        let mut state = self.lock_state();
        let since = state.last_read.map(|read| now.saturating_duration_since(read));
        let wait = since.filter(|since| *since < EVENTS_PACE);
        if is_on && wait.is_none() {
            state.last_read = Some(now);
        }
        state.answers.retain(|_, answer| !answer.is_expired(now));
        EventReader { events: self, is_enabled: is_on, begun: now, wait }
    }

    fn lock_state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert_answer(&self, path: String, answer: CachedAnswer) {
        let mut state = self.lock_state();
        let oldest =
            state.answers.iter().min_by_key(|(_, answer)| answer.asked).map(|(path, _)| path.clone());
        if let Some(oldest) = oldest.filter(|_| state.answers.len() >= EVENTS_QUESTIONS_MAX) {
            state.answers.remove(&oldest);
        }
        state.answers.insert(path, answer);
    }
}

impl EventReader<'_> {
    /// Events with these fields from at most `pages` pages; of them the latest [`EVENTS_READ_MAX`].
    pub(super) async fn query(
        &self,
        lane: &mut QuerySession<'_>,
        name: &'static str,
        namespace: PathSegment<'_>,
        fields: &[(&str, &str)],
        pages: usize,
    ) -> ReceivedEvents {
        if !self.is_enabled {
            return ReceivedEvents::from_lookup(Lookup::Skipped(OFF));
        }
        let right = Right { namespace: Some(namespace.as_str().into()), ..rbac_right("", "events", "list") };
        self.cached_or_read(lane, ApiQuery { name, path: paths::events(namespace, fields), right }, pages)
            .await
    }

    /// Like [`Self::query`], in all namespaces.
    pub(super) async fn query_all_namespaces(
        &self,
        lane: &mut QuerySession<'_>,
        name: &'static str,
        fields: &'static str,
    ) -> ReceivedEvents {
        if !self.is_enabled {
            return ReceivedEvents::from_lookup(Lookup::Skipped(OFF));
        }
        let right = rbac_right("", "events", "list");
        self.cached_or_read(lane, ApiQuery { name, path: paths::all_events(fields), right }, PAGES_MAX).await
    }

    /// The cached answer, or else a new one if this diagnosis may read.
    async fn cached_or_read(
        &self,
        lane: &mut QuerySession<'_>,
        question: ApiQuery,
        pages: usize,
    ) -> ReceivedEvents {
        let path = question.path.clone();
        if let Some(cached) = self.events.lock_state().answers.get(&path) {
            return cached.received.clone();
        }
        if let Some(since) = self.wait {
            return ReceivedEvents::from_lookup(Lookup::Failed(pace_message(since).into()));
        }
        let received = read_events(lane, &question, pages).await;
        if matches!(received.list, Lookup::Answered(_) | Lookup::Forbidden(_)) {
            self.events.insert_answer(path, CachedAnswer { asked: self.begun, received: received.clone() });
        }
        received
    }
}

const OFF: &str = "[kubernetes] events_read is \"off\"";

fn pace_message(since: Duration) -> String {
    let ago = since.as_secs();
    let left = EVENTS_PACE.saturating_sub(since).as_secs() + 1;
    format!("another diagnosis read Events {ago} s ago; ask again in {left} s")
}

async fn read_events(lane: &mut QuerySession<'_>, question: &ApiQuery, pages: usize) -> ReceivedEvents {
    let mut list: Vec<ClusterEvent> = Vec::new();
    let lookup = lane.pages(question, ListFormat::for_kind("EventList"), pages, |object| {
        let read = serde_json::from_slice::<Value>(object);
        let is_read = read.is_ok();
        list.extend(read.map(|value| ClusterEvent::from_json(&value)));
        is_read
    });
    let lookup = lookup.await;
    list.sort_by_key(|event| Reverse(event.last.map(|last| last.0)));
    let is_cut = list.len() > EVENTS_READ_MAX;
    list.truncate(EVENTS_READ_MAX);
    match lookup {
        Lookup::Answered(listing) => {
            ReceivedEvents { list: Lookup::Answered(list), more: listing.more || is_cut }
        }
        other => ReceivedEvents::from_lookup(other.map(|_| Vec::new())),
    }
}
