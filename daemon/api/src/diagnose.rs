//! `/diagnose`: the problems of a service, and what to do.
//!
//! Invariant: it changes nothing. A TCP client may be any process of this host, and gets what this node knows by
//! itself; only for a client of the socket does the daemon query the apiserver, inspect this host and open connections.
//! All of it concerns one snapshot: the maps are read first, with a permit of this listener, and the snapshot to
//! compare them with also selects what is dialled and judged. However busy the engine is, an answer comes within the
//! time of a diagnosis, and says what was not read.

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_datapath::Status;
use holdfast_diagnose::evidence::{DiagnosisScope, Evidence, ExternalSource};
use holdfast_diagnose::explain::ReadBack;
use holdfast_diagnose::formatting::join_names;
use holdfast_diagnose::limits::RECORDS_MAX;
use holdfast_diagnose::{Diagnosis, Focus, KnownServices, PortSelector, judge, text};
use tokio::time::{Instant, timeout_at};

use super::admin_listener::{ListenerKind, RequestContext};
use super::explain::{failed_read_back, read_back};
use super::form::Form;
use super::hint::Hint;
use super::limits::DIAGNOSES_MAX;
use super::query::Query;
use super::response::{self, ApiError};
use holdfast_agent::engine::query::EngineBusy;
use holdfast_agent::readings::Readings;
use holdfast_evidence::diagnose::gather::{ExternalEvidence, GatherOptions};
use holdfast_evidence::diagnose::limits::{DIAGNOSIS_TIMEOUT, MAPS_TIMEOUT, RENDER_RESERVE};
use holdfast_evidence::diagnose::{EXIT_HEADER, gather_daemon_state, gather_flows};

/// The most reads of the maps: a service that changes during a read needs another one.
const READS_MAX: usize = 3;

/// Gathers evidence, judges it, and renders the result.
pub(super) async fn diagnose(visit: RequestContext, query: Query, form: Form) -> Response {
    let Some(name) = query.filter.service.clone() else {
        return ApiError::new(StatusCode::BAD_REQUEST, "no service is named", Hint::Service).into_response();
    };
    let ends = Instant::now() + query.timeout.unwrap_or(DIAGNOSIS_TIMEOUT).min(DIAGNOSIS_TIMEOUT);
    let Some(_place) = visit.listener.diagnoses.try_acquire(visit.peer) else {
        let error = format!("{DIAGNOSES_MAX} diagnoses are already running");
        return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error, "try again in a few seconds")
            .into_response();
    };
    let (known, read) = read_service(&visit, (&name, &query.focus), ends).await;
    if let Some(refusal) = refuse_parameters(&known, &query) {
        return refusal.into_response();
    }
    let outside = query_external(&visit, &known, &query, ends).await;
    let mut material = gather_evidence(&visit, (known, &read, outside), &query);
    let version = visit.readings.about.version;
    let sees_flows = visit.listener.kind == ListenerKind::Unix;
    let flow_table = visit.readings.flow_table();
    // With many services this takes as long as a large table: on this thread, it would block other clients.
    let written = tokio::task::spawn_blocking(move || {
        if sees_flows {
            material.flows = gather_flows(&material, flow_table.as_ref());
        }
        render_diagnosis(&material, version, form)
    });
    written.await.unwrap_or_else(|error| {
        response::text(StatusCode::INTERNAL_SERVER_ERROR, format!("error: the diagnosis ended: {error}\n"))
    })
}

/// Refuses parameters that conflict, or that do not fit this service.
fn refuse_parameters(known: &KnownServices, query: &Query) -> Option<ApiError> {
    let Focus { port, http } = &query.focus;
    if http.is_some() && query.probes == Some(false) {
        return Some(ApiError::new(StatusCode::BAD_REQUEST, "`http` needs connections", "leave `probe` out"));
    }
    let ports = query.focus.unmatched_ports(known.unfiltered_views())?;
    let error = format!("{} has no port {}", known.name(), port.as_ref().map_or("", PortSelector::as_str));
    Some(ApiError::new(StatusCode::BAD_REQUEST, error, format!("its ports: {}", join_names(&ports))))
}

fn render_diagnosis(material: &Evidence, version: &'static str, form: Form) -> Response {
    let judged = judge(material);
    let diagnosis = Diagnosis::new(material, &judged, version);
    let status = if judged.has_service() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let mut response = match form {
        Form::Json => response::json(status, &diagnosis),
        Form::Table => response::text(status, text::render_text(&diagnosis, false)),
        Form::Wide => response::text(status, text::render_text(&diagnosis, true)),
    };
    let exit = HeaderValue::from(u16::from(diagnosis.exit));
    response.headers_mut().insert(HeaderName::from_static(EXIT_HEADER), exit);
    response
}

fn gather_evidence(
    visit: &RequestContext,
    (known, read, outside): (KnownServices, &ReadBack, Option<ExternalEvidence>),
    query: &Query,
) -> Evidence {
    let taken = holdfast_host::clock::now().seconds();
    let own = gather_daemon_state(&visit.readings, &known);
    let left_out = skipped_sources(visit, query);
    let told = (own, visit.readings.history.service_records(known.name(), RECORDS_MAX));
    let mut material = known.into_evidence(told, read, (build_scope(query, taken), taken));
    material.skipped_sources = left_out;
    if let Some(ExternalEvidence { cluster, host, probes, http, names }) = outside {
        (material.cluster, material.host) = (cluster, host);
        (material.probes, material.http, material.names) = (probes, http, names);
    }
    material
}

/// The sources that this diagnosis skips, although they exist.
fn skipped_sources(visit: &RequestContext, query: &Query) -> Vec<ExternalSource> {
    let is_alone = visit.listener.kind != ListenerKind::Unix;
    let is_left_out = |place: &ExternalSource| match place {
        ExternalSource::Apiserver => is_alone && visit.readings.apiserver().is_some(),
        ExternalSource::Host => is_alone,
        ExternalSource::Connections => is_alone || query.probes == Some(false),
    };
    ExternalSource::ALL.into_iter().filter(is_left_out).collect()
}

fn build_scope(query: &Query, taken: Timestamp) -> DiagnosisScope {
    let any = DiagnosisScope::default();
    let since = query.records.since.map(|since| taken.0.saturating_sub(since.seconds().0).max(0));
    DiagnosisScope {
        client: query.flows.client.map(|client| client.address),
        focus: query.focus.clone(),
        since_seconds: since.unwrap_or(any.since_seconds),
    }
}

/// Queries the apiserver, this host, backends and name servers. Only a client of the unix socket may cause that.
async fn query_external(
    visit: &RequestContext,
    known: &KnownServices,
    query: &Query,
    ends: Instant,
) -> Option<ExternalEvidence> {
    if visit.listener.kind != ListenerKind::Unix {
        return None;
    }
    let probes = query.probes.unwrap_or(true);
    let frontends_not = probe_obstacle(&visit.readings);
    let within = Some(ends.saturating_duration_since(Instant::now()));
    let asks = GatherOptions { api: true, probes, frontend_skip_reason: frontends_not, time_limit: within };
    Some(visit.actions.gatherer.gather_evidence(known, (asks, &query.focus)).await)
}

/// Why a connection of this daemon to a frontend would prove nothing.
fn probe_obstacle(readings: &Readings) -> Option<&'static str> {
    datapath_obstacle(readings.datapath().status())
}

/// A connection that no program translates would follow the routes of this host, and any server that answers there
/// would pass for the service.
fn datapath_obstacle(status: Option<&Status>) -> Option<&'static str> {
    let Some(status) = status else { return Some("tables in memory translate nothing") };
    let all = [
        (!status.bare_redirects().is_empty(), "programs that would translate it are not attached"),
        (!status.behind_hooks.is_empty(), "programs read maps that are no longer written"),
        (status.waiting, "another version's programs still serve"),
        (status.cgroup.is_none(), "programs are attached nowhere"),
        (status.own_cgroup_exempt, "holdfast does not translate its own connections"),
    ];
    all.into_iter().find(|(holds, _)| *holds).map(|(_, why)| why)
}

/// Why an answer has nothing from the maps, if the service changed during each read.
const CHANGED_WHILE_READ: &str = "the service changed each time while the maps were read";

/// The service on this node, and its entries in the maps. A change between the two would look like a fault.
async fn read_service(
    visit: &RequestContext,
    (name, focus): (&ObjectName, &Focus),
    ends: Instant,
) -> (KnownServices, ReadBack) {
    let until = (Instant::now() + MAPS_TIMEOUT).min(ends.checked_sub(RENDER_RESERVE).unwrap_or(ends));
    let mut looks = 0;
    loop {
        let known = KnownServices::find(name.clone(), visit.readings.snapshot(), focus);
        let keys = known.frontend_keys();
        let Ok(read) = timeout_at(until, read_back(visit, keys.clone())).await else {
            return (known, failed_read_back(keys, &EngineBusy));
        };
        if known.is_current_in(&visit.readings.snapshot()) {
            return (known, read);
        }
        looks += 1;
        if looks == READS_MAX {
            return (known, failed_read_back(keys, &CHANGED_WHILE_READ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::status;

    #[test]
    fn no_frontend_is_dialled_without_a_program_that_translates() {
        let whole = || Status { own_cgroup_exempt: false, ..status() };
        assert!(!whole().broken_hooks.is_empty());
        assert_eq!(datapath_obstacle(Some(&whole())), None, "a program without a pin takes connections");
        for (broken, why) in [
            (Status { detached_hooks: vec!["connect4"], ..whole() }, "not attached"),
            (Status { behind_hooks: vec!["connect4"], ..whole() }, "no longer written"),
            (Status { waiting: true, ..whole() }, "another version"),
            (Status { cgroup: None, ..whole() }, "nowhere"),
            (Status { own_cgroup_exempt: true, ..whole() }, "does not translate its own"),
        ] {
            assert!(datapath_obstacle(Some(&broken)).is_some_and(|said| said.contains(why)), "{why}");
        }
        assert!(datapath_obstacle(None).is_some_and(|said| said.contains("in memory")));
    }
}
