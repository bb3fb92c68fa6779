//! `/history`: every change with its cause, in words or as one JSON object per line.
//!
//! Invariant: an answer shows records as they were written, and has a bound; a client that wants more asks again with
//! `after`. There is no table: a sentence has no fixed number of columns, and JSON has every field.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream;
use holdfast_core::facts::Timestamp;
use holdfast_status::age::add_ages;

use super::absent_service;
use super::form::Form;
use super::query::Query;
use super::response;
use holdfast_agent::readings::Readings;
use holdfast_agent::recorder::{Line, RecordQuery};

/// The most records of an answer without a limit: as many as a person reads through.
const LIMIT_DEFAULT: usize = 1_000;

/// The content type of one JSON object per line.
const JSON_LINES: &str = "application/jsonl";

/// The whole answer, oldest record first.
pub(super) fn history(readings: &Readings, query: Query, form: Form) -> Response {
    let limit = Some(query.records.limit.unwrap_or(LIMIT_DEFAULT));
    let service = query.filter.service.clone();
    let lines = readings.history.select(&RecordQuery { service, limit, ..query.records });
    if lines.is_empty() {
        let none = || render_lines(readings, lines, form);
        return absent_service::answer_known(readings, (&query.filter, form), none);
    }
    render_lines(readings, lines, form)
}

fn render_lines(readings: &Readings, lines: Vec<Arc<Line>>, form: Form) -> Response {
    let now = readings.now();
    let (shown, content_type): (fn(&Line, Timestamp) -> String, _) = match form {
        Form::Json => (json_line, JSON_LINES),
        Form::Table | Form::Wide if lines.is_empty() => {
            return response::text(StatusCode::OK, empty_text(readings.history.fill().dropped));
        }
        Form::Table | Form::Wide => (text_line, Form::Table.content_type()),
    };
    // The client's read creates each line, so that an answer takes no memory of its size.
    let pieces =
        lines.into_iter().map(move |line: Arc<Line>| Ok::<_, Infallible>(Bytes::from(shown(&line, now))));
    response::typed_response(StatusCode::OK, content_type, Body::from_stream(stream::iter(pieces)))
}

/// The answer without a matching record. If records were dropped, some of them may have matched.
fn empty_text(dropped: u64) -> String {
    match dropped {
        0 => "no record matches\n".to_owned(),
        dropped => format!(
            "no record matches any more; {dropped} records of the namespaces with most of them were evicted, and some \
             may have matched\n"
        ),
    }
}

fn json_line(line: &Line, _: Timestamp) -> String {
    format!("{}\n", line.json)
}

fn text_line(line: &Line, now: Timestamp) -> String {
    line.record().map(|record| add_ages(&record.sentence(), now) + "\n").unwrap_or_default()
}
