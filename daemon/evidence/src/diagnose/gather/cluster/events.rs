//! Events of the cluster, read on demand: seldom, bounded, and kept for a while.
//!
//! Invariant: an apiserver keeps no cache of Events, so for each question it looks at all Events of a namespace. So
//! however many clients ask, only one diagnosis in [`EVENTS_PACE`] reads any, and what it read is kept for
//! [`EVENTS_KEPT`]. No diagnosis waits for a turn. What an Event says is text of its writer, and decides nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_diagnose::limits::{EVENTS_KEPT_MAX, PAGES_MAX};
use holdfast_diagnose::material::{Asked, Heard, Right};
use holdfast_knowledge::ClusterEvent;
use serde_json::Value;
use tokio::time::Instant;

use super::ask::{Form, Lane, Question};
use super::paths::{self, Name};
use super::right;
use crate::diagnose::limits::{EVENTS_KEPT, EVENTS_PACE, EVENTS_QUESTIONS_MAX};

/// What was read lately, and when; shared by all diagnoses.
#[derive(Debug, Default)]
pub(crate) struct Events {
    known: Mutex<KnownEvents>,
}

#[derive(Debug, Default)]
struct KnownEvents {
    read: Option<Instant>,
    answers: BTreeMap<String, KeptAnswer>,
}

/// What was answered to a question, and when it was asked.
#[derive(Debug)]
struct KeptAnswer {
    asked: Instant,
    heard: Heard,
}

impl KeptAnswer {
    /// Whether an answer was kept long enough. A refusal is kept for less long: the daemon may get the right a moment
    /// later.
    fn is_over(&self, now: Instant) -> bool {
        let limit = if self.heard.list.answer().is_some() { EVENTS_KEPT } else { EVENTS_PACE };
        now.saturating_duration_since(self.asked) >= limit
    }
}

/// One diagnosis as a reader of Events.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    events: &'a Events,
    is_on: bool,
    begun: Instant,
    /// How long ago another diagnosis asked, if that was too short a time ago for this one to ask.
    wait: Option<Duration>,
}

impl Events {
    /// Begins a diagnosis. One that comes too soon after another one gets only what is kept.
    pub(super) fn begin(&self, is_on: bool, now: Instant) -> Reading<'_> {
        let mut known = self.known();
        let since = known.read.map(|read| now.saturating_duration_since(read));
        let wait = since.filter(|since| *since < EVENTS_PACE);
        if is_on && wait.is_none() {
            known.read = Some(now);
        }
        known.answers.retain(|_, kept| !kept.is_over(now));
        Reading { events: self, is_on, begun: now, wait }
    }

    fn known(&self) -> MutexGuard<'_, KnownEvents> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, path: String, kept: KeptAnswer) {
        let mut known = self.known();
        let oldest = known.answers.iter().min_by_key(|(_, kept)| kept.asked).map(|(path, _)| path.clone());
        if let Some(oldest) = oldest.filter(|_| known.answers.len() >= EVENTS_QUESTIONS_MAX) {
            known.answers.remove(&oldest);
        }
        known.answers.insert(path, kept);
    }
}

impl Reading<'_> {
    /// Events with these fields, from at most `pages` pages; of them the latest [`EVENTS_KEPT_MAX`].
    pub(super) async fn ask(
        &self,
        lane: &mut Lane<'_>,
        name: &'static str,
        namespace: Name<'_>,
        fields: &[(&str, &str)],
        pages: usize,
    ) -> Heard {
        if !self.is_on {
            return Heard::without(Asked::Not(OFF));
        }
        let right = Right { namespace: Some(namespace.as_str().into()), ..right("", "events", "list") };
        self.answer(lane, Question { name, path: paths::events(namespace, fields), right }, pages).await
    }

    /// As [`Self::ask`], of all namespaces.
    pub(super) async fn ask_everywhere(
        &self,
        lane: &mut Lane<'_>,
        name: &'static str,
        fields: &'static str,
    ) -> Heard {
        if !self.is_on {
            return Heard::without(Asked::Not(OFF));
        }
        let right = right("", "events", "list");
        self.answer(lane, Question { name, path: paths::all_events(fields), right }, PAGES_MAX).await
    }

    /// The answer that is kept, or else what is read now, if this diagnosis may read.
    async fn answer(&self, lane: &mut Lane<'_>, question: Question, pages: usize) -> Heard {
        let path = question.path.clone();
        if let Some(kept) = self.events.known().answers.get(&path) {
            return kept.heard.clone();
        }
        if let Some(since) = self.wait {
            return Heard::without(Asked::Failed(too_soon(since).into()));
        }
        let heard = read(lane, &question, pages).await;
        if matches!(heard.list, Asked::Answered(_) | Asked::Forbidden(_)) {
            self.events.keep(path, KeptAnswer { asked: self.begun, heard: heard.clone() });
        }
        heard
    }
}

const OFF: &str = "[kubernetes] events_read is \"off\"";

fn too_soon(since: Duration) -> String {
    let ago = since.as_secs();
    let left = EVENTS_PACE.saturating_sub(since).as_secs() + 1;
    format!("somebody had Events read {ago} s ago; ask again in {left} s")
}

/// Reads pages until none is left, or until `pages` of them are read.
async fn read(lane: &mut Lane<'_>, question: &Question, pages: usize) -> Heard {
    let mut list: Vec<ClusterEvent> = Vec::new();
    let asked = lane.pages(question, Form::whole("EventList"), pages, |object| {
        let read = serde_json::from_slice::<Value>(object);
        let is_read = read.is_ok();
        list.extend(read.map(|value| ClusterEvent::from_json(&value)));
        is_read
    });
    let asked = asked.await;
    list.sort_by_key(|event| Reverse(event.last.map(|last| last.0)));
    let is_cut = list.len() > EVENTS_KEPT_MAX;
    list.truncate(EVENTS_KEPT_MAX);
    match asked {
        Asked::Answered(listing) => Heard { list: Asked::Answered(list), more: listing.more || is_cut },
        other => Heard::without(other.map(|_| Vec::new())),
    }
}
