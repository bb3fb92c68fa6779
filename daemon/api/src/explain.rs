//! `/explain`: explains what a client gets at an address or a service, and renders the answer.
//!
//! Invariant: only the engine reads the maps, with a permit of this listener.

mod text;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::keys::FrontendKey;
use holdfast_diagnose::explain::{ReadBack, ResolvedQuery};

use super::absent_service;
use super::admin_listener::RequestContext;
use super::form::Form;
use super::query::Query;
use super::response;
use holdfast_evidence::explain::gather_evidence;
use holdfast_status::age::add_ages;

/// Finds the services, has the maps read, and renders the answer.
pub(super) async fn explain(visit: RequestContext, query: Query, form: Form) -> Response {
    let walk = ResolvedQuery::resolve(visit.readings.snapshot(), query.explain_query(), query.filter.from);
    let read = read_back(&visit, walk.frontend_keys()).await;
    let explanation = walk.explain(&gather_evidence(&visit.readings, &walk, &read), &read);
    let status = if walk.is_not_found() { StatusCode::NOT_FOUND } else { StatusCode::OK };
    let response = response::render_response(status, form, &explanation, || {
        add_ages(&text::write(&explanation), visit.readings.now())
    });
    match query.filter.service {
        Some(_) if walk.is_not_found() => absent_service::with_exit(response),
        Some(_) | None => response::with_finding(response, walk.has_problem(&explanation)),
    }
}

/// The entries in the maps of the answer's frontends.
pub(super) async fn read_back(visit: &RequestContext, keys: Vec<FrontendKey>) -> ReadBack {
    let entries = match visit.acquire_query_permit().await {
        Ok(_turn) => visit.readings.engine.read(keys.clone()).await,
        Err(busy) => Err(busy),
    };
    match entries {
        Ok(entries) => {
            let entries = entries.into_iter().map(|entry| entry.map_err(|error| error.to_string()));
            keys.into_iter().zip(entries).collect()
        }
        Err(busy) => failed_read_back(keys, &busy),
    }
}

/// The replacement for the entries if the maps could not be read.
pub(super) fn failed_read_back(keys: Vec<FrontendKey>, why: &impl ToString) -> ReadBack {
    keys.into_iter().map(|key| (key, Err(why.to_string()))).collect()
}
