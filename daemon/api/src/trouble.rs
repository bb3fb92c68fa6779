//! What fails at a row of a table, in one word for each cause.
//!
//! Invariant: a row has trouble exactly where `holdfast status` counts it as failing: by the health of its frontends,
//! writes that the maps refused, backends that fail clients or their health checks, ports of other processes, health
//! check ports that are not open, and clients that this node had no room for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_agent::readings::Readings;
use holdfast_core::health::Health;
use holdfast_core::keys::{FrontendKey, ObjectName, ServiceKey, Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView, Status};
use holdfast_core::words;
use holdfast_standalone::blocks::CheckStats;
use holdfast_status::datapath::BackendFailure;
use holdfast_status::views::refusals::{Owners, programmed_key, takes_clients};

use serde::{Serialize, Serializer};

use super::denied_clients::find_shortages;
use super::failing_backends::find_failing;

words! {
    /// Why a row counts as failing.
    #[derive(PartialOrd, Ord)]
    pub(super) enum Trouble {
        /// Clients get no backend, and nobody asked for that. The verdict says how.
        Outage = "outage",
        /// The maps refused the write.
        Write = "write",
        Refused = "refused",
        Silent = "silent",
        /// The health checks of a backend fail.
        Checks = "checks",
        /// Another process listens at its node port.
        NodePort = "node-port",
        /// Its health check port is not open.
        HealthPort = "health-port",
        /// This node has no room, port or address for its clients.
        Shortage = "shortage",
    }
}

/// Whether no frontend of a port serves its clients, though somebody should.
fn is_out_of_service(view: &ServiceView, port: &PortView) -> bool {
    let is_its = |it: &&FrontendView| {
        let own = it.position.and_then(|position| view.ports.get(position));
        own.is_some_and(|own| std::ptr::eq(own, port))
    };
    let mut frontends = view.frontends.iter().filter(is_its).peekable();
    frontends.peek().is_some() && frontends.all(|it| view.frontend_health(it) == Health::Outage)
}

impl From<BackendFailure> for Trouble {
    fn from(failure: BackendFailure) -> Self {
        match failure {
            BackendFailure::Refused => Self::Refused,
            BackendFailure::Silent => Self::Silent,
        }
    }
}

/// The troubles of one row.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Troubles(BTreeSet<Trouble>);

impl Troubles {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As one cell; `None`: there are none.
    pub(super) fn cell(&self) -> Option<&Self> {
        (!self.is_empty()).then_some(self)
    }
}

impl Serialize for Troubles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|it| it.as_str()))
    }
}

impl fmt::Display for Troubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(","))
    }
}

/// A backend that fails the clients of a frontend.
#[derive(Debug)]
struct FailingAt {
    frontend: FrontendKey,
    backend: SocketAddr,
    how: BackendFailure,
}

/// What fails now, by service.
#[derive(Debug, Default)]
pub(super) struct TroubleIndex {
    failing: BTreeMap<ServiceKey, Vec<FailingAt>>,
    node_ports: BTreeSet<(ObjectName, NonZeroU16, Transport)>,
    health_ports: BTreeSet<ObjectName>,
    /// Frontends whose clients met a shortage of this node.
    shortages: BTreeSet<FrontendKey>,
    /// The services of those frontends.
    short_services: BTreeSet<ObjectName>,
    checks: Arc<CheckStats>,
}

impl TroubleIndex {
    pub(super) fn from_readings(readings: &Readings) -> Self {
        let snapshot = readings.snapshot();
        let mut failing = BTreeMap::<_, Vec<_>>::new();
        for it in find_failing(&snapshot, &readings.datapath()) {
            if let Some(frontend) = programmed_key(it.owner.1) {
                let at = FailingAt { frontend, backend: it.backend, how: it.how };
                failing.entry(it.owner.0.key.clone()).or_default().push(at);
            }
        }
        let listeners = Arc::clone(&readings.node_port_listeners.borrow());
        let node_ports =
            listeners.iter().map(|it| (it.service.clone(), it.listener.port, it.listener.transport));
        let dialled = find_shortages(&readings.refusals.snapshot(), readings.now());
        let owners = Owners::from_snapshot(&snapshot, dialled.iter().copied());
        let short: Vec<_> = dialled.iter().filter_map(|key| owners.find_owner(key)).collect();
        Self {
            short_services: short.iter().map(|(view, _)| view.key.name.clone()).collect(),
            shortages: short.iter().filter_map(|(_, frontend)| programmed_key(frontend)).collect(),
            failing,
            node_ports: node_ports.collect(),
            health_ports: readings.closed_ports.closed_services(),
            checks: Arc::clone(&readings.checks),
        }
    }

    /// The services with any of these troubles, whatever their verdicts.
    pub(super) fn list_services(&self) -> BTreeSet<ObjectName> {
        let failing = self.failing.keys().map(|key| key.name.clone());
        let node_ports = self.node_ports.iter().map(|(name, ..)| name.clone());
        let others = self.health_ports.iter().chain(&self.short_services).cloned();
        failing.chain(node_ports).chain(others).chain(self.checks.failing_services()).collect()
    }

    pub(super) fn service_troubles(&self, view: &ServiceView) -> Troubles {
        let frontends = view.frontends.iter().flat_map(|it| self.frontend_troubles(view, it).0);
        let has_health_port = view.facts.as_ref().is_some_and(|facts| facts.health_check_node_port.is_some());
        let is_closed = has_health_port && self.health_ports.contains(&view.key.name);
        let closed = is_closed.then_some(Trouble::HealthPort);
        let checks = view.ports.iter().any(|port| self.fails_checks(view, port));
        Troubles(frontends.chain(closed).chain(checks.then_some(Trouble::Checks)).collect())
    }

    pub(super) fn frontend_troubles(&self, view: &ServiceView, frontend: &FrontendView) -> Troubles {
        let health = match frontend.status {
            Status::Error(_) => Some(Trouble::Write),
            _ => (view.frontend_health(frontend) == Health::Outage).then_some(Trouble::Outage),
        };
        let key = programmed_key(frontend);
        // One that refuses clients of one address refuses those of all that lead to it.
        let leads = |it: &&FailingAt| {
            frontend.protocol.transport() == Some(it.frontend.transport)
                && takes_clients(view, frontend, it.backend)
        };
        let failing = self.failing_at(view).filter(|it| key.is_some() && leads(it));
        let port = frontend.position.and_then(|position| view.ports.get(position));
        let checks = port.is_some_and(|port| self.fails_checks(view, port)).then_some(Trouble::Checks);
        let shortage = key.is_some_and(|key| self.shortages.contains(&key)).then_some(Trouble::Shortage);
        let own = failing.map(|it| it.how.into()).chain(health).chain(checks).chain(shortage);
        Troubles(own.chain(self.taken_port(view, frontend)).collect())
    }

    /// The port of this frontend that another process has.
    fn taken_port(&self, view: &ServiceView, frontend: &FrontendView) -> Option<Trouble> {
        let name = &view.key.name;
        match frontend.kind {
            FrontendType::NodePort => {
                let key = (name.clone(), frontend.port, frontend.protocol.transport()?);
                self.node_ports.contains(&key).then_some(Trouble::NodePort)
            }
            FrontendType::LoadBalancer => self.health_ports.contains(name).then_some(Trouble::HealthPort),
            _ => None,
        }
    }

    pub(super) fn backend_troubles(&self, view: &ServiceView, port: &PortView, row: &Row) -> Troubles {
        let backend = row.backend();
        let is_it = |it: &&FailingAt| it.backend == backend && it.frontend.transport == port.key.transport;
        let failing = self.failing_at(view).filter(is_it).map(|it| it.how.into());
        let checks = self.fails_check(view, backend).then_some(Trouble::Checks);
        let outage = is_out_of_service(view, port).then_some(Trouble::Outage);
        Troubles(failing.chain(checks).chain(outage).collect())
    }

    fn failing_at(&self, view: &ServiceView) -> impl Iterator<Item = &FailingAt> {
        self.failing.get(&view.key).into_iter().flatten()
    }

    fn fails_checks(&self, view: &ServiceView, port: &PortView) -> bool {
        view.key.source == Source::Config && port.rows.iter().any(|row| self.fails_check(view, row.backend()))
    }

    /// Whether the health checks of a configured backend fail.
    fn fails_check(&self, view: &ServiceView, backend: SocketAddr) -> bool {
        let check = || self.checks.backend_check(&view.key.name, backend);
        view.key.source == Source::Config && check().is_some_and(|check| !check.usable)
    }
}
