//! What checks read of the material, part by part.
//!
//! Invariant: whatever a check judges by, but for the question itself and the time, is read through one of these
//! functions, which notes the place; so a finding says where its check has looked, and names no other place.

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::SliceFacts;
use holdfast_core::keys::Source;
use holdfast_core::snapshot::{FrontendView, PortView, ServiceState, ServiceView, Snapshot};

use super::Case;
use crate::looks::Looks;
use crate::material::{
    AddressSeen, Asked, Conntrack, EndpointsSeen, EventSeen, Flows, HostPort, HttpProbe, Lease, Listener,
    Lookup, MapRow, Names, NearPod, NodeSeen, Pods, Probe, Resolver, ReversePath, Route, Rule, ServiceSeen,
    SliceSeen, WatchSeen,
};
use holdfast_status::record::Record;
use holdfast_status::views::announced::AnnouncedAddress;
use holdfast_status::views::apiserver::View as ApiserverView;
use holdfast_status::views::checks::ChecksSeen;
use holdfast_status::views::clients::Counters;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::proxies::{Filter, OtherProxy};
use holdfast_status::views::refusals::Denied;

/// One part of the material a line: its name here, its type, where it lies, and the place that is noted.
macro_rules! reads {
    ($($name:ident: $type:ty = $($field:ident).+, $place:ident;)*) => {
        impl<'a> Case<'a> {
            $(pub fn $name(&self) -> &'a $type {
                self.note(Looks::$place);
                &self.material.$($field).+
            })*
        }
    };
}

reads! {
    table: Arc<Snapshot> = snapshot, Table;
    unready: Option<String> = own.unready, Table;
    stalled: Option<core::time::Duration> = own.stalled, Table;
    watches: Vec<WatchSeen> = own.watches, Watch;
    apiserver: Option<Arc<ApiserverView>> = own.apiserver, Watch;
    datapath: Arc<DatapathView> = own.datapath, Kernel;
    counters: Counters = own.counters, Kernel;
    denied: Vec<Arc<Denied>> = own.denied, Kernel;
    checks: ChecksSeen = own.checks, Checks;
    map_rows: Asked<Vec<MapRow>> = kernel, Kernel;
    map_rows_left: usize = kernel_left, Kernel;
    lookups: Asked<Vec<Lookup>> = lookups, Kernel;
    flows: Asked<Flows> = flows, Flows;
    history: Vec<Record> = history, History;
    asked_probes: Asked<Vec<Probe>> = probes, Probes;
    http: Asked<Vec<HttpProbe>> = http, Probes;
    names: Asked<Names> = names, Probes;
    proxies: Arc<[OtherProxy]> = own.proxies, Host;
    filters: Arc<[Filter]> = own.filters, Host;
    announced: Vec<AnnouncedAddress> = own.announced, Host;
    listeners: Asked<Vec<Listener>> = host.listeners, Host;
    port_range: Asked<(u16, u16)> = host.port_range, Host;
    reserved: Asked<Vec<(u16, u16)>> = host.reserved, Host;
    forwards: Asked<bool> = host.forwards, Host;
    forwards6: Asked<bool> = host.forwards6, Host;
    reverse_path: Asked<Vec<ReversePath>> = host.reverse_path, Host;
    conntrack: Asked<Conntrack> = host.conntrack, Host;
    resolver: Asked<Resolver> = host.resolver, Host;
    routes: Asked<Vec<Route>> = host.routes, Host;
    rules: Asked<Vec<Rule>> = host.rules, Host;
    host_port_rules: Asked<Vec<u16>> = host.host_port_rules, Host;
    host_addresses: Asked<Vec<IpAddr>> = host.addresses, Host;
    health: Asked<u16> = host.health, Host;
    asked_service: Asked<Option<ServiceSeen>> = cluster.service, Service;
    asked_slices: Asked<Vec<SliceSeen>> = cluster.slices, Slices;
    asked_pods: Asked<Pods> = cluster.pods, Pods;
    near_pods: Asked<Vec<NearPod>> = cluster.near, Pods;
    host_ports: Asked<Vec<HostPort>> = cluster.hosted, Pods;
    asked_endpoints: Asked<Option<EndpointsSeen>> = cluster.endpoints, Endpoints;
    asked_nodes: Asked<Vec<NodeSeen>> = cluster.nodes, Nodes;
    nodes_unasked: Vec<String> = cluster.nodes_unasked, Nodes;
    asked_leases: Asked<Vec<Lease>> = cluster.leases, Leases;
    asked_address: Asked<Option<AddressSeen>> = cluster.address, Address;
    asked_policies: Asked<usize> = cluster.policies, Policies;
    asked_namespace: Asked<Option<bool>> = cluster.namespace, Namespace;
    events: Asked<Vec<EventSeen>> = cluster.events, Events;
    has_more_events: bool = cluster.more_events, Events;
}

/// The service as this node has it: what its objects say came by the watches, and what was made of it is in the table.
impl<'a> Case<'a> {
    /// The whole view, with what came by the watches and what is in the table.
    pub fn view(&self) -> Option<&'a ServiceView> {
        self.note(Looks::Watch);
        self.of_table()
    }

    pub fn facts(&self) -> Option<&'a holdfast_core::facts::ServiceFacts> {
        self.note(Looks::Watch);
        self.view?.facts.as_deref()
    }

    /// All of its slices, those too that proxies do not see.
    pub fn all_slices(&self) -> impl Iterator<Item = &'a SliceFacts> + use<'a> {
        self.note(Looks::Watch);
        self.view.into_iter().flat_map(|view| view.slices.iter()).map(AsRef::as_ref)
    }

    pub fn is_known(&self) -> bool {
        self.of_table().is_some()
    }

    /// The source that has the service.
    pub fn source(&self) -> Option<Source> {
        self.of_table().map(|view| view.key.source)
    }

    pub fn state(&self) -> Option<ServiceState> {
        self.of_table().map(|view| view.state)
    }

    pub fn frontends(&self) -> impl Iterator<Item = &'a FrontendView> + use<'a> {
        self.of_table().into_iter().flat_map(|view| &view.frontends)
    }

    pub fn ports(&self) -> impl Iterator<Item = &'a PortView> + use<'a> {
        self.of_table().into_iter().flat_map(|view| view.ports.iter())
    }

    fn of_table(&self) -> Option<&'a ServiceView> {
        self.note(Looks::Table);
        self.view
    }
}
