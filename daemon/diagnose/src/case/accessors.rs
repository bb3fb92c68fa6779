//! The evidence that checks read, part by part.
//!
//! Invariant: a check reads everything but the query and the time through these functions. Each notes its source, so a
//! finding names exactly the sources that its check read.

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::SliceFacts;
use holdfast_core::keys::Source;
use holdfast_core::snapshot::{FrontendView, PortView, ServiceState, ServiceView, Snapshot};

use super::Case;
use crate::evidence::{
    ClientTrace, Conntrack, DnsReplies, EndpointsObject, Flows, HostPort, HttpProbe, Lease, Listener, Lookup,
    ManifestWorkload, MapRow, ObservedIpAddress, ObservedNode, ObservedService, ObservedSlice, Pods, Probe,
    RecognisedEvent, Resolver, ReversePath, Route, Rule, UnmatchedPod, WatchStatus,
};
use crate::evidence_source::EvidenceSource;
use crate::explain::{ClosedHealthPort, NewsObstacles};
use holdfast_status::record::Record;
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::apiserver::ApiserverView;
use holdfast_status::views::checks::CheckStatuses;
use holdfast_status::views::clients::ClientCounters;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::node_ports::NodePortListener;
use holdfast_status::views::proxies::{Filter, OtherProxy};
use holdfast_status::views::refusals::DeniedClient;

/// One part of the evidence a line: its name here, its type, its field, and the source that is noted.
macro_rules! reads {
    ($($name:ident: $type:ty = $($field:ident).+, $place:ident;)*) => {
        impl<'a> Case<'a> {
            $(pub fn $name(&self) -> &'a $type {
                self.note_source(EvidenceSource::$place);
                &self.evidence.$($field).+
            })*
        }
    };
}

reads! {
    table: Arc<Snapshot> = snapshot, Table;
    unready_reason: Option<String> = own.unready, Table;
    stalled_for: Option<core::time::Duration> = own.stalled, Table;
    watches: Vec<WatchStatus> = own.watches, Watch;
    apiserver: Option<Arc<ApiserverView>> = own.apiserver, Watch;
    datapath: Arc<DatapathView> = own.datapath, Kernel;
    counters: ClientCounters = own.counters, Kernel;
    denials: Vec<Arc<DeniedClient>> = own.denied, Kernel;
    checks: CheckStatuses = own.checks, Checks;
    obstacles: NewsObstacles = own.obstacles, Watch;
    closed_ports: Vec<ClosedHealthPort> = own.closed_ports, Host;
    node_port_listeners: Vec<NodePortListener> = own.node_port_listeners, Host;
    map_rows: Lookup<Vec<MapRow>> = kernel, Kernel;
    unread_map_rows: usize = kernel_left, Kernel;
    lookups: Lookup<Vec<ClientTrace>> = lookups, Kernel;
    flows: Lookup<Flows> = flows, Flows;
    history: Vec<Record> = history, History;
    probes_lookup: Lookup<Vec<Probe>> = probes, Probes;
    http: Lookup<Vec<HttpProbe>> = http, Probes;
    names: Lookup<DnsReplies> = names, Probes;
    proxies: Arc<[OtherProxy]> = own.proxies, Host;
    filters: Arc<[Filter]> = own.filters, Host;
    announcements: Vec<AnnouncedAddress> = own.announced, Host;
    listeners: Lookup<Vec<Listener>> = host.listeners, Host;
    port_range: Lookup<(u16, u16)> = host.port_range, Host;
    reserved: Lookup<Vec<(u16, u16)>> = host.reserved, Host;
    forwards: Lookup<bool> = host.forwards, Host;
    forwards6: Lookup<bool> = host.forwards6, Host;
    reverse_path: Lookup<Vec<ReversePath>> = host.reverse_path, Host;
    conntrack: Lookup<Conntrack> = host.conntrack, Host;
    resolver: Lookup<Resolver> = host.resolver, Host;
    routes: Lookup<Vec<Route>> = host.routes, Host;
    rules: Lookup<Vec<Rule>> = host.rules, Host;
    host_port_rules: Lookup<Vec<u16>> = host.host_port_rules, Host;
    host_addresses: Lookup<Vec<IpAddr>> = host.addresses, Host;
    health: Lookup<u16> = host.health, Host;
    manifests: Lookup<ManifestWorkload> = host.manifests, Manifests;
    service_lookup: Lookup<Option<ObservedService>> = cluster.service, Service;
    slices_lookup: Lookup<Vec<ObservedSlice>> = cluster.slices, Slices;
    pods_lookup: Lookup<Pods> = cluster.pods, Pods;
    unmatched_pods: Lookup<Vec<UnmatchedPod>> = cluster.near, Pods;
    host_ports: Lookup<Vec<HostPort>> = cluster.hosted, Pods;
    endpoints_lookup: Lookup<Option<EndpointsObject>> = cluster.endpoints, Endpoints;
    nodes_lookup: Lookup<Vec<ObservedNode>> = cluster.nodes, Nodes;
    unqueried_nodes: Vec<String> = cluster.nodes_unasked, Nodes;
    leases_lookup: Lookup<Vec<Lease>> = cluster.leases, Leases;
    address_lookup: Lookup<Option<ObservedIpAddress>> = cluster.address, Address;
    policies_lookup: Lookup<usize> = cluster.policies, Policies;
    namespace_lookup: Lookup<Option<bool>> = cluster.namespace, Namespace;
    events: Lookup<Vec<RecognisedEvent>> = cluster.events, Events;
    has_more_events: bool = cluster.more_events, Events;
}

/// The service as this node has it. Its objects come from the watches; holdfast's decisions are in the table.
impl<'a> Case<'a> {
    /// The whole view, from the watches and the table.
    pub fn view(&self) -> Option<&'a ServiceView> {
        self.note_source(EvidenceSource::Watch);
        self.table_view()
    }

    pub fn facts(&self) -> Option<&'a holdfast_core::facts::ServiceFacts> {
        self.note_source(EvidenceSource::Watch);
        self.view?.facts.as_deref()
    }

    /// All of its slices, including those hidden from proxies.
    pub fn all_slices(&self) -> impl Iterator<Item = &'a SliceFacts> + use<'a> {
        self.note_source(EvidenceSource::Watch);
        self.view.into_iter().flat_map(|view| view.slices.iter()).map(AsRef::as_ref)
    }

    pub fn is_known(&self) -> bool {
        self.table_view().is_some()
    }

    /// The source that has the service.
    pub fn source(&self) -> Option<Source> {
        self.table_view().map(|view| view.key.source)
    }

    pub fn state(&self) -> Option<ServiceState> {
        self.table_view().map(|view| view.state)
    }

    pub fn frontends(&self) -> impl Iterator<Item = &'a FrontendView> + use<'a> {
        self.table_view().into_iter().flat_map(|view| &view.frontends)
    }

    pub fn ports(&self) -> impl Iterator<Item = &'a PortView> + use<'a> {
        self.table_view().into_iter().flat_map(|view| view.ports.iter())
    }

    fn table_view(&self) -> Option<&'a ServiceView> {
        self.note_source(EvidenceSource::Table);
        self.view
    }
}
