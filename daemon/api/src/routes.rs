//! The served paths, each with its description.
//!
//! Invariant: [`PATHS`] lists every path that can be read; the router, the index and the description are made from it.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use holdfast_diagnose::explain::Explanation;
use holdfast_diagnose::{Diagnosis, EventList};
use holdfast_status::record::Record;

use super::about::{self, Index, Version};
use super::admin_listener::{ListenerKind, RequestContext};
use super::apiserver::{self, Apiserver};
use super::backends::BackendTable;
use super::datapath::{self, Datapath};
use super::drains::{self, DrainList};
use super::flows::{self, Flows};
use super::form::Form;
use super::frontends::Frontends;
use super::guard::{guard_request, requested_format};
use super::health::{self, Health, Readiness};
use super::hint::Hint;
use super::path::{ApiPath, Handler};
use super::query::Query;
use super::refusals::{self, Refusals};
use super::response::{self, ApiError};
use super::response_schema::{ResponseSchema, any_object, schema};
use super::services::Services;
use super::table::{self, Table};
use super::verify::{self, Verification};
use super::{
    absent_service, diagnose, events, explain, forget, history, metrics, openapi, page, parameters,
    record_stream, reload,
};
use holdfast_agent::exposition::CONTENT_TYPE;
use holdfast_agent::readings::Readings;

/// The meaning of 503 on health paths.
const UNHEALTHY: &str = "It is unhealthy; `reason` says why.";

pub(super) static PATHS: [ApiPath; 22] = [
    ApiPath {
        path: "/",
        about: "this list",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::PageOrPaths(about::index),
        response: ResponseSchema::for_type(schema::<Index>),
    },
    ApiPath {
        path: "/frontends",
        about: "what clients dial, and what they get",
        parameters: parameters::FRONTENDS,
        handler: Handler::Immediate(render_table::<Frontends>),
        response: ResponseSchema::for_type(table::describe_table::<Frontends>),
    },
    ApiPath {
        path: "/backends",
        about: "every endpoint of every port, used or not",
        parameters: parameters::BACKENDS,
        handler: Handler::Immediate(render_table::<BackendTable>),
        response: ResponseSchema::for_type(table::describe_table::<BackendTable>),
    },
    ApiPath {
        path: "/services",
        about: "every service, and what was rejected",
        parameters: parameters::SERVICES,
        handler: Handler::Immediate(render_table::<Services>),
        response: ResponseSchema::for_type(table::describe_table::<Services>),
    },
    ApiPath {
        path: "/drains",
        about: "drained backends",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Immediate(drains::drains),
        response: ResponseSchema::for_type(schema::<DrainList>),
    },
    ApiPath {
        path: "/refusals",
        about: "the latest clients that were not served",
        parameters: parameters::REFUSALS,
        handler: Handler::Immediate(refusals),
        response: ResponseSchema::for_type(schema::<Refusals<'static>>),
    },
    ApiPath {
        path: "/flows",
        about: "clients from outside and their backends",
        parameters: parameters::FLOWS,
        handler: Handler::Immediate(flows::flows),
        response: ResponseSchema::for_type(schema::<Flows<'static>>),
    },
    ApiPath {
        path: "/explain",
        about: "what a client gets, and why",
        parameters: parameters::EXPLAIN,
        handler: Handler::Deferred(|visit, query, form| Box::pin(explain::explain(visit, query, form))),
        response: ResponseSchema::for_type(schema::<Explanation<'static>>)
            .with_status("404", "No service has it; the answer lists similar addresses and names."),
    },
    ApiPath {
        path: "/diagnose",
        about: "what is wrong with a service",
        parameters: parameters::DIAGNOSE,
        handler: Handler::Deferred(|visit, query, form| Box::pin(diagnose::diagnose(visit, query, form))),
        response: ResponseSchema::for_type(schema::<Diagnosis<'static>>)
            .with_status("404", "There is no such Service."),
    },
    ApiPath {
        path: "/events",
        about: "Events of the cluster and their meaning",
        parameters: parameters::EVENTS,
        handler: Handler::Deferred(|visit, query, form| Box::pin(events::events(visit, query, form))),
        response: ResponseSchema::for_type(schema::<EventList>),
    },
    ApiPath {
        path: "/verify",
        about: "apiserver, memory and maps, compared now",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Deferred(|visit, query, form| Box::pin(verify::verify(visit, query, form))),
        response: ResponseSchema::for_type(schema::<Verification>),
    },
    ApiPath {
        path: "/history",
        about: "every change with its cause",
        parameters: parameters::HISTORY,
        handler: Handler::Immediate(history::history),
        response: ResponseSchema::for_lines(schema::<Record>),
    },
    ApiPath {
        path: "/watch",
        about: "the same as it happens, as server-sent events",
        parameters: parameters::WATCH,
        handler: Handler::Deferred(|visit, query, form| Box::pin(record_stream::watch(visit, query, form))),
        response: ResponseSchema::EVENTS,
    },
    ApiPath {
        path: "/datapath",
        about: "programs and maps in the kernel",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Immediate(datapath::datapath),
        response: ResponseSchema::for_type(schema::<Datapath<'static>>),
    },
    ApiPath {
        path: "/apiserver",
        about: "which apiserver is used, and why that one",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Immediate(apiserver::apiserver),
        response: ResponseSchema::for_type(schema::<Apiserver<'static>>),
    },
    ApiPath {
        path: "/config",
        about: "the configuration in force",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Immediate(about::config),
        response: ResponseSchema::for_type(any_object),
    },
    ApiPath {
        path: "/version",
        about: "what runs here, since when",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Immediate(about::version),
        response: ResponseSchema::for_type(schema::<Version>),
    },
    ApiPath {
        path: "/metrics",
        about: "metrics for Prometheus",
        parameters: &[],
        handler: Handler::Deferred(|visit, _, _| Box::pin(async move { metrics_response(&visit) })),
        response: ResponseSchema::METRICS,
    },
    ApiPath {
        path: "/healthz",
        about: "whether the process answers",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Immediate(health::healthz),
        response: ResponseSchema::for_type(schema::<Health>),
    },
    ApiPath {
        path: "/readyz",
        about: "whether the datapath follows the sources",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Deferred(|visit, query, form| {
            Box::pin(async move { health::readyz(&visit, query, form) })
        }),
        response: ResponseSchema::for_type(schema::<Readiness>).with_status("503", UNHEALTHY),
    },
    ApiPath {
        path: "/livez",
        about: "whether the engine makes progress",
        parameters: parameters::FORMAT_ONLY,
        handler: Handler::Immediate(health::livez),
        response: ResponseSchema::for_type(schema::<Health>).with_status("503", UNHEALTHY),
    },
    ApiPath {
        path: "/openapi.json",
        about: "this API, for programs",
        parameters: &[],
        handler: Handler::FromPaths(openapi::document),
        response: ResponseSchema::DOCUMENT,
    },
];

/// All paths behind the guard of one listener.
pub(super) fn build_router(visit: RequestContext) -> Router {
    let kind = visit.listener.kind;
    let router =
        PATHS.iter().fold(Router::new(), |router, path| router.route(path.path, build_get_route(path)));
    let router = match kind {
        ListenerKind::Unix => router
            .route(reload::PATH, any(reload::reload))
            .route(forget::PATH, any(forget::forget))
            .route(drains::order::DRAIN_PATH, any(drains::order::drain))
            .route(drains::order::UNDRAIN_PATH, any(drains::order::undrain)),
        ListenerKind::Tcp(_) => router
            .route(reload::PATH, any(reload::refuse_over_tcp))
            .route(forget::PATH, any(reload::refuse_over_tcp))
            .route(drains::order::DRAIN_PATH, any(reload::refuse_over_tcp))
            .route(drains::order::UNDRAIN_PATH, any(reload::refuse_over_tcp)),
    };
    router
        .fallback(refuse_unknown_path)
        .method_not_allowed_fallback(refuse_writes)
        .layer(middleware::from_fn_with_state(kind, guard_request))
        .with_state(visit)
}

fn build_get_route(path: &'static ApiPath) -> MethodRouter<RequestContext> {
    get(async move |State(visit): State<RequestContext>, request: Request| {
        let form = requested_format(&request);
        match Query::read(request.uri().query().unwrap_or_default(), path.parameters) {
            Ok(query) => match path.handler {
                Handler::PageOrPaths(_) if query.form.is_none() && page::wants_html(request.headers()) => {
                    page::page()
                }
                Handler::PageOrPaths(answer) | Handler::FromPaths(answer) => answer(&PATHS, form),
                Handler::Immediate(answer) => answer(&visit.readings, query, form),
                Handler::Deferred(answer) => {
                    let peer = request.extensions().get().copied();
                    answer(RequestContext { peer, ..visit }, query, form).await
                }
            },
            Err(refusal) => refusal.with_known_services(&visit.readings).into_response(),
        }
    })
}

async fn refuse_unknown_path() -> Response {
    let paths: Vec<&str> = PATHS.iter().map(|path| path.path).collect();
    let hint = Hint::Paths(paths.join(" "));
    ApiError::new(StatusCode::NOT_FOUND, "there is no such path", hint).into_response()
}

async fn refuse_writes() -> Response {
    let hint = "use GET or HEAD; nothing can be changed here but by POST /reload, /apiserver/forget, /drain and /undrain on the unix socket";
    let refusal = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this path can only be read", hint);
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

fn render_table<T: Table>(readings: &Readings, query: Query, form: Form) -> Response {
    let Query { filter, .. } = query;
    let table = || table::table_response::<T>(readings, filter.clone(), form);
    absent_service::answer_known(readings, (&filter, form), table)
}

fn refusals(readings: &Readings, query: Query, form: Form) -> Response {
    let Query { filter, .. } = query;
    absent_service::answer_known(readings, (&filter, form), || refusals::refusals(readings, &filter, form))
}

fn metrics_response(visit: &RequestContext) -> Response {
    let readings = &visit.readings;
    let snapshot = readings.snapshot();
    let text = metrics::render_metrics(
        (readings, &visit.events.counters),
        &snapshot,
        readings.unready_reason(&snapshot).is_none(),
    );
    response::typed_response(StatusCode::OK, CONTENT_TYPE, text)
}
