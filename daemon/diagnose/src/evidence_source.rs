//! The sources that checks read.
//!
//! Invariant: [`SourceSet`] has each source once, in the order of [`EvidenceSource`].

use holdfast_core::words;

words! {
    /// A source that a check reads.
    pub enum EvidenceSource {
        /// Objects from the apiserver's watches.
        Watch = "watch",
        /// What this node wants to serve.
        Table = "table",
        /// Programs and maps.
        Kernel = "kernel",
        History = "history",
        /// /proc and netlink.
        Host = "host",
        Probes = "probes",
        /// Results of holdfast's own health checks.
        Checks = "checks",
        /// Connections of outside clients, from the packet programs.
        Flows = "flows",
        /// The folder of manifests, read for this diagnosis.
        Manifests = "manifests",
        /// The apiserver, queried for this diagnosis.
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
    /// Whether this source is a query to the apiserver.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSet([bool; EvidenceSource::ALL.len()]);

impl SourceSet {
    #[must_use]
    pub fn with_source(mut self, source: EvidenceSource) -> Self {
        let looked = self.0.iter_mut().zip(EvidenceSource::ALL);
        looked.filter(|(_, it)| *it == source).for_each(|(looked, _)| *looked = true);
        self
    }

    pub fn iter(self) -> impl Iterator<Item = EvidenceSource> {
        EvidenceSource::ALL.into_iter().zip(self.0).filter_map(|(source, looked)| looked.then_some(source))
    }
}
