//! `/verify`: what the apiserver has, what is in memory and what is in the kernel, compared now.
//!
//! Invariant: equal means that every comparison that can be made was made and found nothing. What differs in the kernel is
//! written anew, and what the watch missed is listed anew, by the very comparison. Deliberately absent: folders and
//! configuration, which are read whole whenever they change.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::Readings;
use super::answer;
use super::form::Form;
use super::query::Query;

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
}

impl Comparison {
    fn of(what: String, found: Result<Vec<String>, String>) -> Self {
        match found {
            Ok(mut differences) => {
                let (equal, omitted) = (differences.is_empty(), differences.len().saturating_sub(NAMED_MAX));
                differences.truncate(NAMED_MAX);
                Self { what, equal: Some(equal), differences, omitted, error: None }
            }
            Err(error) => Self { what, equal: None, differences: Vec::new(), omitted: 0, error: Some(error) },
        }
    }

    fn text(&self) -> String {
        let verdict = match (self.equal, &self.error) {
            (Some(true), _) => "equal".to_owned(),
            (Some(false), _) => format!("{} differences", self.differences.len() + self.omitted),
            (None, error) => format!("not compared: {}", error.as_deref().unwrap_or_default()),
        };
        let lines = self.differences.iter().map(|it| format!("  {}\n", it.replace(char::is_control, "?")));
        format!("{}: {verdict}\n{}", self.what, lines.collect::<String>())
    }
}

/// Answers.
pub(super) async fn verify(readings: Arc<Readings>, _: Query, form: Form) -> Response {
    let (kernel, apiserver) = tokio::join!(with_maps(&readings), readings.watches.audit());
    let mut comparisons = vec![kernel];
    let of = |(what, found)| Comparison::of(format!("apiserver with memory, {what}"), found);
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

async fn with_maps(readings: &Readings) -> Comparison {
    let found = match readings.engine.check().await {
        Ok(Ok(drift)) => Ok(drift.iter().map(ToString::to_string).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(busy) => Err(busy.to_string()),
    };
    Comparison::of(format!("memory with {}", readings.datapath().kind()), found)
}
