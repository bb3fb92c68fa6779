//! How many clients came, by the counts that programs keep in the kernel.
//!
//! Invariant: a port counts since it has its place in the maps, over restarts of the daemon. The counts are no metrics:
//! those would be a series for each service of the cluster on each of its nodes.

use std::sync::Arc;

use holdfast_core::op::PortIndex;
use holdfast_core::snapshot::ServiceView;
use holdfast_datapath::{Counted, Counts};
use schemars::JsonSchema;
use serde::Serialize;

use super::datapath::DatapathView;

/// The tries of clients at all frontends of a port, or of a service. A client that tries again counts again: TCP does
/// that by itself when a packet is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Clients {
    /// Clients that were led to a backend: by connect(), or by the first datagram of a conversation.
    pub connects: u64,
    pub refused: u64,
    pub dropped: u64,
}

/// The counters of all ports; none where there are no programs in the kernel.
#[derive(Debug, Default)]
pub struct Counters(Option<Counts>);

impl Counters {
    pub fn of(view: &Arc<DatapathView>) -> Self {
        Self(view.status().map(|status| status.counts.clone()))
    }

    /// The clients of one port.
    pub fn port(&self, index: PortIndex) -> Option<Clients> {
        let Counted { connects, refused, dropped } = self.0.as_ref()?.at(index);
        Some(Clients { connects, refused, dropped })
    }

    /// The clients of all ports of a service.
    pub fn service(&self, view: &ServiceView) -> Option<Clients> {
        let ports = view.ports.iter().filter_map(|port| self.port(port.index?));
        self.0.as_ref()?;
        Some(ports.fold(Clients::default(), |sum, port| Clients {
            connects: sum.connects + port.connects,
            refused: sum.refused + port.refused,
            dropped: sum.dropped + port.dropped,
        }))
    }
}
