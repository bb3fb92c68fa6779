//! `/healthz`, `/livez`, `/readyz`: whether the process answers, the engine makes progress, and the datapath is in
//! sync.
//!
//! Invariant: the HTTP status, 200 or 503, shows whether all is well, for clients that read no body.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::facts::NodeFacts;
use holdfast_core::keys::{ObjectName, Source, Transport};
use holdfast_core::snapshot::Snapshot;
use holdfast_diagnose::evidence::Listener;
use holdfast_diagnose::node_ports::describe_node_port_listener;
use holdfast_knowledge::Fault;
use holdfast_status::printable::Printable;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::checks::CheckStatus;
use holdfast_status::views::node_ports::NodePortListener;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::admin_listener::RequestContext;
use super::denied_clients::{DeniedClientsRow, list_denied};
use super::failing_backends::{FailingBackendRow, list_failing};
use super::form::Form;
use super::query::Query;
use super::response;
use super::unwritten::Unwritten;
use holdfast_agent::readings::{ClosedPort, Purpose, Readings, RefusedReload, StartOutcome};
use holdfast_agent::recorder::RecordingStatus;
use holdfast_agent::state::Damage;
use holdfast_standalone::blocks::UnusableBackend;

/// The most backends with failing checks, or processes at node ports, that an answer names: as many as fit on a screen.
const FAILING_NAMED_MAX: usize = 10;

/// The result of a health query.
#[derive(Serialize, JsonSchema)]
pub(super) struct Health {
    healthy: bool,
    /// The problem; null if all is well.
    reason: Option<String>,
}

fn health(reason: Option<String>, form: Form) -> Response {
    let healthy = reason.is_none();
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let text = format!("{}\n", Printable(reason.as_deref().unwrap_or("ok")));
    response::render_response(status, form, &Health { healthy, reason }, || text)
}

/// Whether the process answers, which it does.
pub(super) fn healthz(_: &Readings, _: Query, form: Form) -> Response {
    health(None, form)
}

/// Whether the engine makes progress.
pub(super) fn livez(readings: &Readings, _: Query, form: Form) -> Response {
    let reason = |stalled: std::time::Duration| {
        format!("events have waited for {} s, and the engine does not take them", stalled.as_secs())
    };
    health(readings.liveness.stalled_for().map(reason), form)
}

/// Whether the datapath follows the sources.
#[derive(Serialize, JsonSchema)]
pub(super) struct Readiness {
    healthy: bool,
    /// The problem; null if all is well.
    reason: Option<String>,
    sources: Vec<SourceRow>,
    /// When the served state was written to disk, while a source has not delivered since the start.
    stale_since: Option<Rfc3339>,
    /// The state that a restart would begin with.
    snapshot: SnapshotRow,
    /// The state of the recording of changes.
    history: HistoryRow,
    /// The configured ports of kube-proxy that cannot be opened; the first ones.
    closed_ports: Vec<ClosedPortRow>,
    /// How many more such ports there are.
    closed_ports_omitted: usize,
    /// Backends that get no new clients because the health checks of `health_check` fail; the first ones.
    failing_checks: Vec<FailingCheckRow>,
    /// How many more such backends there are.
    failing_checks_omitted: usize,
    /// Backends that refused clients, or answered none from outside, and that no later client has shown to work,
    /// although their service sends clients to them; the first ones.
    failing_backends: Vec<FailingBackendRow>,
    /// How many more such backends there are.
    failing_backends_omitted: usize,
    /// Processes of this node that listen at node ports, so that some clients get the process in place of the service;
    /// the first ones.
    node_port_listeners: Vec<NodePortListenerRow>,
    /// How many more such processes there are.
    node_port_listeners_omitted: usize,
    /// Clients that were turned away within five minutes at frontends that are served, or by a rule, grouped by
    /// frontend and cause; the latest groups. What a rule asks for is no problem of the node.
    denied_clients: Vec<DeniedClientsRow>,
    /// How many more such groups there are.
    denied_clients_omitted: usize,
    /// The first faults in the operator's files about Events. The daemon leaves out the entries with faults.
    event_knowledge_faults: Vec<KnowledgeFault>,
    /// Why the last reload was refused, so that an older configuration than the file's is in force; null if it was not.
    refused_reload: Option<String>,
    /// The circumstances of that reload.
    refusal: Option<RefusalRow>,
    /// Why the TCP address or the socket of the admin API accepts no requests now, one sentence each.
    shut: Vec<String>,
    /// Why a restart would lose the last orders to drain backends; null if it would not.
    unwritten_drains: Option<String>,
    /// What the disk does not take, and what a restart would lose for it; null if it takes everything.
    unwritten: Option<Unwritten>,
}

/// The circumstances of a refused reload.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RefusedReload")]
struct RefusalRow {
    at: Rfc3339,
    /// The user and the process that asked for it; null: a signal did.
    by: Option<String>,
    /// The file that was refused.
    file: String,
    /// Since when the configuration in force is.
    in_force_since: Rfc3339,
    /// What a start of the daemon does with that file.
    start: Code<StartOutcome>,
}

impl RefusalRow {
    fn from_readings(readings: &Readings) -> Option<Self> {
        let RefusedReload { at, by, in_force_since, start, .. } = readings.refused_reload.borrow().clone()?;
        Some(Self {
            at: Rfc3339(at),
            by: by.map(|by| by.to_string()),
            file: readings.files.config.display().to_string(),
            in_force_since: Rfc3339(in_force_since),
            start: Code(start),
        })
    }
}

/// A fault in an operator's file about Events.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct KnowledgeFault {
    pub file: String,
    /// The line, counted from 1; null if the fault concerns the whole file.
    pub line: Option<usize>,
    /// The id of the entry, if it has a readable one.
    pub id: Option<String>,
    pub message: String,
}

impl From<&Fault> for KnowledgeFault {
    fn from(Fault { file, line, id, message }: &Fault) -> Self {
        Self { file: file.clone(), line: *line, id: id.clone(), message: message.clone() }
    }
}

/// A port of kube-proxy that cannot be opened.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ClosedPort")]
struct ClosedPortRow {
    purpose: Code<Purpose>,
    address: Text<SocketAddr>,
    /// The service with this health check port, as `namespace/name`.
    service: Option<Text<ObjectName>>,
    why: String,
}

impl From<ClosedPort> for ClosedPortRow {
    fn from(ClosedPort { purpose, address, service, reason: why }: ClosedPort) -> Self {
        Self { purpose: Code(purpose), address: Text(address), service: service.map(Text), why }
    }
}

/// A process that listens at a node port.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NodePortListener")]
struct NodePortListenerRow {
    /// The service that has the node port, as `namespace/name`.
    service: Text<ObjectName>,
    /// Where the process listens.
    address: Text<SocketAddr>,
    protocol: Code<Transport>,
    /// Its name and its id; null: the daemon may not see it.
    process: Option<String>,
    pid: Option<u32>,
    /// Which addresses lead to the service, and which to the process.
    why: String,
}

impl NodePortListenerRow {
    fn new(node: &NodeFacts, found: &NodePortListener) -> Self {
        let NodePortListener { service, listener, process } = found;
        let why = describe_node_port_listener(node, service, &Listener::from(found));
        let (process, pid) = process.clone().unzip();
        Self {
            service: Text(service.clone()),
            address: Text(SocketAddr::new(listener.address, listener.port.get())),
            protocol: Code(listener.transport),
            process,
            pid,
            why,
        }
    }
}

/// A backend that gets no new clients because its health checks fail.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FailingCheck")]
struct FailingCheckRow {
    /// As `namespace/name`.
    service: Text<ObjectName>,
    backend: Text<SocketAddr>,
    check: CheckStatus,
}

impl From<UnusableBackend> for FailingCheckRow {
    fn from(UnusableBackend { service, backend, check }: UnusableBackend) -> Self {
        Self { service: Text(service), backend: Text(backend), check }
    }
}

/// The state that a restart would begin with.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Snapshot")]
struct SnapshotRow {
    written: Option<Rfc3339>,
    bytes: u64,
    /// Services that are too large for the snapshot, as `namespace/name`; the first ones.
    left_out: Vec<Arc<str>>,
    /// The damage of the snapshot that this process began with; null if it was whole.
    damage: Option<DamageRow>,
    /// Why the last write failed.
    error: Option<Arc<str>>,
}

/// The damage of the snapshot that a start began with.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SnapshotDamage")]
pub struct DamageRow {
    /// The error in the file.
    pub error: Arc<str>,
    /// Services that were taken from the older file.
    pub older: u64,
    /// Services that were whole in neither file.
    pub lost: u64,
    /// The first of those services, as `namespace/name`.
    pub lost_services: Vec<Arc<str>>,
}

impl From<&Damage> for DamageRow {
    fn from(Damage { error, older, lost }: &Damage) -> Self {
        let error = Arc::clone(error);
        let lost_services = lost.named.clone();
        Self { error, older: older.count, lost: lost.count, lost_services }
    }
}

/// The state of the recording of changes.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Recording")]
pub struct HistoryRow {
    /// The number of the latest record; 0: none ever.
    pub seq: u64,
    /// Places where records are missing, found since the start.
    pub gaps: u64,
    /// The size of the history on disk.
    pub bytes: u64,
    /// Records that the disk rejected; memory has them.
    pub unwritten: u64,
    /// Why the last write failed.
    pub error: Option<Arc<str>>,
}

impl From<RecordingStatus> for HistoryRow {
    fn from(recorded: RecordingStatus) -> Self {
        let RecordingStatus { seq, gaps, file, .. } = recorded;
        Self { seq, gaps, bytes: file.bytes, unwritten: file.lost, error: file.error }
    }
}

/// One source of objects.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Source")]
struct SourceRow {
    source: Code<Source>,
    /// Whether the source has delivered its first whole list.
    synced: bool,
}

/// The first processes at node ports, and how many more there are.
fn list_node_port_listeners(readings: &Readings, snapshot: &Snapshot) -> (Vec<NodePortListenerRow>, usize) {
    let all = Arc::clone(&readings.node_port_listeners.borrow());
    let rows = all.iter().take(FAILING_NAMED_MAX).map(|it| NodePortListenerRow::new(&snapshot.node, it));
    (rows.collect(), all.len().saturating_sub(FAILING_NAMED_MAX))
}

/// Whether the datapath is in sync with the sources; JSON also has the state for a restart.
pub(super) fn readyz(visit: &RequestContext, _: Query, form: Form) -> Response {
    let readings = &visit.readings;
    let snapshot = readings.snapshot();
    let reason = readings.unready_reason(&snapshot);
    if form != Form::Json {
        return health(reason, form);
    }
    let healthy = reason.is_none();
    let row = |(source, synced): (&Source, &bool)| SourceRow { source: Code(*source), synced: *synced };
    let sources = snapshot.sources.iter().map(row).collect();
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let written = readings.last_write.borrow().clone();
    let snapshot_row = SnapshotRow {
        written: written.at.map(Rfc3339),
        bytes: written.bytes,
        left_out: written.left_out.named,
        damage: written.damage.as_deref().map(DamageRow::from),
        error: written.error,
    };
    let stale_since = snapshot.stale_since.map(Rfc3339);
    let history = readings.history.status().into();
    let (closed, closed_ports_omitted) = readings.closed_ports.named_ports();
    let (failing, failing_checks_omitted) = readings.checks.unusable(FAILING_NAMED_MAX);
    let (failing_backends, failing_backends_omitted) = list_failing(&snapshot, &readings.datapath());
    let (node_port_listeners, node_port_listeners_omitted) = list_node_port_listeners(readings, &snapshot);
    let (denied_clients, denied_clients_omitted) =
        list_denied(&snapshot, &readings.refusals.snapshot(), readings.now());
    let event_knowledge_faults =
        visit.events.editions.borrow().faults().iter().map(KnowledgeFault::from).collect();
    let readiness = Readiness {
        healthy,
        reason,
        sources,
        stale_since,
        snapshot: snapshot_row,
        history,
        closed_ports: closed.into_iter().map(ClosedPortRow::from).collect(),
        closed_ports_omitted,
        failing_checks: failing.into_iter().map(FailingCheckRow::from).collect(),
        failing_checks_omitted,
        failing_backends,
        failing_backends_omitted,
        node_port_listeners,
        node_port_listeners_omitted,
        denied_clients,
        denied_clients_omitted,
        event_knowledge_faults,
        refused_reload: readings.refused_reload.borrow().as_ref().map(|it| it.why.clone()),
        refusal: RefusalRow::from_readings(readings),
        shut: readings.closed_listeners.borrow().clone(),
        unwritten_drains: readings.drains_problem(),
        unwritten: Unwritten::from_readings(readings, &snapshot),
    };
    response::json(status, &readiness)
}
