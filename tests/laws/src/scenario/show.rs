//! What readers see, as tables.
//!
//! Invariant: a dump shows what the rules promise and nothing that depends on luck or the process: no index, no count
//! of tries, no time.

use holdfast_core::facts::AddressType;
use holdfast_core::keys::Family;
use holdfast_core::lifecycle::{BalancerPhase, assess_without_events};
use holdfast_core::list::{Row, Slot, SlotState};
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView, Snapshot, Status};
use std::net::{IpAddr, SocketAddr};

use super::table::table;

/// What a `show` step shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Frontends, and what clients get there.
    Frontends,
    /// Every endpoint of every port, listed or not.
    Backends,
    /// Every known service, served or not.
    Services,
    /// The state of load balancers.
    Balancers,
    /// Rejected objects.
    Rejected,
    /// The maps by meaning.
    Maps,
    /// What a client of this address from outside gets.
    From(IpAddr),
}

impl View {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "frontends" => Ok(Self::Frontends),
            "backends" => Ok(Self::Backends),
            "services" => Ok(Self::Services),
            "balancers" => Ok(Self::Balancers),
            "rejected" => Ok(Self::Rejected),
            "maps" => Ok(Self::Maps),
            other => {
                let client = other.strip_prefix("from ").and_then(|client| client.parse().ok());
                client.map(Self::From).ok_or_else(|| format!("there is no view {other:?}"))
            }
        }
    }
}

/// Frontends, and what clients get there.
pub fn frontends(snapshot: &Snapshot) -> String {
    let rows = services_of(snapshot).into_iter().flat_map(|service| {
        service.frontends.iter().map(|frontend| frontend_row(service, frontend)).collect::<Vec<_>>()
    });
    let head =
        ["FRONTEND", "TYPE", "SERVICE", "VERDICT", "REASON", "BACKENDS", "EXTERNAL", "OWNER", "STATUS"];
    table(&head, rows.collect())
}

fn frontend_row(service: &ServiceView, frontend: &FrontendView) -> Vec<String> {
    let address = SocketAddr::new(frontend.address, frontend.port.get());
    let external = service.external_backends(frontend).map(|rows| list(rows.map(Row::slot)));
    vec![
        format!("{address}/{}", frontend.protocol),
        frontend.kind.as_str().to_owned(),
        format!("{}:{}", service.key, frontend.port_name),
        frontend.verdict.as_str().to_owned(),
        or_dash(frontend.reason.map(|reason| reason.as_str().to_owned())),
        list(service.backends(frontend).map(Row::slot)),
        or_dash(external),
        or_dash(frontend.owner.as_ref().map(|owner| format!("{owner} ({})", owner.source))),
        match &frontend.status {
            Status::Pending => "pending".to_owned(),
            Status::Done => "done".to_owned(),
            Status::Error(error) => format!("error: {error}"),
        },
    ]
}

pub(super) fn backends(snapshot: &Snapshot) -> String {
    let mut rows = Vec::new();
    for service in services_of(snapshot) {
        for port in &service.ports {
            rows.extend(port.rows.iter().map(|row| backend_row(service, port, &row)));
        }
    }
    table(&["ENDPOINT", "SERVICE", "STATE", "UNUSED", "CONDITIONS", "NODE", "ZONE", "SLICES"], rows)
}

fn backend_row(service: &ServiceView, port: &PortView, row: &Row) -> Vec<String> {
    let endpoint = port.row_slice(row, &service.slices).and_then(|it| it.endpoints.get(row.endpoint.into()));
    let conditions = row.conditions();
    let named = [
        (conditions.ready, "ready"),
        (conditions.serving, "serving"),
        (conditions.terminating, "terminating"),
    ];
    let named: Vec<&str> = named.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
    let unused = port.unused_reason(row);
    vec![
        format!("{}/{}", row.slot().backend(), port.key.transport),
        format!("{}:{}", service.key, port.key.name),
        match unused {
            Some(_) => "unused",
            None if row.is_held() => "held",
            None => state(row.state()),
        }
        .to_owned(),
        or_dash(unused.map(|unused| unused.as_str().to_owned())),
        or_dash(Some(named.join(",")).filter(|named| !named.is_empty())),
        or_dash(endpoint.and_then(|it| it.node).map(|node| node.to_string())),
        or_dash(endpoint.and_then(|it| it.zone).map(str::to_owned)),
        slices(service, port, row),
    ]
}

/// Every slice that lists this endpoint for this port, or did when it was last seen.
fn slices(service: &ServiceView, port: &PortView, row: &Row) -> String {
    let lists = |slice: &&std::sync::Arc<holdfast_core::facts::SliceFacts>| {
        let family = slice.address_type == AddressType::Ip(Family::from_address(row.address));
        let joins = slice.ports.iter().any(|it| {
            (&*it.name, it.protocol.transport(), it.port)
                == (&*port.key.name, Some(port.key.transport), row.port)
        });
        family && joins && slice.endpoints.iter().any(|endpoint| endpoint.address == row.address)
    };
    let held = port.hold.as_ref().filter(|_| row.is_held());
    let seen = held.map_or(&service.slices, |hold| &hold.slices);
    let names: Vec<String> = seen.iter().filter(lists).map(|slice| slice.key.to_string()).collect();
    names.join(" ")
}

pub(super) fn services(snapshot: &Snapshot) -> String {
    let row = |service: &ServiceView| {
        let slices: Vec<String> =
            service.slices.iter().map(|slice| slice.key.name.name().to_owned()).collect();
        vec![
            service.key.to_string(),
            service.key.source.to_string(),
            or_dash(service.facts.as_ref().map(|facts| facts.kind.as_str().to_owned())),
            service.state.as_str().to_owned(),
            or_dash(
                service.facts.as_ref().and_then(|facts| facts.affinity_timeout).map(|it| format!("{it} s")),
            ),
            or_dash(
                service.facts.as_ref().map(|facts| facts.source_ranges.join(",")).filter(|it| !it.is_empty()),
            ),
            or_dash(
                service
                    .facts
                    .as_ref()
                    .and_then(|facts| facts.health_check_node_port)
                    .map(|it| it.to_string()),
            ),
            or_dash(Some(slices.join(" ")).filter(|it| !it.is_empty())),
        ]
    };
    let rows = services_of(snapshot).into_iter().map(row).collect();
    table(&["SERVICE", "SOURCE", "TYPE", "STATE", "AFFINITY", "RANGES", "HEALTH_PORT", "SLICES"], rows)
}

/// The services with a load balancer, without durations.
pub(super) fn balancers(snapshot: &Snapshot) -> String {
    let row = |service: &ServiceView| {
        let facts = service
            .facts
            .as_deref()
            .filter(|facts| BalancerPhase::from_facts(facts) != BalancerPhase::None)?;
        let balancer = facts.balancer.as_deref();
        let names = balancer.into_iter().flat_map(|it| &it.hostnames).map(ToString::to_string);
        let addresses: Vec<_> = facts.ingress.iter().map(|it| it.address.to_string()).chain(names).collect();
        let found = assess_without_events(facts, service.balancer_history.as_deref(), snapshot.clock());
        Some(vec![
            service.key.to_string(),
            found.state.to_string(),
            or_dash(Some(addresses.join(",")).filter(|it| !it.is_empty())),
            or_dash(balancer.and_then(|it| it.class.as_deref()).map(str::to_owned)),
        ])
    };
    let rows = services_of(snapshot).into_iter().filter_map(row).collect();
    table(&["SERVICE", "STATE", "ADDRESSES", "CLASS"], rows)
}

pub(super) fn rejected(snapshot: &Snapshot) -> String {
    let row = |rejection: &holdfast_core::facts::Rejection| {
        vec![
            rejection.object.to_string(),
            or_dash(rejection.origin.as_deref().map(str::to_owned)),
            if rejection.partial { "partly" } else { "whole" }.to_owned(),
            rejection.reason.to_string(),
        ]
    };
    let rows = snapshot.rejections.named.values().map(row).collect();
    table(&["OBJECT", "ORIGIN", "REJECTED", "REASON"], rows)
}

/// Sorted by namespace and name, then source.
fn services_of(snapshot: &Snapshot) -> Vec<&ServiceView> {
    let mut services: Vec<&ServiceView> = snapshot.services.iter().map(AsRef::as_ref).collect();
    services.sort_by(|a, b| a.key.cmp(&b.key));
    services
}

/// `[a, b (draining)]`, in the order of the datapath.
pub(super) fn list(slots: impl Iterator<Item = Slot>) -> String {
    let show = |slot: Slot| match slot.state {
        SlotState::Active => slot.backend().to_string(),
        SlotState::Draining => format!("{} ({})", slot.backend(), state(slot.state)),
    };
    format!("[{}]", slots.map(show).collect::<Vec<_>>().join(", "))
}

pub(super) const fn state(state: SlotState) -> &'static str {
    match state {
        SlotState::Active => "active",
        SlotState::Draining => "draining",
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}
