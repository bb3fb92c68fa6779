//! The services that a status names, for a diagnosis of each.
//!
//! Invariant: a service is named once, and those whose clients fail now come first.

use std::collections::BTreeSet;

use super::Status;
use super::checks::{FailingBackend, FailingCheck};
use super::denied::DeniedClients;
use super::unserved::NotServing;

impl Status {
    /// The services with something to diagnose, the worst first.
    pub(crate) fn list_services_in_trouble(&self) -> Vec<String> {
        let outages = self.not_serving.iter().filter(|it| it.is_outage()).map(NotServing::service);
        let unwritten = self.errors.iter().map(|it| it.service.as_str());
        let failing = self.failures.failing_backends.iter().map(FailingBackend::service);
        let held = self.held.iter().map(NotServing::service);
        let checked = self.failures.failing_checks.iter().map(FailingCheck::service);
        let closed = self.failures.closed_ports.iter().filter_map(|it| it.service.as_deref());
        let listening = self.failures.node_port_listeners.iter().map(|it| it.service.as_str());
        let denied = self.failures.denied_clients.iter().filter_map(DeniedClients::failed_service);
        let first = outages.chain(unwritten).chain(failing).chain(held).chain(checked);
        let all = first.chain(closed).chain(listening).chain(denied);
        // An outage of many tenants has tens of thousands.
        let mut seen = BTreeSet::new();
        all.filter(|service| seen.insert(*service)).map(str::to_owned).collect()
    }

    /// Whether rules of services turned clients away, as they should.
    pub(crate) fn has_denied_clients(&self) -> bool {
        !self.failures.denied_clients.is_empty()
    }
}
