//! Backends of a service that said themselves that their port is closed, to clients outside that speak UDP.
//!
//! Invariant: only those that the service has now, and a bounded number of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::Transport;
use holdfast_core::snapshot::{PortView, ServiceView};

/// Backends that are named of one service.
const BACKENDS_MAX: usize = 16;

/// Its ports by UDP.
pub(super) fn by_udp(view: &ServiceView) -> impl Iterator<Item = &PortView> {
    view.ports.iter().filter(|port| port.key.transport == Transport::Udp)
}

/// Those of a service.
pub(super) fn told(view: &ServiceView, seen: &BTreeSet<SocketAddr>) -> Vec<String> {
    let is_its = |backend: &&SocketAddr| by_udp(view).any(|port| port.rows.find(**backend).is_some());
    seen.iter().filter(is_its).take(BACKENDS_MAX).map(ToString::to_string).collect()
}
