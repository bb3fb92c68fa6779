//! The table of frontends: the addresses that clients dial, and the result there.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::facts::ServiceFacts;
use holdfast_core::health::Health;
use holdfast_core::keys::{Family, ObjectName, ServiceKey, Source};
use holdfast_core::list::Row;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Verdict};
use holdfast_diagnose::explain::{BackendState, WriteStatus, backend_state, write_status};
use holdfast_status::frontend_text::shorten_node_port;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::{Code, Text};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::affinity::{self, AffinityPrefix};
use super::form::Form;
use super::limits;
use super::query::Filter;
use super::table::{Column, Table, column, wide_column};
use super::trouble::{Trouble, TroubleIndex, Troubles};
use holdfast_agent::readings::Readings;

#[derive(Debug, Default)]
pub(super) struct Frontends(TroubleIndex);

/// One frontend and the result for its clients.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Frontend")]
pub(super) struct FrontendRow<'a> {
    /// 0.0.0.0 or :: for a NodePort.
    address: IpAddr,
    port: u16,
    protocol: &'a str,
    r#type: Code<FrontendType>,
    /// The service, as `namespace/name`.
    service: Text<&'a ObjectName>,
    /// Empty if the port has no name.
    port_name: &'a str,
    source: Code<Source>,
    /// The backends that a new connection from this node's own processes and pods may get.
    #[schemars(with = "Vec<Backend>")]
    backends: Backends<'a>,
    /// The backends for traffic from outside, if that is another list; null if it is the same.
    #[schemars(with = "Option<Vec<Backend>>")]
    external_backends: Option<ExternalBackends<'a>>,
    /// Seconds for which a client stays with its backend.
    affinity_timeout: Option<u32>,
    /// The prefix length of a client's address that counts for affinity; null: all of it.
    affinity_prefix: Option<u8>,
    source_ranges: &'a [Arc<str>],
    verdict: Code<Verdict>,
    reason: Option<Code<Reason>>,
    /// What verdict and reason mean: only an outage is a problem of this node.
    health: Code<Health>,
    status: Code<WriteStatus>,
    /// The error of the maps, if status is error.
    error: Option<&'a str>,
    /// When verdict, reason or backends last changed.
    since: Rfc3339,
    /// `namespace/name` of the service that has the address, if verdict is conflict.
    owner: Option<Text<&'a ServiceKey>>,
    /// What `holdfast status` counts as failing here, also where the verdict is good; empty: nothing.
    #[serde(rename = "fails")]
    #[schemars(with = "Vec<Code<Trouble>>")]
    troubles: Troubles,
}

/// One backend of a frontend.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FrontendBackend")]
struct Backend {
    address: IpAddr,
    port: u16,
    state: Code<BackendState>,
}

impl From<Row> for Backend {
    fn from(row: Row) -> Self {
        Self { address: row.address, port: row.port.get(), state: Code(backend_state(&row)) }
    }
}

/// The backends that this node's own processes and pods get.
#[derive(Clone, Copy, Debug)]
struct Backends<'a>(&'a ServiceView, &'a FrontendView);

impl Serialize for Backends<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.backends(self.1).map(Backend::from))
    }
}

/// The backends for traffic from outside, if that is another list.
#[derive(Clone, Copy, Debug)]
struct ExternalBackends<'a>(&'a ServiceView, &'a FrontendView);

impl Serialize for ExternalBackends<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.external_backends(self.1).into_iter().flatten().map(Backend::from))
    }
}

/// The backends in one cell, such as `10.0.0.1:80,10.0.0.2:80(draining),+3`.
fn join_backends(rows: impl Iterator<Item = Row>, all: bool) -> impl fmt::Display {
    let shown_max = if all { usize::MAX } else { limits::BACKENDS_IN_CELL_MAX };
    let mut text = String::new();
    let mut count = 0_usize;
    for row in rows {
        count += 1;
        if count <= shown_max {
            let comma = if count == 1 { "" } else { "," };
            let mark = match backend_state(&row) {
                BackendState::Active => "",
                BackendState::Draining => "(draining)",
                BackendState::Held => "(held)",
            };
            text = text + comma + &row.backend().to_string() + mark;
        }
    }
    if count > shown_max {
        text = format!("{text},+{}", count - shown_max);
    }
    text
}

/// The source ranges of a frontend; they restrict the load balancer's addresses alone.
fn source_ranges<'a>(facts: Option<&'a ServiceFacts>, frontend: &FrontendView) -> &'a [Arc<str>] {
    match (facts, frontend.kind) {
        (Some(facts), FrontendType::LoadBalancer) => &facts.source_ranges,
        _ => &[],
    }
}

impl Table for Frontends {
    const NAME: &'static str = "frontends";
    const ANSWER: &'static str = "Frontends";
    const ORDER: &'static str =
        "All frontends, in the order: namespace, name, port name, type, address, protocol, source.";
    const COLUMNS: &'static [Column<Self>] = &[
        column("SERVICE", |row, _, cells| cells.put(row.service)),
        column("PORT", |row, _, cells| cells.put(row.port_name)),
        column("TYPE", |row, _, cells| cells.put(row.r#type)),
        column("FRONTEND", |row, _, cells| {
            let frontend = format!("{}/{}", SocketAddr::new(row.address, row.port), row.protocol);
            cells.put(shorten_node_port(&frontend));
        }),
        column("VERDICT", |row, _, cells| cells.put(row.verdict)),
        column("REASON", |row, _, cells| cells.put_optional(row.reason)),
        column("FAILS", |row, _, cells| cells.put_optional(row.troubles.cell())),
        wide_column("WRITE", |row, _, cells| cells.put(row.status)),
        wide_column("SOURCE", |row, _, cells| cells.put(row.source)),
        wide_column("OWNER", |row, _, cells| cells.put_optional(row.owner)),
        wide_column("AFFINITY", |row, _, cells| {
            cells.put_optional(
                row.affinity_timeout.map(|seconds| affinity::format_affinity(seconds, row.affinity_prefix)),
            );
        }),
        wide_column("RANGES", |row, _, cells| cells.put(row.source_ranges.join(","))),
        wide_column("SINCE", |row, _, cells| cells.put(row.since)),
        wide_column("ERROR", |row, _, cells| cells.put_optional(row.error)),
        wide_column("OUTSIDE", |row, _, cells| match &row.external_backends {
            None => cells.put("same"),
            Some(backends) => cells.put(backends),
        }),
        column("BACKENDS", |row, form, cells| {
            cells.put(join_backends(row.backends.0.backends(row.backends.1), form == Form::Wide));
        }),
    ];
    type Place = usize;
    type Row<'a> = FrontendRow<'a>;

    fn new(readings: &Readings) -> Self {
        Self(TroubleIndex::from_readings(readings))
    }

    fn is_at_node_ports(row: &FrontendRow<'_>) -> bool {
        row.address.is_unspecified()
    }

    fn may_have_rows(&self, view: &ServiceView, filter: &Filter) -> bool {
        !filter.has_row_filter() || view.frontends.iter().any(|frontend| self.shows(view, frontend, filter))
    }

    fn list_failing_services(&self) -> BTreeSet<ObjectName> {
        self.0.list_services()
    }

    fn add_positions(&mut self, view: &ServiceView, filter: &Filter, into: &mut Vec<usize>) {
        let places =
            view.frontends.iter().enumerate().filter(|(_, frontend)| self.shows(view, frontend, filter));
        into.extend(places.map(|(place, _)| place));
    }

    fn compare_rows((a, a_place): (&ServiceView, usize), (b, b_place): (&ServiceView, usize)) -> Ordering {
        a.frontends
            .get(a_place)
            .map(sort_key)
            .cmp(&b.frontends.get(b_place).map(sort_key))
            .then(a.key.cmp(&b.key))
    }

    fn build_row<'a>(&'a self, view: &'a ServiceView, place: usize) -> Option<FrontendRow<'a>> {
        let frontend = view.frontends.get(place)?;
        let facts = view.facts.as_deref();
        let (status, error) = write_status(&frontend.status);
        let outside = view.external_backends(frontend).is_some();
        Some(FrontendRow {
            address: frontend.address,
            port: frontend.port.get(),
            protocol: frontend.protocol.as_str(),
            r#type: Code(frontend.kind),
            service: Text(&view.key.name),
            port_name: &frontend.port_name,
            source: Code(view.key.source),
            backends: Backends(view, frontend),
            external_backends: outside.then_some(ExternalBackends(view, frontend)),
            affinity_timeout: facts.and_then(|facts| facts.affinity_timeout),
            affinity_prefix: facts
                .and_then(AffinityPrefix::from_facts)
                .map(|prefix| prefix.for_family(Family::from_address(frontend.address))),
            source_ranges: source_ranges(facts, frontend),
            verdict: Code(frontend.verdict),
            reason: frontend.reason.map(Code),
            health: Code(view.frontend_health(frontend)),
            status: Code(status),
            error,
            since: Rfc3339(frontend.since),
            owner: frontend.owner.as_ref().map(Text),
            troubles: self.0.frontend_troubles(view, frontend),
        })
    }

    fn failing_service<'r>(row: &'r FrontendRow<'_>) -> Option<&'r ObjectName> {
        (!row.troubles.is_empty()).then_some(row.service.0)
    }
}
impl Frontends {
    /// Whether a frontend passes the filter.
    fn shows(&self, view: &ServiceView, frontend: &FrontendView, filter: &Filter) -> bool {
        let needs_a_look = || !frontend.is_healthy() || !self.0.frontend_troubles(view, frontend).is_empty();
        filter.kind.is_none_or(|kind| kind == frontend.kind.as_str())
            && filter.address.is_none_or(|address| address == frontend.address)
            && (!filter.only_trouble || needs_a_look())
    }
}

/// The order within one namespace and name, up to the source.
fn sort_key(frontend: &FrontendView) -> (&str, u8, IpAddr, &str, u16) {
    let FrontendView { port_name, kind, address, protocol, port, .. } = frontend;
    (port_name, kind.table_order(), *address, protocol.as_str(), port.get())
}

impl fmt::Display for ExternalBackends<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        join_backends(self.0.external_backends(self.1).into_iter().flatten(), true).fmt(f)
    }
}
