//! Where checks look.
//!
//! Invariant: [`SourceSet`] has each place once, and tells them in the order of [`EvidenceSource`].

use holdfast_core::words;

words! {
    /// Where a check looks.
    pub enum EvidenceSource {
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

impl EvidenceSource {
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
pub struct SourceSet([bool; EvidenceSource::ALL.len()]);

impl SourceSet {
    /// Adds a place.
    #[must_use]
    pub fn with_source(mut self, place: EvidenceSource) -> Self {
        let looked = self.0.iter_mut().zip(EvidenceSource::ALL);
        looked.filter(|(_, it)| *it == place).for_each(|(looked, _)| *looked = true);
        self
    }

    pub fn iter(self) -> impl Iterator<Item = EvidenceSource> {
        EvidenceSource::ALL.into_iter().zip(self.0).filter_map(|(place, looked)| looked.then_some(place))
    }
}
