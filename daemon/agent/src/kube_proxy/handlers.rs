//! The response of each port, with kube-proxy's paths, statuses, headers and bodies.
//!
//! Invariant: a response depends only on the request's path, and none is larger than the metrics.

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

use super::health::{Health, HealthyTime};
use super::health_requests::HealthRequests;
use super::metrics;
use super::server::Handler;
use crate::exposition::CONTENT_TYPE;
use crate::readings::Readings;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The value of `/proxyMode`. It is none of kube-proxy's own modes, so a tool that looks for the rules of one of them
/// does not look here.
const MODE: &str = "ebpf";

fn build_response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<String>,
) -> Response<String> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn not_found() -> Response<String> {
    build_response(StatusCode::NOT_FOUND, TEXT, "404 page not found\n")
}

const fn status(is_good: bool) -> StatusCode {
    if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// A value as JSON; the types written here always serialize.
fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// `/healthz` and `/livez`.
#[derive(Debug)]
pub(super) struct HealthHandler {
    pub(super) health: watch::Receiver<Health>,
    pub(super) requests: Arc<HealthRequests>,
}

impl Handler for HealthHandler {
    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        let (with_node, asked) = match request.uri().path() {
            "/healthz" => (true, &self.requests.healthz),
            "/livez" => (false, &self.requests.livez),
            _ => return not_found(),
        };
        let now = HealthyTime { at: SystemTime::now(), instant: Instant::now() };
        let health = self.health.borrow().build_response(now, with_node);
        asked.count(health.is_good);
        build_response(status(health.is_good), JSON, to_json(&health))
    }
}

/// `/metrics`, `/proxyMode` and `/healthz`, which is good while the daemon runs.
#[derive(Debug)]
pub(super) struct MetricsHandler {
    pub(super) readings: Readings,
    pub(super) requests: Arc<HealthRequests>,
}

impl Handler for MetricsHandler {
    fn answer(&self, request: &Request<Incoming>) -> Response<String> {
        match request.uri().path() {
            "/metrics" => {
                let text = metrics::render_metrics(&self.readings, &self.requests);
                build_response(StatusCode::OK, CONTENT_TYPE, text)
            }
            "/proxyMode" => build_response(StatusCode::OK, TEXT, MODE),
            "/healthz" => build_response(StatusCode::OK, TEXT, "ok"),
            _ => not_found(),
        }
    }
}

/// A value as JSON with line breaks and tabs, as kube-proxy writes the check of a Service.
fn to_pretty_json(value: &impl Serialize) -> String {
    let mut body = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"\t");
    // Writing to memory cannot fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut body, formatter));
    String::from_utf8(body).unwrap_or_default()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceCheck {
    pub(super) service: ObjectName,
    /// How many addresses of its endpoints on this node are ready.
    pub(super) endpoints: usize,
}

/// The health check port of one Service, which gives the same response to every request.
#[derive(Debug)]
pub(super) struct ServiceHandler {
    pub(super) check: watch::Receiver<ServiceCheck>,
    pub(super) health: watch::Receiver<Health>,
}

/// The header with the number of local endpoints, by which a load balancer may weigh this node.
const WEIGHT_HEADER: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

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

impl Handler for ServiceHandler {
    fn answer(&self, _: &Request<Incoming>) -> Response<String> {
        let ServiceCheck { service, endpoints } = self.check.borrow().clone();
        let healthy = self.health.borrow().is_healthy(Instant::now());
        let body = CheckJson {
            service: ServiceJson { namespace: service.namespace(), name: service.name() },
            local_endpoints: endpoints,
            service_proxy_healthy: healthy,
        };
        let mut response = build_response(status(endpoints > 0 && healthy), JSON, to_pretty_json(&body));
        response.headers_mut().insert(WEIGHT_HEADER, endpoints.into());
        response
    }
}
