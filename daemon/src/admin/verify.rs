//! `/verify`: what the apiserver has, what is in memory and what is in the kernel, compared now.
//!
//! Invariant: equal means that every comparison that can be made was made and found nothing. What differs in the kernel is
//! written anew by the very comparison; what the watch missed is listed anew if the question came over the socket. The apiserver
//! is asked once in a while, whoever wants to know: the answer says how old it is. Deliberately absent: folders and
//! configuration, which are read whole whenever they change.

use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::answer;
use super::door::{Visit, Way};
use super::form::Form;
use super::query::Query;
use super::shown::as_optional_text;
use crate::moment::{Millis, Moment};
use crate::sources::kubernetes::{Asker, Compared};

/// Differences that are named; the rest is counted.
const NAMED_MAX: usize = 100;

#[derive(Serialize)]
struct Verification {
    equal: bool,
    comparisons: Vec<Comparison>,
}

#[derive(Serialize)]
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
    let of = |(what, compared)| Comparison::of(format!("apiserver with memory, {what}"), compared);
    comparisons.extend(apiserver.into_iter().map(of));
    let equal = comparisons.iter().all(|it| it.equal == Some(true));
    let verification = Verification { equal, comparisons };
    match form {
        Form::Json => answer::json(StatusCode::OK, &verification),
        Form::Table | Form::Wide => {
            let text = verification.comparisons.iter().map(Comparison::text).collect::<String>();
            let end = if equal { "all equal\n" } else { "NOT equal\n" };
            answer::text(StatusCode::OK, text + end)
        }
    }
}

async fn with_maps(visit: &Visit) -> Comparison {
    let checked = match visit.turn().await {
        Ok(_turn) => visit.readings.engine.check().await,
        Err(busy) => Err(busy),
    };
    let found = match checked {
        Ok(Ok(drift)) => Ok(drift.iter().map(ToString::to_string).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(busy) => Err(busy.to_string()),
    };
    let at = found.is_ok().then(SystemTime::now);
    let compared = Compared { found, at, age: Duration::ZERO };
    Comparison::of(format!("memory with {}", visit.readings.datapath().kind()), compared)
}
