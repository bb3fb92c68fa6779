//! Backends that reported their UDP port closed to outside clients.
//!
//! Invariant: an answer names only current backends of the service, and a bounded number of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::Transport;
use holdfast_core::snapshot::{PortView, ServiceView};

/// The most backends of one service that are named.
const BACKENDS_MAX: usize = 16;

pub(super) fn udp_ports(view: &ServiceView) -> impl Iterator<Item = &PortView> {
    view.ports.iter().filter(|port| port.key.transport == Transport::Udp)
}

/// The service's backends among those that reported their port closed.
pub(super) fn list_refusing_backends(view: &ServiceView, seen: &BTreeSet<SocketAddr>) -> Vec<String> {
    let is_its = |backend: &&SocketAddr| udp_ports(view).any(|port| port.rows.find(**backend).is_some());
    seen.iter().filter(is_its).take(BACKENDS_MAX).map(ToString::to_string).collect()
}
