//! Everything that is looked at, in order.
//!
//! Invariant: [`ALL`] lists every check once; each says what it looked at and comes to exactly one judgement, whatever
//! the material is, and none sends a request.

mod balancer;
mod devices;
mod dns;
mod endpoints;
mod events;
mod filters;
mod foreign;
mod host;
mod http;
mod lasting;
mod names;
mod own;
mod paths;
mod pods;
mod policy;
mod probes;
mod room;
mod selector;
mod service;
mod stale;
#[cfg(test)]
mod tests;
mod views;

pub(super) use views::worst;

use holdfast_core::words;

use super::case::Case;
use super::finding::Judgement;

words! {
    /// What checks are about.
    pub enum Group {
        Own = "self",
        Service = "service",
        Pods = "pods",
        Endpoints = "endpoints",
        Policy = "policy",
        Balancer = "load-balancer",
        Host = "host",
        Views = "views",
        Foreign = "foreign",
        Probes = "probes",
        Dns = "dns",
        History = "history",
    }
}

words! {
    /// Where a check looked.
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

/// One thing that is looked at, and how it is judged.
#[derive(Debug)]
pub struct Check {
    pub id: &'static str,
    pub group: Group,
    pub looks: &'static [Looks],
    pub judge: fn(&Case<'_>) -> Judgement,
}

const fn check(
    id: &'static str,
    group: Group,
    looks: &'static [Looks],
    judge: fn(&Case<'_>) -> Judgement,
) -> Check {
    Check { id, group, looks, judge }
}

use Looks::{
    Address, Endpoints, Events, Flows, History, Host, Kernel, Leases, Namespace, Nodes, Pods, Policies,
    Probes, Service, Slices, Table, Watch,
};

/// All of them, in the order in which they are shown.
pub(super) static ALL: &[Check] = &[
    check("self.ready", Group::Own, &[Table], own::ready),
    check("self.watch", Group::Own, &[Watch], own::watch),
    check("self.control", Group::Own, &[Watch], own::control),
    check("self.hooks", Group::Own, &[Kernel, Probes], own::hooks),
    check("self.maps", Group::Own, &[Table, Kernel], own::maps),
    check("self.node", Group::Own, &[Watch], own::node),
    check("svc.exists", Group::Service, &[Watch, Service, History], service::exists),
    check("svc.understood", Group::Service, &[Watch], service::understood),
    check("svc.cache-lag", Group::Service, &[Watch, Service], service::cache_lag),
    check("svc.handled", Group::Service, &[Watch], service::handled),
    check("svc.deleting", Group::Service, &[Service], service::deleting),
    check("svc.ports", Group::Service, &[Watch], service::ports),
    check("svc.families", Group::Service, &[Watch], service::families),
    check("svc.selector", Group::Service, &[Service, Watch], service::selector),
    check("frontend.collision", Group::Service, &[Table], service::collision),
    check("frontend.clusterip", Group::Service, &[Address], service::cluster_ip),
    check("svc.shared-backends", Group::Service, &[Table], service::shared_backends),
    check("svc.namespace", Group::Service, &[Namespace], service::namespace),
    check("pods.match", Group::Pods, &[Pods], pods::matched),
    check("pods.selector-typo", Group::Pods, &[Pods], selector::typo),
    check("pods.scaled-to-zero", Group::Pods, &[Pods, Table], pods::scaled_to_zero),
    check("pods.pending", Group::Pods, &[Pods], pods::pending),
    check("pods.unready", Group::Pods, &[Pods, Events], pods::unready),
    check("pods.named-port", Group::Pods, &[Pods, Service], pods::named_port),
    check("pods.numeric-port", Group::Pods, &[Pods, Service], pods::numeric_port),
    check("pods.terminal", Group::Pods, &[Pods], pods::terminal),
    check("slices.exist", Group::Endpoints, &[Watch, Pods], endpoints::exist),
    check("slices.counts", Group::Endpoints, &[Watch], endpoints::counts),
    check("slices.port-name", Group::Endpoints, &[Watch], endpoints::port_name),
    check("slices.family", Group::Endpoints, &[Watch], endpoints::family),
    check("slices.stale", Group::Endpoints, &[Slices, Watch, Pods], stale::stale),
    check("slices.missing", Group::Endpoints, &[Slices, Watch, Pods], stale::absent),
    check("slices.lag", Group::Endpoints, &[Slices, Watch], endpoints::lag),
    check("slices.duplicates", Group::Endpoints, &[Watch], endpoints::duplicates),
    check("slices.manager", Group::Endpoints, &[Slices], endpoints::manager),
    check("slices.hidden", Group::Endpoints, &[Watch], endpoints::hidden),
    check("endpoints.truncated", Group::Endpoints, &[Endpoints], endpoints::truncated),
    check("endpoints.handmade", Group::Endpoints, &[Endpoints], endpoints::handmade),
    check("endpoints.never-ready", Group::Endpoints, &[Watch, History], lasting::never_ready),
    check("endpoints.flapping", Group::Endpoints, &[History], lasting::flapping),
    check("endpoints.stuck-terminating", Group::Endpoints, &[Watch], lasting::stuck_terminating),
    check("controller.alive", Group::Endpoints, &[Leases], endpoints::controller),
    check("nodes.backends", Group::Endpoints, &[Nodes, Watch], endpoints::nodes),
    check("policy.internal-local", Group::Policy, &[Table], policy::internal_local),
    check("policy.external-local", Group::Policy, &[Table, Nodes], policy::external_local),
    check("policy.local-draining", Group::Policy, &[Table], policy::local_draining),
    check("policy.topology", Group::Policy, &[Table], policy::topology),
    check("policy.affinity", Group::Policy, &[Table], policy::affinity),
    check("policy.source-ranges", Group::Policy, &[Table], policy::source_ranges),
    check("policy.publish-not-ready", Group::Policy, &[Service], policy::publish_not_ready),
    check("lb.state", Group::Balancer, &[Service, Events], balancer::state),
    check("lb.no-controller", Group::Balancer, &[Service, Events, Leases], balancer::no_controller),
    check("lb.class-unserved", Group::Balancer, &[Service, Events], balancer::class_unserved),
    check("lb.failing", Group::Balancer, &[Service, Events], balancer::failing),
    check("lb.stuck-ensuring", Group::Balancer, &[Service, Events], balancer::stuck_ensuring),
    check("lb.ensured-no-ingress", Group::Balancer, &[Service, Events], balancer::ensured_no_ingress),
    check("lb.no-nodes", Group::Balancer, &[Service, Events], balancer::no_nodes),
    check("lb.degraded", Group::Balancer, &[Service, Events], balancer::degraded),
    check("lb.pending", Group::Balancer, &[Service], balancer::pending),
    check("lb.flapping", Group::Balancer, &[History], balancer::flapping),
    check("lb.delete-stuck", Group::Balancer, &[Service, Events], balancer::delete_stuck),
    check("lb.orphan-risk", Group::Balancer, &[Service, Events], balancer::orphan_risk),
    check("lb.controller-alive", Group::Balancer, &[Leases], balancer::controller_alive),
    check("lb.owner", Group::Balancer, &[Service], balancer::owner),
    check("lb.ipmode", Group::Balancer, &[Watch, Service], balancer::ip_mode),
    check("lb.vip-local", Group::Balancer, &[Host], balancer::vip_local),
    check("lb.health-port", Group::Balancer, &[Watch, Host], balancer::health_port),
    check("lb.node-eligible", Group::Balancer, &[Nodes], balancer::node_eligible),
    check("lb.nodeports", Group::Balancer, &[Service], balancer::node_ports),
    check("host.filters", Group::Host, &[Host], filters::filters),
    check("nodeport.addresses", Group::Host, &[Table], host::node_port_addresses),
    check("host.listener", Group::Host, &[Host], host::listener),
    check("host.ephemeral", Group::Host, &[Host], host::ephemeral),
    check("host.port-pods", Group::Host, &[Pods, Host], host::port_pods),
    check("host.sysctls", Group::Host, &[Host], host::sysctls),
    check("host.conntrack", Group::Host, &[Host], host::conntrack),
    check("host.routes", Group::Host, &[Host], host::routes),
    check("host.devices", Group::Host, &[Host, Kernel], devices::devices),
    check("view.api-cache", Group::Views, &[Slices, Watch], views::api_cache),
    check("view.cache-table", Group::Views, &[Watch, Table], views::cache_table),
    check("view.table-kernel", Group::Views, &[Table, Kernel], views::table_kernel),
    check("view.drift", Group::Views, &[Kernel], views::drift),
    check("hold.state", Group::Views, &[Table], views::hold),
    check("verdict", Group::Views, &[Table], views::verdict),
    check("lookup", Group::Views, &[Kernel], paths::lookup),
    check("flows.stale", Group::Views, &[Flows, Table], paths::stale),
    check("flows.refused", Group::Views, &[Flows, Table], paths::refused),
    check("flows.room", Group::Views, &[Kernel, Table], room::room),
    check("foreign.kube-proxy", Group::Foreign, &[Host], foreign::kube_proxy),
    check("foreign.cilium", Group::Foreign, &[Host], foreign::cilium),
    check("foreign.calico", Group::Foreign, &[Host], foreign::calico),
    check("foreign.kube-router", Group::Foreign, &[Host], foreign::kube_router),
    check("foreign.antrea", Group::Foreign, &[Host], foreign::antrea),
    check("foreign.leftover", Group::Foreign, &[Host], foreign::leftover),
    check("probe.frontend", Group::Probes, &[Probes, Table], probes::frontend),
    check("probe.backend", Group::Probes, &[Probes, Nodes, Policies], probes::backend),
    check("probe.http", Group::Probes, &[Probes, Pods, Service], http::http),
    check("probe.udp", Group::Probes, &[Probes, Policies], names::servers),
    check("dns.service", Group::Dns, &[Table], dns::service),
    check("dns.name", Group::Dns, &[Probes, Watch], names::own),
    check("dns.external-name", Group::Dns, &[Service, Table], dns::external_name),
    check("dns.node", Group::Dns, &[Host], dns::node),
    check("events.readable", Group::History, &[Events], events::readable),
    check("events.list", Group::History, &[Events], events::list),
    check("history.recent", Group::History, &[History], events::recent),
    check("history.correlate", Group::History, &[History, Events], events::correlate),
];
