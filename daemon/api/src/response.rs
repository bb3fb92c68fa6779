//! Answers that fit in one piece, and refusals.
//!
//! Invariant: a refusal has the error and the advice, in the format and the words of the client; only the guard, which
//! knows both, renders it.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_evidence::diagnose::EXIT_HEADER;
use schemars::JsonSchema;
use serde::Serialize;

use super::form::Form;
use super::hint::{Hint, HintStyle};
use holdfast_agent::readings::Readings;

/// The exit code of a command whose answer reports a problem.
const FINDING_EXIT: u8 = 1;

/// The answer with an exit code for the command line.
pub(super) fn with_exit(mut response: Response, exit: u8) -> Response {
    response.headers_mut().insert(HeaderName::from_static(EXIT_HEADER), HeaderValue::from(u16::from(exit)));
    response
}

/// The answer with the exit code that says whether it reports a problem.
pub(super) fn with_finding(response: Response, has_problem: bool) -> Response {
    if has_problem { with_exit(response, FINDING_EXIT) } else { response }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) error: String,
    pub(super) hint: Hint,
}

/// The error, and the advice.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct ApiErrorBody<'a> {
    error: &'a str,
    hint: &'a str,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, error: impl Into<String>, hint: impl Into<Hint>) -> Self {
        Self { status, error: error.into(), hint: hint.into() }
    }

    /// Names the services that a name without a namespace may mean.
    pub(super) fn with_known_services(self, readings: &Readings) -> Self {
        let hint = match self.hint {
            Hint::BareName(name) => Hint::BareName(name.find_services(readings)),
            other => other,
        };
        Self { hint, ..self }
    }

    pub(super) fn to_response(&self, form: Form, words: HintStyle) -> Response {
        let Self { status, error, .. } = self;
        let hint = self.hint.text(words);
        let text = || format!("error: {error}\nhint: {hint}\n");
        render_response(*status, form, &ApiErrorBody { error, hint: &hint }, text)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

pub(super) fn text(status: StatusCode, text: impl Into<Body>) -> Response {
    typed_response(status, Form::Table.content_type(), text)
}

/// An answer of one JSON value with a line end, so that a prompt begins on its own line.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            typed_response(status, Form::Json.content_type(), bytes)
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("error: {error}\n")),
    }
}

/// An answer in the requested format: JSON for programs, text for people.
pub(super) fn render_response<B: Into<Body>>(
    status: StatusCode,
    form: Form,
    value: &impl Serialize,
    text: impl FnOnce() -> B,
) -> Response {
    match form {
        Form::Json => json(status, value),
        Form::Table | Form::Wide => self::text(status, text()),
    }
}

pub(super) fn typed_response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
