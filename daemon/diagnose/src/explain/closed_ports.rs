//! Backends of a service that said themselves that their port is closed, to clients outside that speak UDP.
//!
//! Invariant: an answer names only backends that the service has now, and a bounded number of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::Transport;
use holdfast_core::snapshot::{PortView, ServiceView};

/// The most backends that are named of one service.
const BACKENDS_MAX: usize = 16;

/// The ports of a service by UDP.
pub(super) fn udp_ports(view: &ServiceView) -> impl Iterator<Item = &PortView> {
    view.ports.iter().filter(|port| port.key.transport == Transport::Udp)
}

/// The backends of a service that said that their port is closed; `seen` has those of all services.
pub(super) fn list_refusing_backends(view: &ServiceView, seen: &BTreeSet<SocketAddr>) -> Vec<String> {
    let is_its = |backend: &&SocketAddr| udp_ports(view).any(|port| port.rows.find(**backend).is_some());
    seen.iter().filter(is_its).take(BACKENDS_MAX).map(ToString::to_string).collect()
}
