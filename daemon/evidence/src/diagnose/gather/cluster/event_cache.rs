//! Events of the cluster, read on demand: seldom, bounded, and kept for a while.
//!
//! Invariant: an apiserver keeps no cache of Events, so for each question it looks at all Events of a namespace. So
//! however many clients ask, only one diagnosis in [`EVENTS_PACE`] reads any, and what it read is kept for
//! [`EVENTS_CACHE_TTL`]. No diagnosis waits for a turn. What an Event says is text of its writer, and decides nothing.

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

/// What was read lately, and when; shared by all diagnoses.
#[derive(Debug, Default)]
pub(crate) struct EventCache {
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    last_read: Option<Instant>,
    answers: BTreeMap<String, CachedAnswer>,
}

/// What was answered to a question, and when it was asked.
#[derive(Debug)]
struct CachedAnswer {
    asked: Instant,
    heard: ReceivedEvents,
}

impl CachedAnswer {
    /// Whether an answer was kept long enough. A refusal is kept for less long: the daemon may get the right a moment
    /// later.
    fn is_expired(&self, now: Instant) -> bool {
        let limit = if self.heard.list.answer().is_some() { EVENTS_CACHE_TTL } else { EVENTS_PACE };
        now.saturating_duration_since(self.asked) >= limit
    }
}

/// One diagnosis as a reader of Events.
#[derive(Debug)]
pub(super) struct EventReader<'a> {
    events: &'a EventCache,
    is_enabled: bool,
    begun: Instant,
    /// How long ago another diagnosis asked, if that was too short a time ago for this one to ask.
    wait: Option<Duration>,
}

impl EventCache {
    /// Begins a diagnosis. One that comes too soon after another one gets only what is kept.
    pub(super) fn start_reading(&self, is_on: bool, now: Instant) -> EventReader<'_> {
        let mut known = self.lock_state();
        let since = known.last_read.map(|read| now.saturating_duration_since(read));
        let wait = since.filter(|since| *since < EVENTS_PACE);
        if is_on && wait.is_none() {
            known.last_read = Some(now);
        }
        known.answers.retain(|_, kept| !kept.is_expired(now));
        EventReader { events: self, is_enabled: is_on, begun: now, wait }
    }

    fn lock_state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert_answer(&self, path: String, kept: CachedAnswer) {
        let mut known = self.lock_state();
        let oldest = known.answers.iter().min_by_key(|(_, kept)| kept.asked).map(|(path, _)| path.clone());
        if let Some(oldest) = oldest.filter(|_| known.answers.len() >= EVENTS_QUESTIONS_MAX) {
            known.answers.remove(&oldest);
        }
        known.answers.insert(path, kept);
    }
}

impl EventReader<'_> {
    /// Events with these fields, from at most `pages` pages; of them the latest [`EVENTS_READ_MAX`].
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

    /// As [`Self::query`], of all namespaces.
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

    /// The answer that is kept, or else what is read now, if this diagnosis may read.
    async fn cached_or_read(
        &self,
        lane: &mut QuerySession<'_>,
        question: ApiQuery,
        pages: usize,
    ) -> ReceivedEvents {
        let path = question.path.clone();
        if let Some(kept) = self.events.lock_state().answers.get(&path) {
            return kept.heard.clone();
        }
        if let Some(since) = self.wait {
            return ReceivedEvents::from_lookup(Lookup::Failed(pace_message(since).into()));
        }
        let heard = read_events(lane, &question, pages).await;
        if matches!(heard.list, Lookup::Answered(_) | Lookup::Forbidden(_)) {
            self.events.insert_answer(path, CachedAnswer { asked: self.begun, heard: heard.clone() });
        }
        heard
    }
}

const OFF: &str = "[kubernetes] events_read is \"off\"";

fn pace_message(since: Duration) -> String {
    let ago = since.as_secs();
    let left = EVENTS_PACE.saturating_sub(since).as_secs() + 1;
    format!("somebody had Events read {ago} s ago; ask again in {left} s")
}

/// Reads pages until none is left, or until `pages` of them are read.
async fn read_events(lane: &mut QuerySession<'_>, question: &ApiQuery, pages: usize) -> ReceivedEvents {
    let mut list: Vec<ClusterEvent> = Vec::new();
    let asked = lane.pages(question, ListFormat::for_kind("EventList"), pages, |object| {
        let read = serde_json::from_slice::<Value>(object);
        let is_read = read.is_ok();
        list.extend(read.map(|value| ClusterEvent::from_json(&value)));
        is_read
    });
    let asked = asked.await;
    list.sort_by_key(|event| Reverse(event.last.map(|last| last.0)));
    let is_cut = list.len() > EVENTS_READ_MAX;
    list.truncate(EVENTS_READ_MAX);
    match asked {
        Lookup::Answered(listing) => {
            ReceivedEvents { list: Lookup::Answered(list), more: listing.more || is_cut }
        }
        other => ReceivedEvents::from_lookup(other.map(|_| Vec::new())),
    }
}
