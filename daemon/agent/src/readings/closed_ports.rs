//! Records which of kube-proxy's ports are wanted but closed, and why.
//!
//! Invariant: each part that opens ports reports only its own. The log has one line when a port cannot be opened and
//! one when it can, and names ports of Services up to a limit.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_core::words;

use holdfast_config::KubeProxy;
use holdfast_host::logging::messages::NOTICE;

/// How many closed ports of Services are named; the rest is counted.
pub(crate) const CLOSED_NAMED_MAX: usize = 100;

words! {
    /// What a port is for.
    pub enum Purpose {
        /// Whether this node may get traffic.
        Health = "health",
        Metrics = "metrics",
        /// Whether this node has endpoints of a Service.
        Service = "service",
    }
}

pub(crate) const IN_USE: &str = "another process listens there (`ss -ltnp` names it)";

/// A port that is wanted but not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedPort {
    pub purpose: Purpose,
    pub address: SocketAddr,
    /// The Service of a health check port.
    pub service: Option<ObjectName>,
    pub reason: String,
}

/// A health check port of a Service that is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedServicePort {
    pub(crate) service: ObjectName,
    /// Since when the port has been closed.
    pub(crate) since: Timestamp,
    /// Whether another process has the port.
    pub(crate) is_in_use: bool,
}

/// All of kube-proxy's ports that are wanted but not open.
#[derive(Debug, Default)]
pub struct ClosedPorts(Mutex<ClosedList>);

#[derive(Debug, Default)]
struct ClosedList {
    configured: Vec<ClosedPort>,
    services: Vec<ClosedPort>,
    // Since when each of `services` is closed, in their order.
    since: Vec<Timestamp>,
    more: usize,
}

impl ClosedPorts {
    /// The closed ports to name, and how many more ports of Services are closed.
    pub fn named_ports(&self) -> (Vec<ClosedPort>, usize) {
        let known = self.lock_list();
        let named = known.services.iter().take(CLOSED_NAMED_MAX);
        let more = known.more + known.services.len().saturating_sub(CLOSED_NAMED_MAX);
        (known.configured.iter().chain(named).cloned().collect(), more)
    }

    /// The closed health check ports of Services, each with the time since when.
    pub fn service_ports(&self) -> Vec<ClosedServicePort> {
        let known = self.lock_list();
        let closed = known.services.iter().zip(&known.since).filter_map(|(port, since)| {
            let service = port.service.clone()?;
            let is_in_use = port.reason == IN_USE;
            Some(ClosedServicePort { service, since: *since, is_in_use })
        });
        closed.collect()
    }

    /// The services whose health check port is not open, as far as they are named.
    pub fn closed_services(&self) -> BTreeSet<ObjectName> {
        self.lock_list().services.iter().filter_map(|port| port.service.clone()).collect()
    }

    fn lock_list(&self) -> MutexGuard<'_, ClosedList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metrics port, if this daemon itself has it: the search for kube-proxy uses that port, and must not find
    /// this daemon.
    pub fn own_metrics_port(&self, ports: KubeProxy) -> Option<u16> {
        let is_closed = self.lock_list().configured.iter().any(|it| it.purpose == Purpose::Metrics);
        ports.metrics.filter(|_| !is_closed).map(|address| address.port())
    }

    /// Records and logs why a configured port is closed; `None` means it is open.
    pub(crate) fn report_port(&self, purpose: Purpose, address: SocketAddr, why: Option<String>) {
        let mut known = self.lock_list();
        let before = known.configured.iter().position(|it| it.purpose == purpose);
        let before = before.map(|place| known.configured.swap_remove(place));
        match &why {
            Some(why) if before.as_ref().is_none_or(|it| it.reason != *why) => {
                let purpose = purpose.as_str();
                tracing::warn!(%address, purpose, why, "cannot open a port of kube-proxy; retrying, and services are still served");
            }
            Some(_) => {}
            None if before.is_some() => {
                let purpose = purpose.as_str();
                tracing::info!(target: NOTICE, %address, purpose, "a port of kube-proxy is open at last");
            }
            None => tracing::info!(%address, purpose = purpose.as_str(), "a port of kube-proxy is open"),
        }
        known.configured.extend(why.map(|why| ClosedPort { purpose, address, service: None, reason: why }));
    }

    /// Records the currently closed ports of Services and how many more there are, and logs the difference.
    pub(crate) fn report_service_ports(&self, now: Vec<ClosedPort>, more: usize, at: Timestamp) {
        let mut known = self.lock_list();
        log_difference(&known.services, &now);
        let since = |port: &ClosedPort| {
            let before = known.services.iter().position(|it| is_same_port(it, port));
            before.and_then(|place| known.since.get(place).copied()).unwrap_or(at)
        };
        let since = now.iter().map(since).collect();
        (known.services, known.since, known.more) = (now, since, more);
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn from_ports(ports: Vec<ClosedPort>) -> Self {
        let closed = Self::default();
        closed.report_service_ports(ports, 0, Timestamp::default());
        closed
    }
}

fn is_same_port(a: &ClosedPort, b: &ClosedPort) -> bool {
    (a.address, &a.service) == (b.address, &b.service)
}

fn log_difference(before: &[ClosedPort], now: &[ClosedPort]) {
    for it in now.iter().filter(|it| !before.contains(it)) {
        let service = it.service.as_ref().map(ToString::to_string);
        tracing::warn!(address = %it.address, service, why = it.reason, "cannot open a health check port of a Service; retrying");
    }
    let is_there = |it: &ClosedPort| now.iter().any(|other| is_same_port(other, it));
    for it in before.iter().filter(|it| !is_there(it)) {
        let service = it.service.as_ref().map(ToString::to_string);
        tracing::info!(
            target: NOTICE,
            address = %it.address,
            service,
            "a health check port of a Service is no longer blocked"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u16, why: &str) -> ClosedPort {
        let service = ObjectName::new("shop", &format!("web-{number}")).ok();
        let address = SocketAddr::from(([192, 0, 2, 1], number));
        ClosedPort { purpose: Purpose::Service, address, service, reason: why.to_owned() }
    }

    #[test]
    fn a_closed_port_keeps_its_first_time_over_later_reports() {
        let closed = ClosedPorts::default();
        let check = |now: &[(u16, &str)], at, expected: &[(u16, i64, bool)]| {
            let now = now.iter().map(|(number, why)| port(*number, why)).collect();
            closed.report_service_ports(now, 0, Timestamp(at));
            let expected = expected.iter().map(|(number, since, is_in_use)| ClosedServicePort {
                service: port(*number, "").service.unwrap(),
                since: Timestamp(*since),
                is_in_use: *is_in_use,
            });
            assert_eq!(closed.service_ports(), expected.collect::<Vec<_>>());
        };
        check(&[(1, IN_USE)], 10, &[(1, 10, true)]);
        check(&[(2, "no"), (1, "no")], 20, &[(2, 20, false), (1, 10, false)]);
        check(&[(2, "no")], 30, &[(2, 20, false)]);
        check(&[(1, "no"), (2, "no")], 40, &[(1, 40, false), (2, 20, false)]);
    }
}
