//! All checks, in the order in which they are shown.
//!
//! Invariant: [`ALL`] lists every check once; each says what it looked at and comes to exactly one judgement, whatever
//! the material is, and none sends a request.

mod announced;
mod balancer;
mod checked;
mod denied;
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
use super::looks::Looks;

words! {
    /// What a check is about.
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
    Address, Checks, Endpoints, Events, Flows, History, Host, Kernel, Leases, Namespace, Nodes, Pods,
    Policies, Probes, Service, Slices, Table, Watch,
};

/// All checks, in the order in which they are shown.
pub(super) static ALL: &[Check] = &[
    check("self.ready", Group::Own, &[Table], own::ready),
    check("self.watch", Group::Own, &[Watch], own::watch),
    check("self.control", Group::Own, &[Watch], own::control),
    check("self.hooks", Group::Own, &[Table, Kernel, Probes], own::hooks),
    check("self.maps", Group::Own, &[Table, Kernel], own::maps),
    check("self.node", Group::Own, &[Watch, Table, Service], own::node),
    check("svc.exists", Group::Service, &[Watch, Table, History, Service], service::exists),
    check("svc.understood", Group::Service, &[Watch, Table], service::understood),
    check("svc.cache-lag", Group::Service, &[Watch, Table, Service], service::cache_lag),
    check("svc.handled", Group::Service, &[Watch, Table, Service], service::handled),
    check("svc.deleting", Group::Service, &[Service], service::deleting),
    check("svc.ports", Group::Service, &[Watch, Table], service::ports),
    check("svc.families", Group::Service, &[Watch], service::families),
    check("svc.selector", Group::Service, &[Watch, Table, Service], service::selector),
    check("frontend.collision", Group::Service, &[Watch, Table], service::collision),
    check("frontend.clusterip", Group::Service, &[Address], service::cluster_ip),
    check("svc.shared-backends", Group::Service, &[Watch, Table, Host], service::shared_backends),
    check("svc.namespace", Group::Service, &[Namespace], service::namespace),
    check("pods.match", Group::Pods, &[Table, Service, Pods], pods::matched),
    check("pods.selector-typo", Group::Pods, &[Table, Service, Pods], selector::typo),
    check("pods.scaled-to-zero", Group::Pods, &[Table], pods::scaled_to_zero),
    check("pods.pending", Group::Pods, &[Service, Pods, Events], pods::pending),
    check("pods.unready", Group::Pods, &[Service, Pods, Nodes, Events], pods::unready),
    check("pods.named-port", Group::Pods, &[Service, Pods], pods::named_port),
    check("pods.numeric-port", Group::Pods, &[Service, Pods], pods::numeric_port),
    check("pods.terminal", Group::Pods, &[Watch, Table, Service, Pods, Events], pods::terminal),
    check("slices.exist", Group::Endpoints, &[Watch, Table, Service, Pods], endpoints::exist),
    check("slices.counts", Group::Endpoints, &[Watch, Table, Service, Pods], endpoints::counts),
    check("slices.port-name", Group::Endpoints, &[Watch, Table, Service], endpoints::port_name),
    check("slices.family", Group::Endpoints, &[Watch, Table, Service], endpoints::family),
    check("slices.stale", Group::Endpoints, &[Watch, Table, Service, Slices, Pods, Nodes], stale::stale),
    check("slices.missing", Group::Endpoints, &[Watch, Table, Service, Slices, Pods], stale::absent),
    check("slices.lag", Group::Endpoints, &[Watch, Slices], endpoints::lag),
    check("slices.duplicates", Group::Endpoints, &[Watch, Table, Service], endpoints::duplicates),
    check("slices.manager", Group::Endpoints, &[Slices], endpoints::manager),
    check("slices.hidden", Group::Endpoints, &[Watch, Table, Service], endpoints::hidden),
    check("endpoints.truncated", Group::Endpoints, &[Endpoints], endpoints::truncated),
    check("endpoints.handmade", Group::Endpoints, &[Service, Endpoints], endpoints::handmade),
    check("endpoints.never-ready", Group::Endpoints, &[Table, History], lasting::never_ready),
    check("endpoints.flapping", Group::Endpoints, &[History], lasting::flapping),
    check("endpoints.stuck-terminating", Group::Endpoints, &[Table], lasting::stuck_terminating),
    check("controller.alive", Group::Endpoints, &[Leases], endpoints::controller),
    check("nodes.backends", Group::Endpoints, &[Watch, Table, Service, Nodes], endpoints::nodes),
    check("policy.internal-local", Group::Policy, &[Watch, Table, Service], policy::internal_local),
    check("policy.external-local", Group::Policy, &[Watch, Table, Service, Nodes], policy::external_local),
    check("policy.local-draining", Group::Policy, &[Table], policy::local_draining),
    check("policy.topology", Group::Policy, &[Watch, Table, Service], policy::topology),
    check("policy.affinity", Group::Policy, &[Watch], policy::affinity),
    check("policy.source-ranges", Group::Policy, &[Watch], policy::source_ranges),
    check("policy.publish-not-ready", Group::Policy, &[Service], policy::publish_not_ready),
    check("lb.state", Group::Balancer, &[Watch, Table, Leases, Events], balancer::state),
    check("lb.no-controller", Group::Balancer, &[Watch, Table, Leases, Events], balancer::no_controller),
    check("lb.class-unserved", Group::Balancer, &[Watch, Table, Leases, Events], balancer::class_unserved),
    check("lb.failing", Group::Balancer, &[Watch, Table, Leases, Events], balancer::failing),
    check("lb.stuck-ensuring", Group::Balancer, &[Watch, Table, Leases, Events], balancer::stuck_ensuring),
    check(
        "lb.ensured-no-ingress",
        Group::Balancer,
        &[Watch, Table, Leases, Events],
        balancer::ensured_no_ingress,
    ),
    check("lb.no-nodes", Group::Balancer, &[Watch, Table, Leases, Events], balancer::no_nodes),
    check("lb.degraded", Group::Balancer, &[Watch, Table, Leases, Events], balancer::degraded),
    check("lb.pending", Group::Balancer, &[Watch, Table, Leases, Events], balancer::pending),
    check("lb.flapping", Group::Balancer, &[Watch, Table, Leases, Events], balancer::flapping),
    check("lb.delete-stuck", Group::Balancer, &[Watch, Table, Leases, Events], balancer::delete_stuck),
    check("lb.orphan-risk", Group::Balancer, &[Watch, Table, Leases, Events], balancer::orphan_risk),
    check(
        "lb.controller-alive",
        Group::Balancer,
        &[Watch, Table, Service, Leases, Events],
        balancer::controller_alive,
    ),
    check("lb.owner", Group::Balancer, &[Watch, Service], balancer::owner),
    check("lb.ipmode", Group::Balancer, &[Watch, Service], balancer::ip_mode),
    check("lb.vip-local", Group::Balancer, &[Table, Host], balancer::vip_local),
    check("lb.health-port", Group::Balancer, &[Watch, Table, Host, Service], balancer::health_port),
    check("lb.node-eligible", Group::Balancer, &[Watch, Table, Service, Nodes], balancer::node_eligible),
    check("lb.nodeports", Group::Balancer, &[Watch, Table, Service], balancer::node_ports),
    check("host.filters", Group::Host, &[Table, Host], filters::filters),
    check("nodeport.addresses", Group::Host, &[Table], host::node_port_addresses),
    check("host.listener", Group::Host, &[Table, Host], host::listener),
    check("host.ephemeral", Group::Host, &[Table, Host], host::ephemeral),
    check("host.port-pods", Group::Host, &[Table, Host, Pods], host::port_pods),
    check("host.sysctls", Group::Host, &[Table, Host], host::sysctls),
    check("host.conntrack", Group::Host, &[Host], host::conntrack),
    check("host.routes", Group::Host, &[Host], host::routes),
    check("host.devices", Group::Host, &[Kernel, Host], devices::devices),
    check("host.announced", Group::Host, &[Table, Host], announced::announced),
    check("view.api-cache", Group::Views, &[Watch, Slices], views::api_cache),
    check("view.cache-table", Group::Views, &[Watch, Table], views::cache_table),
    check("view.table-kernel", Group::Views, &[Kernel], views::table_kernel),
    check("view.drift", Group::Views, &[Table], views::drift),
    check("hold.state", Group::Views, &[Table], views::hold),
    check("verdict", Group::Views, &[Watch, Table], views::verdict),
    check("lookup", Group::Views, &[Kernel], paths::lookup),
    check("flows.stale", Group::Views, &[Table, Flows], paths::stale),
    check("flows.refused", Group::Views, &[Table, Flows], paths::refused),
    check("flows.room", Group::Views, &[Watch, Table, Kernel], room::room),
    check("clients.refusals", Group::Views, &[Watch, Table, Kernel], denied::refusals),
    check("foreign.kube-proxy", Group::Foreign, &[Table, Host], foreign::kube_proxy),
    check("foreign.cilium", Group::Foreign, &[Table, Host], foreign::cilium),
    check("foreign.calico", Group::Foreign, &[Host], foreign::calico),
    check("foreign.kube-router", Group::Foreign, &[Host], foreign::kube_router),
    check("foreign.antrea", Group::Foreign, &[Host], foreign::antrea),
    check("foreign.leftover", Group::Foreign, &[Table, Host], foreign::leftover),
    check("probe.frontend", Group::Probes, &[Watch, Table, Kernel, Probes], probes::frontend),
    check("probe.backend", Group::Probes, &[Watch, Table, Probes, Policies], probes::backend),
    check("probe.checks", Group::Probes, &[Checks], checked::checks),
    check("probe.http", Group::Probes, &[Probes], http::http),
    check("probe.udp", Group::Probes, &[Table, Probes, Checks, Policies], names::servers),
    check("dns.service", Group::Dns, &[Table], dns::service),
    check("dns.name", Group::Dns, &[Watch, Table, Probes], names::own),
    check("dns.external-name", Group::Dns, &[Watch, Table, Service], dns::external_name),
    check("dns.node", Group::Dns, &[Host], dns::node),
    check("events.readable", Group::History, &[Events], events::readable),
    check("events.list", Group::History, &[Endpoints, Events], events::list),
    check("history.recent", Group::History, &[History], events::recent),
    check("history.correlate", Group::History, &[History, Events], events::correlate),
];
