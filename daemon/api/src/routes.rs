//! The paths that are served, each with what it describes of itself.
//!
//! Invariant: [`PATHS`] lists every path that can be read; the router, the index and the description are made of it.

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
use super::answer::{self, Refusal};
use super::answers::{Answers, anything, schema};
use super::apiserver::{self, Apiserver};
use super::backends::BackendTable;
use super::datapath::{self, Datapath};
use super::door::{Visit, Way};
use super::drains::{self, DrainList};
use super::flows::{self, Flows};
use super::form::Form;
use super::frontends::Frontends;
use super::guard::{form_of, guarded};
use super::health::{self, Health, Readiness};
use super::hint::Hint;
use super::path::{Maker, Path};
use super::query::Query;
use super::refusals::{self, Refusals};
use super::services::Services;
use super::table::{self, Table};
use super::verify::{self, Verification};
use super::{diagnose, events, explain, forget, history, live, metrics, openapi, page, parameters, reload};
use holdfast_agent::exposition::CONTENT_TYPE;
use holdfast_agent::readings::Readings;

/// What 503 means on the paths that tell whether something is well.
const NO: &str = "It is not well; `reason` says why.";

pub(super) static PATHS: [Path; 22] = [
    Path {
        path: "/",
        about: "this list",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Shown(about::index),
        answers: Answers::of(schema::<Index>),
    },
    Path {
        path: "/frontends",
        about: "what clients dial, and what they get",
        legal: parameters::FRONTENDS,
        answer: Maker::Known(rows::<Frontends>),
        answers: Answers::of(table::described::<Frontends>),
    },
    Path {
        path: "/backends",
        about: "every endpoint of every port, used or not",
        legal: parameters::BACKENDS,
        answer: Maker::Known(rows::<BackendTable>),
        answers: Answers::of(table::described::<BackendTable>),
    },
    Path {
        path: "/services",
        about: "every service, and what was rejected",
        legal: parameters::SERVICES,
        answer: Maker::Known(rows::<Services>),
        answers: Answers::of(table::described::<Services>),
    },
    Path {
        path: "/drains",
        about: "what operators have drained",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Known(drains::drains),
        answers: Answers::of(schema::<DrainList>),
    },
    Path {
        path: "/refusals",
        about: "the latest clients that were not served",
        legal: parameters::REFUSALS,
        answer: Maker::Known(refusals::refusals),
        answers: Answers::of(schema::<Refusals<'static>>),
    },
    Path {
        path: "/flows",
        about: "clients from outside and their backends",
        legal: parameters::FLOWS,
        answer: Maker::Known(flows::flows),
        answers: Answers::of(schema::<Flows<'static>>),
    },
    Path {
        path: "/explain",
        about: "why a client meets what it meets",
        legal: parameters::EXPLAIN,
        answer: Maker::Asked(|visit, query, form| Box::pin(explain::explain(visit, query, form))),
        answers: Answers::of(schema::<Explanation<'static>>)
            .or("404", "Nobody has it; the answer says what is near."),
    },
    Path {
        path: "/diagnose",
        about: "what is wrong with a service",
        legal: parameters::DIAGNOSE,
        answer: Maker::Asked(|visit, query, form| Box::pin(diagnose::diagnose(visit, query, form))),
        answers: Answers::of(schema::<Diagnosis<'static>>).or("404", "There is no such Service."),
    },
    Path {
        path: "/events",
        about: "what the cluster says, and what it means",
        legal: parameters::EVENTS,
        answer: Maker::Asked(|visit, query, form| Box::pin(events::events(visit, query, form))),
        answers: Answers::of(schema::<EventList>),
    },
    Path {
        path: "/verify",
        about: "apiserver, memory and maps, compared now",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Asked(|visit, query, form| Box::pin(verify::verify(visit, query, form))),
        answers: Answers::of(schema::<Verification>),
    },
    Path {
        path: "/history",
        about: "every change with its cause",
        legal: parameters::HISTORY,
        answer: Maker::Known(history::history),
        answers: Answers::lines(schema::<Record>),
    },
    Path {
        path: "/watch",
        about: "the same as it happens, as server-sent events",
        legal: parameters::WATCH,
        answer: Maker::Asked(|visit, query, form| Box::pin(live::watch(visit, query, form))),
        answers: Answers::EVENTS,
    },
    Path {
        path: "/datapath",
        about: "programs and maps in the kernel",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Known(datapath::datapath),
        answers: Answers::of(schema::<Datapath<'static>>),
    },
    Path {
        path: "/apiserver",
        about: "which apiserver is used, and why that one",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Known(apiserver::apiserver),
        answers: Answers::of(schema::<Apiserver<'static>>),
    },
    Path {
        path: "/config",
        about: "the configuration in force",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Known(about::config),
        answers: Answers::of(anything),
    },
    Path {
        path: "/version",
        about: "what runs here, since when",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Known(about::version),
        answers: Answers::of(schema::<Version>),
    },
    Path {
        path: "/metrics",
        about: "metrics for Prometheus",
        legal: &[],
        answer: Maker::Asked(|visit, _, _| Box::pin(async move { prometheus(&visit) })),
        answers: Answers::METRICS,
    },
    Path {
        path: "/healthz",
        about: "whether the process answers",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Known(health::healthz),
        answers: Answers::of(schema::<Health>),
    },
    Path {
        path: "/readyz",
        about: "whether the datapath follows the sources",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Asked(|visit, query, form| {
            Box::pin(async move { health::readyz(&visit, query, form) })
        }),
        answers: Answers::of(schema::<Readiness>).or("503", NO),
    },
    Path {
        path: "/livez",
        about: "whether the engine moves",
        legal: parameters::FORMAT_ALONE,
        answer: Maker::Known(health::livez),
        answers: Answers::of(schema::<Health>).or("503", NO),
    },
    Path {
        path: "/openapi.json",
        about: "this API, for programs",
        legal: &[],
        answer: Maker::Listed(openapi::document),
        answers: Answers::DOCUMENT,
    },
];

/// All paths behind the guard of one door.
pub(super) fn router(visit: Visit) -> Router {
    let way = visit.door.way;
    let router = PATHS.iter().fold(Router::new(), |router, path| router.route(path.path, reads(path)));
    let router = match way {
        Way::Unix => router
            .route(reload::PATH, any(reload::reload))
            .route(forget::PATH, any(forget::forget))
            .route(drains::order::ON, any(drains::order::drain))
            .route(drains::order::OFF, any(drains::order::undrain)),
        Way::Tcp(_) => router
            .route(reload::PATH, any(reload::only_by_socket))
            .route(forget::PATH, any(reload::only_by_socket))
            .route(drains::order::ON, any(reload::only_by_socket))
            .route(drains::order::OFF, any(reload::only_by_socket)),
    };
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(only_reads)
        .layer(middleware::from_fn_with_state(way, guarded))
        .with_state(visit)
}

fn reads(path: &'static Path) -> MethodRouter<Visit> {
    get(async move |State(visit): State<Visit>, request: Request| {
        let form = form_of(&request);
        match Query::read(request.uri().query().unwrap_or_default(), path.legal) {
            Ok(query) => match path.answer {
                Maker::Shown(_) if query.form.is_none() && page::is_wanted(request.headers()) => page::page(),
                Maker::Shown(answer) | Maker::Listed(answer) => answer(&PATHS, form),
                Maker::Known(answer) => answer(&visit.readings, query, form),
                Maker::Asked(answer) => {
                    let peer = request.extensions().get().copied();
                    answer(Visit { peer, ..visit }, query, form).await
                }
            },
            Err(refusal) => refusal.into_response(),
        }
    })
}

async fn unknown_path() -> Response {
    let paths: Vec<&str> = PATHS.iter().map(|path| path.path).collect();
    let hint = Hint::Paths(paths.join(" "));
    Refusal::new(StatusCode::NOT_FOUND, "there is no such path", hint).into_response()
}

async fn only_reads() -> Response {
    let hint = "use GET or HEAD; nothing can be changed here but by POST /reload, /apiserver/forget, /drain and /undrain on the unix socket";
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this path can only be read", hint);
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

fn rows<T: Table>(readings: &Readings, query: Query, form: Form) -> Response {
    table::table::<T>(readings, query.filter, form)
}

fn prometheus(visit: &Visit) -> Response {
    let readings = &visit.readings;
    let snapshot = readings.snapshot();
    let text = metrics::exposition(
        (readings, &visit.events.counters),
        &snapshot,
        readings.unready_reason(&snapshot).is_none(),
    );
    answer::typed(StatusCode::OK, CONTENT_TYPE, text)
}
