//! What is answered at each port, with kube-proxy's paths, statuses, headers and bodies.
//!
//! Invariant: no answer depends on what the request says beyond its path, and none is larger than the metrics.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use holdfast_core::keys::ObjectName;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::PrettyFormatter;
use tokio::sync::watch;

use super::asked::Asked;
use super::door::Answerer;
use super::health::{Health, Well};
use super::metrics;
use crate::exposition::CONTENT_TYPE;
use crate::readings::Readings;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// What kube-proxy would call its mode. It is none of kube-proxy's own words, so that a tool that looks for the rules
/// of one of its modes does not look here.
const MODE: &str = "ebpf";

fn typed(status: StatusCode, content_type: &'static str, body: impl Into<String>) -> Response<String> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn not_found() -> Response<String> {
    typed(StatusCode::NOT_FOUND, TEXT, "404 page not found\n")
}

const fn status(is_good: bool) -> StatusCode {
    if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// A value as JSON; the types that are written here have nothing that JSON cannot say.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// `/healthz` and `/livez`.
#[derive(Debug)]
pub(super) struct HealthDoor {
    pub(super) health: watch::Receiver<Health>,
    pub(super) asked: Arc<Asked>,
}

impl Answerer for HealthDoor {
    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        let (with_node, asked) = match request.uri().path() {
            "/healthz" => (true, &self.asked.healthz),
            "/livez" => (false, &self.asked.livez),
            _ => return not_found(),
        };
        let now = Well { at: SystemTime::now(), seen: Instant::now() };
        let health = self.health.borrow().answer(now, with_node);
        asked.count(health.is_good);
        typed(status(health.is_good), JSON, json(&health))
    }
}

/// `/metrics`, `/proxyMode` and `/healthz`, which says that the daemon runs.
#[derive(Debug)]
pub(super) struct MetricsDoor {
    pub(super) readings: Readings,
    pub(super) asked: Arc<Asked>,
}

impl Answerer for MetricsDoor {
    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        match request.uri().path() {
            "/metrics" => {
                let text = metrics::exposition(&self.readings, &self.asked);
                typed(StatusCode::OK, CONTENT_TYPE, text)
            }
            "/proxyMode" => typed(StatusCode::OK, TEXT, MODE),
            "/healthz" => typed(StatusCode::OK, TEXT, "ok"),
            _ => not_found(),
        }
    }
}

/// A value as JSON with line breaks and tabs, as kube-proxy writes the check of a Service.
fn spread(value: &impl Serialize) -> String {
    let mut body = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"\t");
    // Writing to memory cannot fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut body, formatter));
    String::from_utf8(body).unwrap_or_default()
}

/// What the health check of one Service says, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) service: ObjectName,
    /// How many addresses of its endpoints on this node are ready.
    pub(super) endpoints: usize,
}

/// The health check port of one Service, which gives the same answer whatever is asked.
#[derive(Debug)]
pub(super) struct ServiceDoor {
    pub(super) check: watch::Receiver<Check>,
    pub(super) health: watch::Receiver<Health>,
}

/// The header that says how many endpoints are here, by which a load balancer may weigh this node.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckJson<'a> {
    service: ServiceJson<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceJson<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Answerer for ServiceDoor {
    fn answer(&self, _: &Request<Incoming>) -> Response<String> {
        let Check { service, endpoints } = self.check.borrow().clone();
        let healthy = self.health.borrow().is_healthy(Instant::now());
        let body = CheckJson {
            service: ServiceJson { namespace: service.namespace(), name: service.name() },
            local_endpoints: endpoints,
            service_proxy_healthy: healthy,
        };
        let mut response = typed(status(endpoints > 0 && healthy), JSON, spread(&body));
        response.headers_mut().insert(WEIGHT, endpoints.into());
        response
    }
}
