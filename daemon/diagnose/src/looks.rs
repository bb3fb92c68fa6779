//! Where checks look.
//!
//! Invariant: [`Looked`] has each place once, and tells them in the order of [`Looks`].

use holdfast_core::words;

words! {
    /// Where a check looks.
    pub enum Looks {
        /// What the watches of the apiserver brought.
        Watch = "watch",
        /// What this node wants to serve.
        Table = "table",
        /// Programs and maps.
        Kernel = "kernel",
        History = "history",
        /// /proc and netlink.
        Host = "host",
        Probes = "probes",
        /// What holdfast's own health checks of backends found out.
        Checks = "checks",
        /// Connections of clients outside, as packets are translated.
        Flows = "flows",
        /// The apiserver, asked for this diagnosis.
        Service = "api:service",
        Slices = "api:endpointslices",
        Pods = "api:pods",
        Endpoints = "api:endpoints",
        Nodes = "api:nodes",
        Leases = "api:leases",
        Address = "api:ipaddresses",
        Policies = "api:networkpolicies",
        Namespace = "api:namespaces",
        Events = "api:events",
    }
}

impl Looks {
    /// Whether the apiserver is asked there for this diagnosis.
    pub const fn is_apiserver(self) -> bool {
        matches!(
            self,
            Self::Service
                | Self::Slices
                | Self::Pods
                | Self::Endpoints
                | Self::Nodes
                | Self::Leases
                | Self::Address
                | Self::Policies
                | Self::Namespace
                | Self::Events
        )
    }
}

/// The places at which a check has looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked([bool; Looks::ALL.len()]);

impl Looked {
    /// Adds a place.
    #[must_use]
    pub fn and(mut self, place: Looks) -> Self {
        let looked = self.0.iter_mut().zip(Looks::ALL);
        looked.filter(|(_, it)| *it == place).for_each(|(looked, _)| *looked = true);
        self
    }

    pub fn places(self) -> impl Iterator<Item = Looks> {
        Looks::ALL.into_iter().zip(self.0).filter_map(|(place, looked)| looked.then_some(place))
    }
}
