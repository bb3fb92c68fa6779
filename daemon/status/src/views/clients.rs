//! Counts of clients from the programs in the kernel.
//!
//! Invariant: a port counts from its first entry in the maps, across restarts of the daemon. The counts are no metrics:
//! those would be a series for each service of the cluster on each of its nodes.

use std::collections::BTreeMap;

use holdfast_core::op::PortIndex;
use holdfast_core::snapshot::ServiceView;
use schemars::JsonSchema;
use serde::Serialize;

/// The attempts of clients at all frontends of a port, or of a service. A retry counts again: TCP retries by itself
/// when a packet is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Clients {
    /// Tries that were sent to a backend: by connect(), or by the first packet of a flow. Whether the backend took them
    /// is not counted.
    pub connects: u64,
    /// Tries that holdfast refused.
    pub refused: u64,
    /// Tries that holdfast dropped.
    pub dropped: u64,
}

/// The clients of some ports at one moment; `None` without programs in the kernel.
#[derive(Clone, Debug, Default)]
pub struct ClientCounters(pub Option<BTreeMap<PortIndex, Clients>>);

impl ClientCounters {
    /// The clients of one port, if that port was read.
    pub fn port_clients(&self, index: PortIndex) -> Option<Clients> {
        self.0.as_ref()?.get(&index).copied()
    }

    /// The clients of all ports of a service that were read.
    pub fn service_clients(&self, view: &ServiceView) -> Option<Clients> {
        let ports = view.ports.iter().filter_map(|port| self.port_clients(port.index?));
        self.0.as_ref()?;
        Some(ports.fold(Clients::default(), |sum, port| Clients {
            connects: sum.connects + port.connects,
            refused: sum.refused + port.refused,
            dropped: sum.dropped + port.dropped,
        }))
    }
}
