//! What fails clients, or turns them away, as `/readyz` lists it and `status -o json` repeats it.
//!
//! Invariant: each list is cut with a count of what is left out.

use serde::{Deserialize, Serialize};

use super::checks::{FailingBackend, FailingCheck};
use super::denied::DeniedClients;
use super::{ClosedPort, NodePortListener};

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
