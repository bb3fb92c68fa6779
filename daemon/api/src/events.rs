//! `/events`: the Events of the cluster, and what is known of them.
//!
//! Invariant: it changes nothing. An apiserver is queried only for a client of the socket, with the permits and bounds
//! of a diagnosis. A TCP client may be any process of this host, and learns that the apiserver was not queried.

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_diagnose::evidence::{Lookup, ReceivedEvents};
use holdfast_diagnose::{EventList, EventScope};

use super::admin_listener::{ListenerKind, RequestContext};
use super::form::Form;
use super::limits::DIAGNOSES_MAX;
use super::query::Query;
use super::response::{self, ApiError};
use holdfast_evidence::diagnose::EXIT_HEADER;

/// Reads the Events, recognises them, and renders the list.
pub(super) async fn events(visit: RequestContext, query: Query, form: Form) -> Response {
    let Some(_place) = visit.listener.diagnoses.try_acquire(visit.peer) else {
        let error = format!("{DIAGNOSES_MAX} diagnoses are already running");
        return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error, "try again in a few seconds")
            .into_response();
    };
    let about = query.filter.service;
    let snapshot = visit.readings.snapshot();
    let (heard, edition) = match visit.listener.kind {
        ListenerKind::Unix => visit.actions.gatherer.query_events(about.as_ref(), &snapshot).await,
        ListenerKind::Tcp(_) => (refuse_over_tcp(), Arc::clone(&visit.events.editions.borrow())),
    };
    let version = visit.readings.about.version;
    // The first list may assemble the knowledge, and must not block other clients.
    let written = tokio::task::spawn_blocking(move || {
        let now = holdfast_host::clock::now().seconds();
        let scope = EventScope { service: about.as_ref(), snapshot: &snapshot, now, version };
        render_diagnosis(&EventList::new(&heard, || edition.knowledge(), scope), form)
    });
    written.await.unwrap_or_else(|error| {
        response::text(StatusCode::INTERNAL_SERVER_ERROR, format!("error: the list ended: {error}\n"))
    })
}

fn refuse_over_tcp() -> ReceivedEvents {
    ReceivedEvents::from_lookup(Lookup::Skipped(
        "the apiserver is queried only for clients of the unix socket",
    ))
}

fn render_diagnosis(list: &EventList, form: Form) -> Response {
    let mut response = match form {
        Form::Json => response::json(StatusCode::OK, list),
        Form::Table => response::text(StatusCode::OK, list.to_text(false)),
        Form::Wide => response::text(StatusCode::OK, list.to_text(true)),
    };
    let exit = HeaderValue::from(u16::from(list.exit));
    response.headers_mut().insert(HeaderName::from_static(EXIT_HEADER), exit);
    response
}
