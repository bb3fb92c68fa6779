//! The table of services: every known service, served or not, and rejected objects.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use holdfast_core::facts::{ServicePort, ServiceType, TrafficPolicy};
use holdfast_core::health::Health;
use holdfast_core::keys::{ObjectName, ServiceKey, Source};
use holdfast_core::list::Row;
use holdfast_core::snapshot::{
    FrontendView, PortView, Reason, ServiceState, ServiceView, Snapshot, Status, Verdict,
};
use holdfast_core::time::ClockReading;
use holdfast_datapath::PortCounters;
use holdfast_diagnose::explain::{LoadBalancer, WriteStatus, write_status};
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::clients::Clients;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::affinity::{self, AffinityPrefix};
use super::form::Form;
use super::query::Filter;
use super::rejection_list::{self, RejectionList};
use super::table::{self, Column, Table, column, wide_column};
use super::totals;
use super::trouble::{Trouble, TroubleIndex, Troubles};
use holdfast_agent::readings::{Readings, counters};

#[derive(Debug)]
pub(super) struct Services {
    counts: Option<PortCounters>,
    now: ClockReading,
    troubles: TroubleIndex,
}

/// One service, its object and its state.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Service")]
pub(super) struct ServiceRow<'a> {
    /// The service, as `namespace/name`.
    service: Text<&'a ObjectName>,
    source: Code<Source>,
    r#type: Option<Code<ServiceType>>,
    state: Code<ServiceState>,
    /// Why it is not served, or why its worst frontend is not.
    #[schemars(extend("enum" = reasons()))]
    reason: Option<&'static str>,
    /// Of its worst frontend; null if it has none.
    verdict: Option<Code<Verdict>>,
    /// Of its worst frontend: only an outage is a problem of this node.
    health: Code<Health>,
    /// When its worst frontend last changed; null if it has none.
    since: Option<Rfc3339>,
    /// The service that has the address of its worst frontend, if verdict is conflict.
    owner: Option<Text<&'a ServiceKey>>,
    /// Of its worst frontend.
    status: Code<WriteStatus>,
    error: Option<&'a str>,
    ports: Vec<Port<'a>>,
    /// How many rows it has in /frontends.
    frontends: usize,
    /// How many of its rows in /backends are in use.
    backends: usize,
    /// How many of its rows in /backends are drained, in use or not.
    drained: usize,
    /// How many EndpointSlices it has.
    slices: usize,
    /// The attempts of clients so far, over all ports; null without programs in the kernel.
    clients: Option<Clients>,
    internal_policy: Option<Code<TrafficPolicy>>,
    external_policy: Option<Code<TrafficPolicy>>,
    affinity_timeout: Option<u32>,
    /// The prefix lengths of a client's address for affinity; null: all of it.
    affinity_prefix: Option<AffinityPrefix>,
    health_check_node_port: Option<u16>,
    /// The state of its load balancer; null: it has none.
    load_balancer: Option<LoadBalancer<'a>>,
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
    created: Option<Rfc3339>,
    /// The file or apiserver endpoint of the object.
    origin: Option<&'a str>,
    /// How many rows it has in /backends.
    #[serde(skip)]
    all_backends: usize,
    /// What `holdfast status` counts as failing here, also where the verdict is good; empty: nothing.
    #[serde(rename = "fails")]
    #[schemars(with = "Vec<Code<Trouble>>")]
    troubles: Troubles,
}

/// One port of a service.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServicePort")]
struct Port<'a> {
    name: &'a str,
    protocol: &'a str,
    port: u16,
    node_port: Option<u16>,
}

impl<'a> From<&'a ServicePort> for Port<'a> {
    fn from(port: &'a ServicePort) -> Self {
        Self {
            name: &port.name,
            protocol: port.protocol.as_str(),
            port: port.port.get(),
            node_port: port.node_port.map(std::num::NonZeroU16::get),
        }
    }
}

const fn urgency(status: &Status) -> u8 {
    match status {
        Status::Done => 0,
        Status::Pending => 1,
        Status::Error(_) => 2,
    }
}

/// The possible reasons of a row, and null.
fn reasons() -> Vec<Option<&'static str>> {
    let states = [ServiceState::NoAddress, ServiceState::NoService].map(ServiceState::as_str);
    states.into_iter().chain(Reason::ALL.map(Reason::as_str)).map(Some).chain([None]).collect()
}

/// Why a service is not served although it could be; else why its worst frontend is not.
fn worst_reason(view: &ServiceView, worst: Option<&FrontendView>) -> Option<&'static str> {
    match view.state {
        ServiceState::NoAddress | ServiceState::NoService => Some(view.state.as_str()),
        ServiceState::Served
        | ServiceState::Headless
        | ServiceState::ExternalName
        | ServiceState::OtherProxy => worst?.reason.map(Reason::as_str),
    }
}

/// How many rows of `/backends` are in use.
fn count_backends(view: &ServiceView) -> usize {
    let reachable =
        view.ports.iter().enumerate().filter(|(position, _)| !view.is_port_in_conflict(*position));
    reachable.map(|(_, port)| port.rows.iter().filter(Row::is_chosen).count()).sum()
}

/// How many rows of `/backends` are drained.
fn count_drained(view: &ServiceView) -> usize {
    let of_port = |port: &PortView| {
        let is_drained = |row: &Row| port.rows.weights().is_drained(row.backend());
        if port.rows.weights().is_uniform() { 0 } else { port.rows.iter().filter(is_drained).count() }
    };
    view.ports.iter().map(of_port).sum()
}

impl Table for Services {
    const NAME: &'static str = "services";
    const ANSWER: &'static str = "Services";
    const ORDER: &'static str =
        "All services, in the order: namespace, name, source; and what rejected itself.";
    const COLUMNS: &'static [Column<Self>] = &[
        column("SERVICE", |row, _, cells| cells.put(row.service)),
        column("TYPE", |row, _, cells| cells.put_optional(row.r#type)),
        column("VERDICT", |row, _, cells| match row.verdict {
            Some(verdict) => cells.put(verdict),
            None => cells.put(row.state),
        }),
        column("REASON", |row, _, cells| cells.put_optional(row.reason)),
        column("FAILS", |row, _, cells| cells.put_optional(row.troubles.cell())),
        wide_column("WRITE", |row, _, cells| cells.put(row.status)),
        column("FRONTENDS", |row, _, cells| cells.put(row.frontends)),
        column("BACKENDS", |row, _, cells| {
            cells.put(format_args!("{}/{}", row.backends, row.all_backends));
        }),
        column("SLICES", |row, _, cells| cells.put(row.slices)),
        wide_column("DRAINED", |row, _, cells| cells.put(row.drained)),
        wide_column("SENT", |row, _, cells| cells.put_optional(row.clients.map(|it| it.connects))),
        wide_column("REFUSED", |row, _, cells| cells.put_optional(row.clients.map(|it| it.refused))),
        wide_column("DROPPED", |row, _, cells| cells.put_optional(row.clients.map(|it| it.dropped))),
        wide_column("INTERNAL", |row, _, cells| cells.put_optional(row.internal_policy)),
        wide_column("EXTERNAL", |row, _, cells| cells.put_optional(row.external_policy)),
        wide_column("AFFINITY", |row, _, cells| {
            let lengths = row.affinity_prefix.into_iter().flat_map(AffinityPrefix::lengths);
            cells.put_optional(
                row.affinity_timeout.map(|seconds| affinity::format_affinity(seconds, lengths)),
            );
        }),
        wide_column("BALANCER", |row, _, cells| {
            cells.put_optional(row.load_balancer.as_ref().map(LoadBalancer::word));
        }),
        wide_column("UID", |row, _, cells| cells.put_optional(row.uid)),
        wide_column("VERSION", |row, _, cells| cells.put_optional(row.resource_version)),
        wide_column("CREATED", |row, _, cells| cells.put_optional(row.created)),
        wide_column("ORIGIN", |row, _, cells| cells.put_optional(row.origin)),
        wide_column("ERROR", |row, _, cells| cells.put_optional(row.error)),
        wide_column("PORTS", |row, _, cells| {
            cells.put(row.ports.iter().map(Port::describe_state).collect::<Vec<_>>().join(","));
        }),
        column("SOURCE", |row, _, cells| cells.put(row.source)),
    ];
    type Place = ();
    type Row<'a> = ServiceRow<'a>;

    fn new(readings: &Readings) -> Self {
        Self {
            counts: readings.port_counts(),
            now: readings.snapshot().clock(),
            troubles: TroubleIndex::from_readings(readings),
        }
    }

    fn may_have_rows(&self, view: &ServiceView, filter: &Filter) -> bool {
        let is_of = |kind| view.facts.as_ref().is_some_and(|facts| facts.kind.as_str() == kind);
        let needs_a_look = || view.has_problem() || !self.troubles.service_troubles(view).is_empty();
        (!filter.only_trouble || needs_a_look()) && filter.kind.is_none_or(is_of)
    }

    fn list_failing_services(&self) -> BTreeSet<ObjectName> {
        self.troubles.list_services()
    }

    fn add_positions(&mut self, _: &ServiceView, _: &Filter, into: &mut Vec<()>) {
        into.push(());
    }

    fn compare_rows((a, ()): (&ServiceView, ()), (b, ()): (&ServiceView, ())) -> Ordering {
        a.key.cmp(&b.key)
    }

    fn build_row<'a>(&'a self, view: &'a ServiceView, (): ()) -> Option<ServiceRow<'a>> {
        let facts = view.facts.as_deref();
        let meta = facts.map(|facts| &facts.meta);
        let worst = view.worst_frontend();
        let urgent = view.frontends.iter().max_by_key(|frontend| urgency(&frontend.status));
        let (status, error) =
            urgent.map_or((WriteStatus::Done, None), |frontend| write_status(&frontend.status));
        Some(ServiceRow {
            service: Text(&view.key.name),
            source: Code(view.key.source),
            r#type: facts.map(|facts| Code(facts.kind)),
            state: Code(view.state),
            reason: worst_reason(view, worst),
            verdict: worst.map(|frontend| Code(frontend.verdict)),
            health: Code(view.health()),
            since: worst.map(|frontend| Rfc3339(frontend.since)),
            owner: worst.and_then(|frontend| frontend.owner.as_ref()).map(Text),
            status: Code(status),
            error,
            ports: facts.map(|facts| facts.ports.iter().map(Port::from).collect()).unwrap_or_default(),
            frontends: view.frontends.len(),
            backends: count_backends(view),
            drained: count_drained(view),
            slices: view.slices.len(),
            clients: counters(self.counts.as_ref(), view.ports.iter().filter_map(|port| port.index))
                .service_clients(view),
            internal_policy: facts.map(|facts| Code(facts.internal_policy)),
            external_policy: facts.map(|facts| Code(facts.external_policy)),
            affinity_timeout: facts.and_then(|facts| facts.affinity_timeout),
            affinity_prefix: facts.and_then(AffinityPrefix::from_facts),
            health_check_node_port: facts.and_then(|facts| facts.health_check_node_port).map(Into::into),
            load_balancer: LoadBalancer::from_view(view, self.now),
            uid: meta.and_then(|meta| meta.uid.as_deref()),
            resource_version: meta.and_then(|meta| meta.resource_version.as_deref()),
            created: meta.and_then(|meta| meta.created).map(Rfc3339),
            origin: meta.and_then(|meta| meta.origin.as_deref()),
            all_backends: view.ports.iter().map(|port| port.rows.iter().len()).sum(),
            troubles: self.troubles.service_troubles(view),
        })
    }

    fn failing_service<'r>(row: &'r ServiceRow<'_>) -> Option<&'r ObjectName> {
        (!row.troubles.is_empty()).then_some(row.service.0)
    }

    fn describe_tail(generator: &mut SchemaGenerator) -> Schema {
        let totals = totals::describe_member(generator);
        let mut whole = RejectionList::json_schema(generator);
        table::add_member(whole.ensure_object(), totals::NAME, totals);
        whole
    }

    fn write_tail(snapshot: &Snapshot, form: Form, out: &mut Vec<u8>) {
        totals::write(snapshot.services.totals(), form, out);
        rejection_list::write(&snapshot.rejections, form, out);
    }
}

impl Port<'_> {
    /// `https:443:30443/TCP`: name, port and NodePort, if present.
    fn describe_state(&self) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!("{}:", self.name) };
        let node_port = self.node_port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{name}{}{node_port}/{}", self.port, self.protocol)
    }
}
