//! What fails clients, or turns them away, as `/readyz` lists it and `status -o json` repeats it.
//!
//! Invariant: each list is cut with a count of what is left out.

use serde::{Deserialize, Serialize};

use super::checks::{FailingBackend, FailingCheck};
use super::denied::DeniedClients;

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Failures {
    #[serde(default)]
    pub(super) closed_ports: Vec<ClosedPort>,
    #[serde(default)]
    pub(super) closed_ports_omitted: u64,
    #[serde(default)]
    pub(super) failing_checks: Vec<FailingCheck>,
    #[serde(default)]
    pub(super) failing_checks_omitted: u64,
    #[serde(default)]
    pub(super) failing_backends: Vec<FailingBackend>,
    #[serde(default)]
    pub(super) failing_backends_omitted: u64,
    #[serde(default)]
    pub(super) node_port_listeners: Vec<NodePortListener>,
    #[serde(default)]
    pub(super) node_port_listeners_omitted: u64,
    #[serde(default)]
    pub(super) denied_clients: Vec<DeniedClients>,
    #[serde(default)]
    pub(super) denied_clients_omitted: u64,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ClosedPort {
    purpose: String,
    address: String,
    pub(super) service: Option<String>,
    why: String,
}

/// A process that listens at a node port.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct NodePortListener {
    pub(super) service: String,
    address: String,
    protocol: String,
    process: Option<String>,
    pid: Option<u32>,
    pub(super) why: String,
}

impl ClosedPort {
    pub(super) fn describe_state(&self) -> String {
        let Self { purpose, address, service, why } = self;
        match service {
            Some(service) => format!("{service}, health check port {address}: {why}"),
            None => format!("{purpose} {address}: {why}"),
        }
    }
}

impl NodePortListener {
    /// What to type: a look at the process first.
    pub(super) fn next_commands(&self) -> String {
        let diagnose = format!("holdfast diagnose {}", self.service);
        match self.pid {
            Some(pid) => format!("next: ps -fp {pid}, then: {diagnose}"),
            None => format!("next: {diagnose}"),
        }
    }
}
