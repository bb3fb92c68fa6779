//! The table of backends: every endpoint of every port, used or not, and why not.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use holdfast_core::drains::{DrainOrder, Drains};
use holdfast_core::facts::{AddressType, Endpoint, NodeName, SliceFacts, TargetName, endpoints::UidText};
use holdfast_core::keys::{ObjectName, PortKey, Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::snapshot::{PortView, ServiceView, UnusedReason};
use holdfast_diagnose::explain::{EndpointState, endpoint_state};
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::checks::CheckStatus;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::query::Filter;
use super::table::{Column, Table, column, wide_column};
use super::trouble::{Trouble, TroubleIndex, Troubles};
use holdfast_agent::readings::Readings;
use holdfast_standalone::blocks::CheckStats;

/// The slices behind the rows of the current services.
#[derive(Debug, Default)]
pub(super) struct BackendTable {
    slices: Vec<u16>,
    drains: Arc<Drains>,
    checks: Arc<CheckStats>,
    troubles: TroubleIndex,
}

/// One endpoint of one port, and the range of the table's slices that list it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackendPosition {
    port: usize,
    row: usize,
    first_slice: usize,
    slices: usize,
}

/// One endpoint of a port, used or not, and its state.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Backend")]
pub(super) struct BackendRow<'a> {
    address: IpAddr,
    port: u16,
    protocol: Code<Transport>,
    /// The service, as `namespace/name`.
    service: Text<&'a ObjectName>,
    port_name: &'a str,
    state: Code<EndpointState>,
    ready: bool,
    serving: bool,
    terminating: bool,
    node: Option<Text<NodeName<'a>>>,
    zone: Option<&'a str>,
    /// `namespace/name` of every slice that lists it for this port.
    #[schemars(with = "Vec<String>")]
    slices: Slices<'a>,
    target: Option<Target<'a>>,
    since: Rfc3339,
    unused_because: Option<Code<UnusedReason>>,
    /// Its weight for new clients: 1 by default; 0: no new clients.
    weight: u16,
    /// The user that drained it; null unless it is drained.
    drained_by: Option<String>,
    /// Since when it is drained.
    drained_since: Option<Rfc3339>,
    source: Code<Source>,
    /// Its health check, and the last result; null: it is not checked.
    check: Option<CheckStatus>,
    /// What `holdfast status` counts as failing here, also where the verdict is good; empty: nothing.
    #[serde(rename = "fails")]
    #[schemars(with = "Vec<Code<Trouble>>")]
    troubles: Troubles,
}

/// The object behind an endpoint.
#[derive(Debug, Serialize, JsonSchema)]
struct Target<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: Text<TargetName<'a>>,
    uid: Option<Text<UidText<'a>>>,
}

impl<'a> From<holdfast_core::facts::Target<'a>> for Target<'a> {
    fn from(target: holdfast_core::facts::Target<'a>) -> Self {
        let holdfast_core::facts::Target { kind, namespace, name, uid } = target;
        Self { kind, namespace, name: Text(name), uid: (uid != UidText::Text("")).then_some(Text(uid)) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slices<'a> {
    view: &'a ServiceView,
    positions: &'a [u16],
    /// The slice that listed a held backend last.
    last_slice: Option<&'a SliceFacts>,
}

impl<'a> Slices<'a> {
    fn names(self) -> impl Iterator<Item = &'a ObjectName> {
        let slices = self.positions.iter().filter_map(move |place| self.view.slices.get(usize::from(*place)));
        slices.map(|slice| &**slice).chain(self.last_slice).map(|slice| &slice.key.name)
    }
}

impl Serialize for Slices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names().map(Text))
    }
}

/// The port number in a slice for this name and protocol, if the slice is for proxies and of the port's family.
fn find_slice_port(slice: &SliceFacts, key: &PortKey) -> Option<u16> {
    if slice.headless || slice.address_type != AddressType::Ip(key.family) {
        return None;
    }
    let same = |port: &&holdfast_core::facts::SlicePort| {
        port.name == key.name && port.protocol.transport() == Some(key.transport)
    };
    slice.ports.iter().find(same).map(|port| port.port.get())
}

/// Each address and port number with the index of a slice that lists it, sorted.
fn list_addresses(view: &ServiceView, key: &PortKey) -> Vec<(IpAddr, u16, u16)> {
    let mut listings = Vec::new();
    for (place, slice) in (0_u16..).zip(view.slices.iter()) {
        if let Some(port) = find_slice_port(slice, key) {
            listings.extend(slice.endpoints.iter_brief().map(|(address, _)| (address, port, place)));
        }
    }
    listings.sort_unstable();
    listings.dedup();
    listings
}

fn find_listings(listings: &[(IpAddr, u16, u16)], row: &Row) -> Range<usize> {
    let key = (row.address, row.port.get());
    let begin = listings.partition_point(|(address, port, _)| (*address, *port) < key);
    let end = listings.partition_point(|(address, port, _)| (*address, *port) <= key);
    begin..end
}

impl BackendTable {
    /// The health check of a backend of the configuration.
    fn find_check(&self, view: &ServiceView, row: &Row) -> Option<CheckStatus> {
        let is_ours = view.key.source == Source::Config;
        is_ours.then(|| {
            self.checks.backend_check(&view.key.name, SocketAddr::new(row.address, row.port.get()))
        })?
    }

    fn add_port_positions(
        &mut self,
        view: &ServiceView,
        at: usize,
        filter: &Filter,
        into: &mut Vec<BackendPosition>,
    ) {
        let Some(port) = view.ports.get(at) else { return };
        let listings = list_addresses(view, &port.key);
        let offset = self.slices.len();
        self.slices.extend(listings.iter().map(|(_, _, slice)| *slice));
        for (row, found) in port.rows.iter().enumerate() {
            if filter.address.is_none_or(|address| address == found.address) {
                let slices = find_listings(&listings, &found);
                into.push(BackendPosition {
                    port: at,
                    row,
                    first_slice: offset + slices.start,
                    slices: slices.len(),
                });
            }
        }
    }
}

impl Table for BackendTable {
    const NAME: &'static str = "backends";
    const ANSWER: &'static str = "Backends";
    const ORDER: &'static str =
        "All endpoints, in the order: namespace, name, port name, address, protocol, port, source.";
    const COLUMNS: &'static [Column<Self>] = &[
        column("SERVICE", |row, _, cells| cells.put(row.service)),
        column("PORT", |row, _, cells| cells.put(row.port_name)),
        column("BACKEND", |row, _, cells| {
            cells.put(format_args!("{}/{}", SocketAddr::new(row.address, row.port), row.protocol));
        }),
        column("STATE", |row, _, cells| cells.put(row.state)),
        column("UNUSED", |row, _, cells| cells.put_optional(row.unused_because)),
        column("FAILS", |row, _, cells| cells.put_optional(row.troubles.cell())),
        column("CONDITIONS", |row, _, cells| cells.put(row.conditions())),
        column("NODE", |row, _, cells| cells.put_optional(row.node)),
        wide_column("WEIGHT", |row, _, cells| cells.put(row.weight)),
        wide_column("DRAINED BY", |row, _, cells| cells.put_optional(row.drained_by.as_deref())),
        wide_column("DRAINED", |row, _, cells| cells.put_optional(row.drained_since)),
        wide_column("CHECK", |row, _, cells| cells.put_optional(row.check.as_ref())),
        wide_column("ZONE", |row, _, cells| cells.put_optional(row.zone)),
        wide_column("SOURCE", |row, _, cells| cells.put(row.source)),
        wide_column("SINCE", |row, _, cells| cells.put(row.since)),
        wide_column("SLICES", |row, _, cells| {
            cells.put(row.slices.names().map(ToString::to_string).collect::<Vec<_>>().join(","));
        }),
        column("TARGET", |row, _, cells| {
            cells.put_optional(row.target.as_ref().map(|it| it.describe_state(row.service.0.namespace())));
        }),
    ];
    type Place = BackendPosition;
    type Row<'a> = BackendRow<'a>;

    fn new(readings: &Readings) -> Self {
        let drains = Arc::clone(&readings.snapshot().drains);
        let troubles = TroubleIndex::from_readings(readings);
        Self { slices: Vec::new(), drains, checks: Arc::clone(&readings.checks), troubles }
    }

    fn list_failing_services(&self) -> BTreeSet<ObjectName> {
        self.troubles.list_services()
    }

    fn may_have_rows(&self, view: &ServiceView, filter: &Filter) -> bool {
        let is_at = |address| view.ports.iter().any(|port| port.rows.rows_at(address).next().is_some());
        filter.address.is_none_or(is_at)
    }

    fn add_positions(&mut self, view: &ServiceView, filter: &Filter, into: &mut Vec<BackendPosition>) {
        for at in 0..view.ports.len() {
            self.add_port_positions(view, at, filter, into);
        }
    }

    fn compare_rows(
        (a, a_place): (&ServiceView, BackendPosition),
        (b, b_place): (&ServiceView, BackendPosition),
    ) -> Ordering {
        sort_key(a, a_place).cmp(&sort_key(b, b_place)).then(a.key.cmp(&b.key))
    }

    fn build_row<'a>(&'a self, view: &'a ServiceView, place: BackendPosition) -> Option<BackendRow<'a>> {
        let port = view.ports.get(place.port)?;
        let row = port.rows.get(place.row)?;
        let endpoint = find_endpoint(view, port, &row);
        let conditions = row.conditions();
        let slices = self.slices.get(place.first_slice..place.first_slice + place.slices);
        let is_gone = row.is_held() && place.slices == 0;
        let before = port.row_slice(&row, &view.slices).filter(|_| is_gone).map(|slice| &**slice);
        let drained = find_drain_order(&self.drains, view, port, &row);
        let is_in_conflict = view.is_port_in_conflict(place.port);
        let conflict = is_in_conflict.then_some(UnusedReason::Conflict);
        Some(BackendRow {
            address: row.address,
            port: row.port.get(),
            protocol: Code(port.key.transport),
            service: Text(&view.key.name),
            port_name: &port.key.name,
            state: Code(if is_in_conflict { EndpointState::Unused } else { endpoint_state(&row) }),
            ready: conditions.ready,
            serving: conditions.serving,
            terminating: conditions.terminating,
            node: endpoint.and_then(|endpoint| endpoint.node).map(Text),
            zone: endpoint.and_then(|endpoint| endpoint.zone),
            slices: Slices { view, positions: slices.unwrap_or_default(), last_slice: before },
            target: endpoint.and_then(|endpoint| endpoint.target).map(Target::from),
            since: Rfc3339(row.since()),
            unused_because: port.unused_reason(&row).or(conflict).map(Code),
            weight: port.rows.weight(row.backend()).number(),
            drained_by: drained.map(ToString::to_string),
            drained_since: drained.map(|drained| Rfc3339(drained.at)),
            source: Code(view.key.source),
            check: self.find_check(view, &row),
            troubles: self.troubles.backend_troubles(view, port, &row),
        })
    }

    fn failing_service<'r>(row: &'r BackendRow<'_>) -> Option<&'r ObjectName> {
        (!row.troubles.is_empty()).then_some(row.service.0)
    }

    fn clear_group(&mut self) {
        self.slices.clear();
    }
}

fn find_endpoint<'a>(view: &'a ServiceView, port: &'a PortView, row: &Row) -> Option<Endpoint<'a>> {
    port.row_slice(row, &view.slices)?.endpoints.get(usize::from(row.endpoint))
}

fn find_drain_order<'a>(
    drains: &'a Drains,
    view: &ServiceView,
    port: &PortView,
    row: &Row,
) -> Option<&'a DrainOrder> {
    let is_drained = port.rows.weights().is_drained(row.backend());
    is_drained.then(|| drains.find_drain(&view.key.name, row.backend()))?.map(|(_, by)| by)
}

/// The order of rows within one namespace and name, up to the source.
fn sort_key(view: &ServiceView, place: BackendPosition) -> Option<(&str, IpAddr, &str, u16)> {
    let PortView { key, rows, .. } = view.ports.get(place.port)?;
    let row = rows.get(place.row)?;
    Some((&key.name, row.address, key.transport.as_str(), row.port.get()))
}

impl BackendRow<'_> {
    /// The conditions as a table shows them. A bare `serving` would read as our verdict.
    fn conditions(&self) -> &'static str {
        match (self.ready, self.serving, self.terminating) {
            (true, _, false) => "ready",
            (true, _, true) => "ready,terminating",
            (false, true, true) => "serving,terminating",
            (false, false, true) => "terminating",
            (false, _, false) => "unready",
        }
    }
}

impl Target<'_> {
    /// The object's name. A reference without a namespace is to an object of the service's own.
    fn describe_state(&self, service_namespace: &str) -> String {
        let namespace = if self.namespace.is_empty() { service_namespace } else { self.namespace };
        format!("{} {namespace}/{}", self.kind, self.name)
    }
}
