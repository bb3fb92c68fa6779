//! `/verify`: what the apiserver has, what is in memory and what is in the kernel, compared now.
//!
//! Invariant: equal means that every comparison that can be made was made and found nothing. What differs in the kernel is
//! written anew by the very comparison; what the watch missed is listed anew if the question came over the socket. The maps are
//! compared once at a time, and whoever asks within [`FRESH`] of its end is told what it found; the apiserver is asked once in a
//! while, whoever wants to know: each answer says how old it is. Deliberately absent: folders and configuration, which are read
//! whole whenever they change.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::answer;
use super::door::{Visit, Way};
use super::form::Form;
use super::query::Query;
use super::shown::as_optional_text;
use crate::moment::{Millis, Moment};
use crate::sources::kubernetes::{Asker, Compared};

/// Differences that are named; the rest is counted.
const NAMED_MAX: usize = 100;

/// How long a comparison stands for the one that somebody asks for.
const FRESH: Duration = Duration::from_secs(1);

/// The last comparison with the maps. Whoever asks while one runs waits for it.
#[derive(Clone, Default)]
pub struct Verifications(Arc<Mutex<Option<Ended>>>);

/// When a comparison ended, and what it found.
type Ended = (Instant, Arc<Comparison>);

impl fmt::Debug for Verifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifications")
    }
}

impl Verifications {
    /// The last one if it is fresh, or a new one. If its asker leaves, or it cannot be made, the next one who waits begins
    /// anew.
    async fn get(&self, run: impl Future<Output = Comparison>) -> Arc<Comparison> {
        let mut last = self.0.lock().await;
        if let Some((_, fresh)) = last.as_ref().filter(|(ended, _)| ended.elapsed() < FRESH) {
            return Arc::clone(fresh);
        }
        let found = Arc::new(run.await);
        *last = found.equal.is_some().then(|| (Instant::now(), Arc::clone(&found)));
        found
    }
}

#[derive(Debug, Serialize)]
struct Verification {
    equal: bool,
    comparisons: Vec<Arc<Comparison>>,
}

#[derive(Debug, Serialize)]
struct Comparison {
    /// `memory with kernel`, `apiserver with memory`.
    what: String,
    /// Null: it could not be made.
    equal: Option<bool>,
    differences: Vec<String>,
    omitted: usize,
    error: Option<String>,
    /// When it was made; null if it could not be.
    #[serde(serialize_with = "as_optional_text")]
    compared_at: Option<Moment>,
    /// How long ago, in whole seconds.
    age_seconds: Option<u64>,
}

impl Comparison {
    fn of(what: String, compared: Compared) -> Self {
        let compared_at = compared.at.map(|at| Moment(Millis::of(at).seconds()));
        let age_seconds = compared.at.map(|_| compared.age.as_secs());
        match compared.found {
            Ok(mut differences) => {
                let (equal, omitted) = (differences.is_empty(), differences.len().saturating_sub(NAMED_MAX));
                differences.truncate(NAMED_MAX);
                let error = None;
                Self { what, equal: Some(equal), differences, omitted, error, compared_at, age_seconds }
            }
            Err(error) => {
                let (differences, error) = (Vec::new(), Some(error));
                Self { what, equal: None, differences, omitted: 0, error, compared_at, age_seconds }
            }
        }
    }

    fn text(&self) -> String {
        let verdict = match (self.equal, &self.error) {
            (Some(true), _) => "equal".to_owned(),
            (Some(false), _) => format!("{} differences", self.differences.len() + self.omitted),
            (None, error) => format!("not compared: {}", error.as_deref().unwrap_or_default()),
        };
        let lines = self.differences.iter().map(|it| format!("  {}\n", it.replace(char::is_control, "?")));
        let age = match self.age_seconds {
            Some(age @ 1..) => format!(" ({age} s ago)"),
            Some(0) | None => String::new(),
        };
        format!("{}: {verdict}{age}\n{}", self.what, lines.collect::<String>())
    }
}

/// Answers.
pub(super) async fn verify(visit: Visit, _: Query, form: Form) -> Response {
    let asker = match visit.door.way {
        Way::Tcp(_) => Asker::Looks,
        Way::Unix => Asker::Mends,
    };
    let (kernel, apiserver) = tokio::join!(with_maps(&visit), visit.readings.watches.audit(asker));
    let mut comparisons = vec![kernel];
    let of = |(what, compared)| Arc::new(Comparison::of(format!("apiserver with memory, {what}"), compared));
    comparisons.extend(apiserver.into_iter().map(of));
    let equal = comparisons.iter().all(|it| it.equal == Some(true));
    let verification = Verification { equal, comparisons };
    match form {
        Form::Json => answer::json(StatusCode::OK, &verification),
        Form::Table | Form::Wide => {
            let text = verification.comparisons.iter().map(|it| it.text()).collect::<String>();
            let end = if equal { "all equal\n" } else { "NOT equal\n" };
            answer::text(StatusCode::OK, text + end)
        }
    }
}

/// A turn first, among those of this door: who waits for one keeps nobody of the other door waiting.
async fn with_maps(visit: &Visit) -> Arc<Comparison> {
    let kind = visit.readings.datapath().kind();
    match visit.turn().await {
        Ok(_turn) => visit.readings.verifications.get(compare(visit)).await,
        Err(busy) => Arc::new(told(kind, Err(busy.to_string()))),
    }
}

async fn compare(visit: &Visit) -> Comparison {
    let found = match visit.readings.engine.check().await {
        Ok(Ok(drift)) => Ok(drift.iter().map(ToString::to_string).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(busy) => Err(busy.to_string()),
    };
    told(visit.readings.datapath().kind(), found)
}

fn told(kind: &str, found: Result<Vec<String>, String>) -> Comparison {
    let at = found.is_ok().then(SystemTime::now);
    Comparison::of(format!("memory with {kind}"), Compared { found, at, age: Duration::ZERO })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// As long as a large comparison takes.
    const LONG: Duration = Duration::from_secs(3);

    async fn run(count: &AtomicUsize, running: &AtomicUsize) -> Comparison {
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(running.fetch_add(1, Ordering::Relaxed), 0, "two at a time");
        tokio::time::sleep(LONG).await;
        running.fetch_sub(1, Ordering::Relaxed);
        told("maps", Ok(Vec::new()))
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_ask_within_a_second_get_one_comparison() {
        let (all, count, running) = (Verifications::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let asks = (0..40).map(|_| all.get(run(&count, &running)));
        futures_util::future::join_all(asks).await;
        assert_eq!(count.load(Ordering::Relaxed), 1);
        tokio::time::sleep(FRESH).await;
        all.get(run(&count, &running)).await;
        assert_eq!(count.load(Ordering::Relaxed), 2, "what is older than a second is compared anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_comparison_whose_asker_leaves_is_made_by_the_next() {
        let (all, count, running) = (Verifications::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let left = tokio::time::timeout(LONG / 2, all.get(run(&count, &running))).await;
        assert!(left.is_err());
        running.store(0, Ordering::Relaxed);
        assert_eq!(all.get(run(&count, &running)).await.equal, Some(true));
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
