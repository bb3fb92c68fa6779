//! Schedules look-ups, and finds the changes to report.
//!
//! Invariant: pure, with time as an argument. A name has one look-up at a time, and the next one only after its TTL or
//! the pause after a failure. A result for a replaced query is ignored. Only changes are reported.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::ObjectName;
use holdfast_status::rfc3339::Millis;
use holdfast_status::schema_types::Code;
use holdfast_status::views::names::{LastNameAnswer, NameState, NameStatus, NameTrouble};

use super::lookup::{LookupAnswer, LookupError, NameAnswer};
use super::{NameNews, NameQueries, NameQuery, NameResult};

/// The most concurrent look-ups: silent servers must not delay a name for minutes, and sockets are limited.
pub(super) const LOOKUPS_MAX: usize = 64;

/// The first and the longest pause after a failed look-up; it doubles in between.
pub(super) const RETRY_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

#[derive(Debug)]
struct LookupState {
    query: Arc<NameQuery>,
    // When to resolve next; `None`: a look-up runs.
    due: Option<Duration>,
    failures: u32,
    answer: Option<Arc<NameAnswer>>,
    row: NameStatus,
}

/// The schedule of all names.
#[derive(Debug)]
pub(super) struct LookupSchedule {
    seed: u64,
    states: BTreeMap<ObjectName, LookupState>,
    due: BTreeSet<(Duration, ObjectName)>,
    running: usize,
}

/// The change of a look-up: news to report, and the row for readers.
#[derive(Debug)]
pub(super) struct LookupChange {
    pub(super) news: Option<NameNews>,
    pub(super) row: NameStatus,
    /// A failure ended.
    pub(super) is_recovered: bool,
}

impl LookupSchedule {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, states: BTreeMap::new(), due: BTreeSet::new(), running: 0 }
    }

    /// Replaces the queries; returns new or changed names with their rows, and removed names.
    pub(super) fn update_queries(
        &mut self,
        queries: &NameQueries,
        now: Duration,
    ) -> Vec<(ObjectName, Option<NameStatus>)> {
        let is_gone = |name: &&ObjectName| !queries.contains_key(*name);
        let gone: Vec<_> = self.states.keys().filter(is_gone).cloned().collect();
        let mut changed = Vec::new();
        for name in gone {
            self.drop_due(&name);
            self.states.remove(&name);
            changed.push((name, None));
        }
        for (name, query) in queries {
            if self.states.get(name).is_some_and(|state| state.query == *query) {
                continue;
            }
            changed.push((name.clone(), Some(self.add_query(name, query, now))));
        }
        changed
    }

    fn add_query(&mut self, name: &ObjectName, query: &Arc<NameQuery>, now: Duration) -> NameStatus {
        self.drop_due(name);
        let row = NameStatus {
            name: query.resolve.to_string(),
            state: Code(NameState::Pending),
            answer: None,
            trouble: None,
        };
        let state = LookupState {
            query: Arc::clone(query),
            due: Some(now),
            failures: 0,
            answer: None,
            row: row.clone(),
        };
        self.states.insert(name.clone(), state);
        self.due.insert((now, name.clone()));
        row
    }

    fn drop_due(&mut self, name: &ObjectName) {
        if let Some(due) = self.states.get(name).and_then(|state| state.due) {
            self.due.remove(&(due, name.clone()));
        }
    }

    /// Starts a due look-up. Call it until it returns `None`.
    pub(super) fn start_due(&mut self, now: Duration) -> Option<(ObjectName, Arc<NameQuery>)> {
        let (due, _) = self.due.first()?;
        if *due > now || self.running >= LOOKUPS_MAX {
            return None;
        }
        let (_, name) = self.due.pop_first()?;
        let state = self.states.get_mut(&name)?;
        state.due = None;
        self.running += 1;
        Some((name, Arc::clone(&state.query)))
    }

    /// When the next look-up can start without another one finishing first.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due).filter(|_| self.running < LOOKUPS_MAX)
    }

    /// Records a finished look-up; `None`: its query was replaced.
    pub(super) fn finish_lookup(
        &mut self,
        (name, query): (&ObjectName, &Arc<NameQuery>),
        outcome: Result<LookupAnswer, LookupError>,
        (now, wall): (Duration, Millis),
    ) -> Option<LookupChange> {
        self.running = self.running.saturating_sub(1);
        let hash = jitter_hash(self.seed, name);
        let state = self.states.get_mut(name).filter(|it| Arc::ptr_eq(&it.query, query))?;
        let was_in_trouble = state.row.trouble.is_some();
        let (news, pause) = match outcome {
            Ok(answered) => state.record_answer(answered, wall),
            Err(unresolved) => state.record_failure(unresolved, wall),
        };
        let due = now.saturating_add(add_jitter(pause, hash));
        state.due = Some(due);
        self.due.insert((due, name.clone()));
        let is_recovered = was_in_trouble && state.row.trouble.is_none();
        let news = news.map(|result| NameNews { service: name.clone(), query: Arc::clone(query), result });
        Some(LookupChange { news, row: state.row.clone(), is_recovered })
    }
}

impl LookupState {
    fn record_answer(&mut self, answered: LookupAnswer, wall: Millis) -> (Option<NameResult>, Duration) {
        let LookupAnswer { answer, ttl_seconds: seconds, server, left_out } = answered;
        let (state, backends) = match &answer {
            NameAnswer::Withdrawn => (NameState::Withdrawn, 0),
            NameAnswer::Backends(set) if set.backends.is_empty() => (NameState::Empty, 0),
            NameAnswer::Backends(set) => (NameState::Resolved, set.backends.len()),
        };
        let left_out = left_out.describe_left_out();
        let last = LastNameAnswer { server, at: wall, ttl_seconds: seconds, backends, left_out };
        let was_in_trouble = self.row.trouble.take().is_some();
        (self.row.state, self.row.answer, self.failures) = (Code(state), Some(last), 0);
        let is_news = was_in_trouble || self.answer.as_deref() != Some(&answer);
        if is_news {
            self.answer = Some(Arc::new(answer));
        }
        (self.answer.clone().filter(|_| is_news).map(Ok), Duration::from_secs(seconds))
    }

    fn record_failure(
        &mut self,
        LookupError { server, reason: why }: LookupError,
        wall: Millis,
    ) -> (Option<NameResult>, Duration) {
        let (first, most) = RETRY_PAUSE;
        let pause = first.saturating_mul(1 << self.failures.min(16)).min(most);
        self.failures = self.failures.saturating_add(1);
        let since = self.row.trouble.as_ref().map(|trouble| trouble.since);
        self.row.trouble = Some(NameTrouble { since: since.unwrap_or(wall), server, why });
        self.row.state = Code(NameState::Failing);
        // Only the start of a failure is reported, so it is reported once.
        let begun = self.row.trouble.as_ref().filter(|_| since.is_none());
        (begun.map(|trouble| Err(trouble.to_string().into())), pause)
    }
}

/// Adds up to a tenth, so that names and nodes that started together spread.
fn add_jitter(pause: Duration, hash: u64) -> Duration {
    let tenth = u64::try_from(pause.as_millis() / 10).unwrap_or(u64::MAX);
    pause.saturating_add(Duration::from_millis(hash % tenth.max(1)))
}

fn jitter_hash(seed: u64, name: &ObjectName) -> u64 {
    let mut hash = DefaultHasher::new();
    (seed, name).hash(&mut hash);
    hash.finish()
}

#[cfg(test)]
mod tests;
