//! The paths.
//!
//! Invariant: [`PATHS`] lists every one of them; the router is made of it.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use serde::Serialize;

use super::answer::{self, Refusal};
use super::backends::{self, BackendTable};
use super::door::{Visit, Way};
use super::form::Form;
use super::frontends::{self, Frontends};
use super::guard::{form_of, guarded};
use super::hint::Hint;
use super::page::{Table, page};
use super::query::{Legal, Query};
use super::services::{self, Services};
use super::{
    apiserver, datapath, explain, forget, history, live, metrics, openapi, refusals, reload, verify,
};
use crate::readings::Readings;
use crate::recorder::Recorded;
use crate::rfc3339::Rfc3339;
use holdfast_core::keys::Source;

/// What a path answers with.
#[derive(Clone, Copy)]
enum Answer {
    /// What is known already.
    Known(fn(&Readings, Query, Form) -> Response),
    /// What others must be asked for, or what depends on the door.
    Asked(fn(Visit, Query, Form) -> Asked),
}

type Asked = Pin<Box<dyn Future<Output = Response> + Send>>;

struct Path {
    path: &'static str,
    about: &'static str,
    legal: Legal,
    answer: Answer,
}

static PATHS: [Path; 18] = [
    Path { path: "/", about: "this list", legal: Legal::FORMAT, answer: Answer::Known(index) },
    Path {
        path: "/frontends",
        about: "what clients dial, and what they get",
        legal: frontends::LEGAL,
        answer: Answer::Known(table::<Frontends>),
    },
    Path {
        path: "/backends",
        about: "every endpoint of every port, used or not",
        legal: backends::LEGAL,
        answer: Answer::Known(table::<BackendTable>),
    },
    Path {
        path: "/services",
        about: "every service, and what was rejected",
        legal: services::LEGAL,
        answer: Answer::Known(table::<Services>),
    },
    Path {
        path: "/refusals",
        about: "the latest clients that were not served",
        legal: refusals::LEGAL,
        answer: Answer::Known(refusals::refusals),
    },
    Path {
        path: "/explain",
        about: "why a client meets what it meets",
        legal: explain::LEGAL,
        answer: Answer::Asked(|visit, query, form| Box::pin(explain::explain(visit, query, form))),
    },
    Path {
        path: "/verify",
        about: "apiserver, memory and maps, compared now",
        legal: Legal::FORMAT,
        answer: Answer::Asked(|visit, query, form| Box::pin(verify::verify(visit, query, form))),
    },
    Path {
        path: "/history",
        about: "every change with its cause",
        legal: history::LEGAL,
        answer: Answer::Known(history::history),
    },
    Path {
        path: "/watch",
        about: "the same as it happens, as server-sent events",
        legal: live::LEGAL,
        answer: Answer::Asked(|visit, query, form| Box::pin(live::watch(visit, query, form))),
    },
    Path {
        path: "/datapath",
        about: "programs and maps in the kernel",
        legal: Legal::FORMAT,
        answer: Answer::Known(datapath::datapath),
    },
    Path {
        path: "/apiserver",
        about: "which apiserver is used, and why that one",
        legal: Legal::FORMAT,
        answer: Answer::Known(apiserver::apiserver),
    },
    Path {
        path: "/config",
        about: "the configuration in force",
        legal: Legal::FORMAT,
        answer: Answer::Known(config),
    },
    Path {
        path: "/version",
        about: "what runs here, since when",
        legal: Legal::FORMAT,
        answer: Answer::Known(version),
    },
    Path {
        path: "/metrics",
        about: "metrics for Prometheus",
        legal: Legal::NOTHING,
        answer: Answer::Known(prometheus),
    },
    Path {
        path: "/healthz",
        about: "whether the process answers",
        legal: Legal::FORMAT,
        answer: Answer::Known(healthz),
    },
    Path {
        path: "/readyz",
        about: "whether the datapath follows the sources",
        legal: Legal::FORMAT,
        answer: Answer::Known(readyz),
    },
    Path {
        path: "/livez",
        about: "whether the engine moves",
        legal: Legal::FORMAT,
        answer: Answer::Known(livez),
    },
    Path {
        path: "/openapi.json",
        about: "this API, for programs",
        legal: Legal::NOTHING,
        answer: Answer::Known(description),
    },
];

/// All paths behind the guard of one door.
pub(super) fn router(visit: Visit) -> Router {
    let way = visit.door.way;
    let router = PATHS.iter().fold(Router::new(), |router, path| router.route(path.path, reads(path)));
    let router = match way {
        Way::Unix => router.route(reload::PATH, any(reload::reload)).route(forget::PATH, any(forget::forget)),
        Way::Tcp(_) => router
            .route(reload::PATH, any(reload::only_by_socket))
            .route(forget::PATH, any(reload::only_by_socket)),
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
        match Query::read(request.uri().query().unwrap_or_default(), &path.legal) {
            Ok(query) => match path.answer {
                Answer::Known(answer) => answer(&visit.readings, query, form),
                Answer::Asked(answer) => {
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
    let hint = "use GET or HEAD; nothing can be changed here but by POST /reload and POST /apiserver/forget on the unix socket";
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this path can only be read", hint);
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

fn table<T: Table>(readings: &Readings, query: Query, form: Form) -> Response {
    page::<T>(readings, query.filter, form)
}

#[derive(Serialize)]
struct Index {
    paths: Vec<IndexRow>,
}

#[derive(Serialize)]
struct IndexRow {
    path: &'static str,
    about: &'static str,
    parameters: &'static [&'static str],
}

fn index(_: &Readings, _: Query, form: Form) -> Response {
    let row =
        |path: &Path| IndexRow { path: path.path, about: path.about, parameters: path.legal.parameters };
    let paths: Vec<IndexRow> = PATHS.iter().map(row).collect();
    match form {
        Form::Json => answer::json(StatusCode::OK, &Index { paths }),
        Form::Table | Form::Wide => {
            let line = |row: &IndexRow| {
                let parameters = row.parameters.iter().map(|name| format!("?{name}=")).collect::<Vec<_>>();
                format!("{:14} {:42} {}", row.path, row.about, parameters.join(" ")).trim_end().to_owned()
                    + "\n"
            };
            answer::text(StatusCode::OK, paths.iter().map(line).collect::<String>())
        }
    }
}

fn config(readings: &Readings, _: Query, form: Form) -> Response {
    let config = Arc::clone(&readings.config.borrow());
    let text = match form {
        Form::Json => &config.json,
        Form::Table | Form::Wide => &config.text,
    };
    let line_end = if text.ends_with('\n') { "" } else { "\n" };
    answer::typed(StatusCode::OK, form.content_type(), format!("{text}{line_end}"))
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    node: Arc<str>,
    datapath: &'static str,
    started: Rfc3339,
}

fn version(readings: &Readings, _: Query, form: Form) -> Response {
    let about = &readings.about;
    let node = Arc::clone(&readings.snapshot().node.name);
    let (datapath, started) = (readings.datapath().kind(), Rfc3339(about.started));
    match form {
        Form::Json => {
            let version = Version { version: about.version, node, datapath, started };
            answer::json(StatusCode::OK, &version)
        }
        Form::Table | Form::Wide => {
            let version = about.version;
            let text = format!("holdfast {version} on {node}, datapath {datapath}, since {started}\n");
            answer::text(StatusCode::OK, text)
        }
    }
}

fn prometheus(readings: &Readings, _: Query, _: Form) -> Response {
    let snapshot = readings.snapshot();
    let text = metrics::exposition(readings, &snapshot, readings.unready_by(&snapshot).is_none());
    answer::typed(StatusCode::OK, metrics::CONTENT_TYPE, text)
}

#[derive(Serialize)]
struct Health {
    healthy: bool,
    reason: Option<String>,
}

fn health(reason: Option<String>, form: Form) -> Response {
    let healthy = reason.is_none();
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match form {
        Form::Json => answer::json(status, &Health { healthy, reason }),
        Form::Table | Form::Wide => {
            answer::text(status, format!("{}\n", reason.unwrap_or_else(|| "ok".to_owned())))
        }
    }
}

fn healthz(_: &Readings, _: Query, form: Form) -> Response {
    health(None, form)
}

fn livez(readings: &Readings, _: Query, form: Form) -> Response {
    let reason = |stalled: std::time::Duration| {
        format!("events have waited for {} s, and the engine does not take them", stalled.as_secs())
    };
    health(readings.liveness.stalled().map(reason), form)
}

#[derive(Serialize)]
struct Readiness {
    healthy: bool,
    reason: Option<String>,
    sources: Vec<SourceRow>,
    stale_since: Option<Rfc3339>,
    snapshot: SnapshotRow,
    history: HistoryRow,
}

/// What a restart would begin with.
#[derive(Serialize)]
struct SnapshotRow {
    written: Option<Rfc3339>,
    bytes: u64,
    // Services that are too large for it; the first ones.
    left_out: Vec<Arc<str>>,
    error: Option<Arc<str>>,
}

/// How the recording goes.
#[derive(Serialize)]
struct HistoryRow {
    seq: u64,
    gaps: u64,
    bytes: u64,
    unwritten: u64,
    error: Option<Arc<str>>,
}

impl From<Recorded> for HistoryRow {
    fn from(recorded: Recorded) -> Self {
        let Recorded { seq, gaps, file, .. } = recorded;
        Self { seq, gaps, bytes: file.bytes, unwritten: file.lost, error: file.error }
    }
}

#[derive(Serialize)]
struct SourceRow {
    source: &'static str,
    synced: bool,
}

fn readyz(readings: &Readings, _: Query, form: Form) -> Response {
    let snapshot = readings.snapshot();
    let reason = readings.unready_by(&snapshot);
    if form != Form::Json {
        return health(reason, form);
    }
    let healthy = reason.is_none();
    let row = |(source, synced): (&Source, &bool)| SourceRow { source: source.as_str(), synced: *synced };
    let sources = snapshot.sources.iter().map(row).collect();
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let written = readings.written.borrow().clone();
    let snapshot_row = SnapshotRow {
        written: written.at.map(Rfc3339),
        bytes: written.bytes,
        left_out: written.left_out.named,
        error: written.error,
    };
    let stale_since = snapshot.stale_since.map(Rfc3339);
    let history = readings.history.recorded().into();
    answer::json(
        status,
        &Readiness { healthy, reason, sources, stale_since, snapshot: snapshot_row, history },
    )
}

fn description(_: &Readings, _: Query, _: Form) -> Response {
    answer::typed(StatusCode::OK, Form::Json.content_type(), Body::from(openapi::OPENAPI))
}
