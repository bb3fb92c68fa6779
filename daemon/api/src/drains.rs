//! `/drains`: the drained backends, by which user and since when, and the effect on the current lists.
//!
//! Invariant: each drain in force is a row, whether or not a service has such a backend. The counts of a row come from
//! one snapshot.

pub(super) mod order;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::drains::{Drain, DrainOrder, Drains};
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ServiceKey;
use holdfast_core::limits::DRAINS_MAX;
use holdfast_core::list::Row;
use holdfast_core::snapshot::{ServiceView, Snapshot, Status};
use holdfast_status::printable::Printable;
use holdfast_status::rfc3339::Rfc3339;
use schemars::JsonSchema;
use serde::Serialize;

use super::form::Form;
use super::query::Query;
use super::response;
use super::text_table::{Cells, write_dated_table};
use holdfast_agent::readings::Readings;

/// The most services that an answer names; more are only counted.
pub(super) const NAMED_MAX: usize = 8;

/// The drains, by address and port.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Drains")]
pub(super) struct DrainList {
    drains: Vec<DrainRow>,
    /// The most drains.
    most: usize,
    /// Why a restart of the daemon would lose the last orders; null if it would not.
    memory_problem: Option<String>,
}

/// Backends that get no new clients by order of a user of this node.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Drain")]
struct DrainRow {
    /// Their address, with a port if the drain has one.
    backend: String,
    /// The only service, as `namespace/name`; null: all.
    service: Option<String>,
    /// The user that ordered it.
    by: String,
    since: Rfc3339,
    /// How many services have such a backend now.
    services: usize,
    /// In how many of them clients still get it, because no other backend takes clients there.
    used: usize,
}

impl DrainRow {
    fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        cells.put(&self.backend);
        cells.put(self.service.as_deref().unwrap_or("all"));
        cells.put(&self.by);
        cells.put(self.since);
        cells.put(self.services);
        cells.put(self.used);
        cells
    }
}

const TITLES: [&str; 6] = ["BACKEND", "OF SERVICE", "BY", "SINCE", "SERVICES", "STILL USED IN"];

pub(super) fn drains(readings: &Readings, _: Query, form: Form) -> Response {
    let snapshot = readings.snapshot();
    let counts = count_services(&snapshot);
    let row = |(drain, by): (Drain, &DrainOrder)| {
        let (services, used) = counts.get(&drain).copied().unwrap_or_default();
        let service = drain.service().map(ToString::to_string);
        DrainRow {
            backend: drain.to_string(),
            service,
            by: by.to_string(),
            since: Rfc3339(by.at),
            services,
            used,
        }
    };
    let drains = snapshot.drains.iter().map(row).collect();
    let list = DrainList { drains, most: DRAINS_MAX, memory_problem: readings.drains_problem() };
    response::render_response(StatusCode::OK, form, &list, || text(&list, readings.now()))
}

fn text(list: &DrainList, now: Timestamp) -> Vec<u8> {
    let mut out = Vec::new();
    if list.drains.is_empty() {
        out.extend_from_slice(b"nothing is drained\n");
    } else {
        write_dated_table(TITLES, list.drains.iter().map(DrainRow::cells), now, &mut out);
    }
    if let Some(problem) = &list.memory_problem {
        let problem = Printable(problem);
        out.extend(format!("a restart of the daemon would lose the last orders: {problem}\n").into_bytes());
    }
    out
}

/// For each drain, how many services have such a backend, and in how many of them clients get it.
fn count_services(snapshot: &Snapshot) -> BTreeMap<Drain, (usize, usize)> {
    let mut counts = BTreeMap::<Drain, (usize, usize)>::new();
    for view in snapshot.services.iter().filter(|_| !snapshot.drains.is_empty()) {
        for (drain, is_used) in matching_drains(view, &snapshot.drains) {
            let (services, used) = counts.entry(drain).or_default();
            *services += 1;
            *used += usize::from(is_used);
        }
    }
    counts
}

/// The drains that match a backend of a service, and whether clients get one of those.
fn matching_drains(view: &ServiceView, drains: &Drains) -> BTreeMap<Drain, bool> {
    let mut met = BTreeMap::new();
    let ports = view.ports.iter().enumerate();
    for (position, row) in ports.flat_map(|(position, port)| port.rows.iter().map(move |row| (position, row)))
    {
        for drain in drains.at_address(row.address).filter(|it| it.applies_to(&view.key.name, row.backend()))
        {
            *met.entry(drain).or_default() |= row.is_chosen() && !view.is_port_in_conflict(position);
        }
    }
    met
}

/// A drain in a line of text: with its service.
pub(super) fn describe_drain(drain: &Drain) -> String {
    match drain.service() {
        Some(service) => format!("{drain} of {service}"),
        None => drain.to_string(),
    }
}

#[derive(Clone, Debug)]
pub(super) struct AffectedService {
    key: ServiceKey,
    /// Clients get it.
    is_used: bool,
    /// The lists, or the maps, do not follow the order yet.
    is_pending: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DrainEffect {
    pub(super) services: Vec<AffectedService>,
    /// How many of them do not follow the order yet.
    pub(super) pending: usize,
}

impl DrainEffect {
    /// Searches all services, or the one of the drain.
    pub(super) fn from_snapshot(snapshot: &Snapshot, drain: &Drain, drains: &Drains) -> Self {
        let look = |view: &Arc<ServiceView>| find_affected(view, drain, drains);
        let services = match drain.service() {
            Some(name) => snapshot.services.find_by_name(name).filter_map(look).collect(),
            None => snapshot.services.iter().filter_map(look).collect(),
        };
        Self::from_services(services)
    }

    fn from_services(mut services: Vec<AffectedService>) -> Self {
        services.sort_by(|a, b| a.key.cmp(&b.key));
        let pending = services.iter().filter(|it| it.is_pending).count();
        Self { services, pending }
    }

    /// Checks the found services again.
    pub(super) fn refresh(&mut self, snapshot: &Snapshot, drain: &Drain, drains: &Drains) {
        let again = |known: &AffectedService| {
            let mut views = snapshot.services.find_by_name(&known.key.name);
            find_affected(views.find(|view| view.key == known.key)?, drain, drains)
        };
        *self = Self::from_services(self.services.iter().filter_map(again).collect());
    }

    pub(super) fn service_names(&self) -> Vec<String> {
        self.services.iter().take(NAMED_MAX).map(|it| it.key.to_string()).collect()
    }

    pub(super) fn still_used_names(&self) -> Vec<String> {
        let used = self.services.iter().filter(|it| it.is_used && !it.is_pending);
        used.take(NAMED_MAX).map(|it| it.key.to_string()).collect()
    }
}

fn find_affected(view: &ServiceView, drain: &Drain, drains: &Drains) -> Option<AffectedService> {
    let name = &view.key.name;
    let meant = |row: &Row| drain.applies_to(name, row.backend());
    let ports = view.ports.iter().enumerate();
    let rows = ports.flat_map(|(position, port)| {
        port.rows.rows_at(drain.address()).filter(meant).map(move |row| (position, port, row))
    });
    let mut rows = rows.peekable();
    rows.peek()?;
    let is_written = view.frontends.iter().all(|frontend| frontend.status == Status::Done);
    let mut reached = AffectedService { key: view.key.clone(), is_used: false, is_pending: !is_written };
    for (position, port, row) in rows {
        let is_drained = drains.find_drain(name, row.backend()).is_some();
        reached.is_used |= row.is_chosen() && !view.is_port_in_conflict(position);
        reached.is_pending |= port.rows.weights().is_drained(row.backend()) != is_drained;
    }
    Some(reached)
}
