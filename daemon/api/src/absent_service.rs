//! The answer about a service that the table lacks.
//!
//! Invariant: an empty table never stands for a service that does not exist. Text says so and names what may have been
//! meant; JSON stays an empty list, and the exit code of the command line says it in every format.

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_diagnose::NO_SERVICE_EXIT;
use holdfast_diagnose::explain::describe_absence;
use holdfast_evidence::explain::gather_obstacles;

use super::form::Form;
use super::query::Filter;
use super::response;
use holdfast_agent::readings::Readings;

/// Answers with `table`, or says that the service of the query does not exist.
pub(super) fn answer_known(
    readings: &Readings,
    (filter, form): (&Filter, Form),
    table: impl FnOnce() -> Response,
) -> Response {
    let asked = filter.service.as_ref();
    let obstacles = gather_obstacles(readings);
    let Some(absence) = asked.and_then(|name| describe_absence(&readings.snapshot(), name, &obstacles))
    else {
        return table();
    };
    with_exit(match form {
        Form::Json => table(),
        Form::Table | Form::Wide => response::text(StatusCode::OK, absence),
    })
}

/// The answer with the exit code for a service that does not exist.
pub(super) fn with_exit(response: Response) -> Response {
    response::with_exit(response, NO_SERVICE_EXIT)
}
