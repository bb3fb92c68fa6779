//! All checks, in display order.
//!
//! Invariant: [`ALL`] lists every check once. Each check names its sources and returns exactly one judgement, whatever
//! the evidence. None sends a request.

mod announcements;
mod backend_failures;
mod balancer;
mod capacity;
mod collision;
mod daemon;
mod devices;
mod dns;
mod endpoints;
mod events;
mod filters;
mod foreign;
mod health_checks;
mod host;
mod http;
mod name_servers;
mod paths;
mod pods;
mod policy;
mod probes;
mod refusals;
mod selector;
mod service;
mod stale_endpoints;
mod stuck_endpoints;
#[cfg(test)]
mod tests;
mod views;

pub(super) use backend_failures::describe_idle_failures;
pub(super) use endpoints::serves_only_this_host;
pub(super) use views::worst_frontend;

use holdfast_core::words;

use super::case::Case;
use super::evidence_source::EvidenceSource;
use super::finding::Judgement;

words! {
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

#[derive(Debug)]
pub struct Check {
    pub id: &'static str,
    pub group: Group,
    pub sources: &'static [EvidenceSource],
    pub judge: fn(&Case<'_>) -> Judgement,
}

const fn new_check(
    id: &'static str,
    group: Group,
    looks: &'static [EvidenceSource],
    judge: fn(&Case<'_>) -> Judgement,
) -> Check {
    Check { id, group, sources: looks, judge }
}

use EvidenceSource::{
    Address, Checks, Endpoints, Events, Flows, History, Host, Kernel, Leases, Manifests, Namespace, Nodes,
    Pods, Policies, Probes, Service, Slices, Table, Watch,
};

pub(super) static ALL: &[Check] = &[
    new_check("self.ready", Group::Own, &[Table], daemon::check_ready),
    new_check("self.watch", Group::Own, &[Watch], daemon::check_watch),
    new_check("self.control", Group::Own, &[Watch], daemon::check_control),
    new_check("self.hooks", Group::Own, &[Table, Kernel, Probes], daemon::check_hooks),
    new_check("self.maps", Group::Own, &[Table, Kernel], daemon::check_maps),
    new_check("self.node", Group::Own, &[Watch, Table, Service], daemon::check_node),
    new_check("svc.exists", Group::Service, &[Watch, Table, History, Service], service::check_exists),
    new_check("svc.understood", Group::Service, &[Watch, Table], service::check_understood),
    new_check("svc.cache-lag", Group::Service, &[Watch, Table, Service], service::check_cache_lag),
    new_check("svc.handled", Group::Service, &[Watch, Table, Service], service::check_handled),
    new_check("svc.deleting", Group::Service, &[Service], service::check_deleting),
    new_check("svc.ports", Group::Service, &[Watch, Table], service::check_ports),
    new_check("svc.families", Group::Service, &[Watch], service::check_families),
    new_check("svc.selector", Group::Service, &[Watch, Table, Manifests, Service], service::check_selector),
    new_check("frontend.collision", Group::Service, &[Watch, Table], collision::check_collision),
    new_check("frontend.clusterip", Group::Service, &[Address], service::check_cluster_ip),
    new_check("svc.shared-backends", Group::Service, &[Watch, Table, Host], service::check_shared_backends),
    new_check("svc.namespace", Group::Service, &[Namespace], service::check_namespace),
    new_check("pods.match", Group::Pods, &[Table, Service, Pods], pods::check_match),
    new_check(
        "pods.selector-typo",
        Group::Pods,
        &[Watch, Table, Manifests, Service, Pods],
        selector::check_typo,
    ),
    new_check("pods.scaled-to-zero", Group::Pods, &[Table], pods::check_scaled_to_zero),
    new_check("pods.pending", Group::Pods, &[Service, Pods, Events], pods::check_pending),
    new_check("pods.unready", Group::Pods, &[Service, Pods, Nodes, Events], pods::check_unready),
    new_check("pods.named-port", Group::Pods, &[Service, Pods], pods::check_named_port),
    new_check("pods.numeric-port", Group::Pods, &[Service, Pods], pods::check_numeric_port),
    new_check("pods.terminal", Group::Pods, &[Watch, Table, Service, Pods, Events], pods::check_terminal),
    new_check(
        "slices.exist",
        Group::Endpoints,
        &[Watch, Table, Manifests, Service, Pods],
        endpoints::check_exist,
    ),
    new_check(
        "slices.counts",
        Group::Endpoints,
        &[Watch, Table, Probes, Service, Pods],
        endpoints::check_counts,
    ),
    new_check("slices.port-name", Group::Endpoints, &[Watch, Table, Service], endpoints::check_port_name),
    new_check("slices.family", Group::Endpoints, &[Watch, Table, Service], endpoints::check_family),
    new_check(
        "slices.stale",
        Group::Endpoints,
        &[Watch, Table, Service, Slices, Pods, Nodes],
        stale_endpoints::check_stale,
    ),
    new_check(
        "slices.missing",
        Group::Endpoints,
        &[Watch, Table, Service, Slices, Pods],
        stale_endpoints::check_missing,
    ),
    new_check("slices.lag", Group::Endpoints, &[Watch, Slices], endpoints::check_lag),
    new_check("slices.duplicates", Group::Endpoints, &[Watch, Table, Service], endpoints::check_duplicates),
    new_check("endpoints.loopback", Group::Endpoints, &[Watch, Table, Service], endpoints::check_loopback),
    new_check("slices.manager", Group::Endpoints, &[Slices], endpoints::check_manager),
    new_check("slices.hidden", Group::Endpoints, &[Watch, Table, Service], endpoints::check_hidden),
    new_check("endpoints.truncated", Group::Endpoints, &[Endpoints], endpoints::check_truncated),
    new_check("endpoints.handmade", Group::Endpoints, &[Service, Endpoints], endpoints::check_handmade),
    new_check(
        "endpoints.never-ready",
        Group::Endpoints,
        &[Table, History],
        stuck_endpoints::check_never_ready,
    ),
    new_check("endpoints.flapping", Group::Endpoints, &[History], stuck_endpoints::check_flapping),
    new_check(
        "endpoints.stuck-terminating",
        Group::Endpoints,
        &[Table],
        stuck_endpoints::check_stuck_terminating,
    ),
    new_check("controller.alive", Group::Endpoints, &[Leases], endpoints::check_controller),
    new_check("nodes.backends", Group::Endpoints, &[Watch, Table, Service, Nodes], endpoints::check_nodes),
    new_check("policy.internal-local", Group::Policy, &[Watch, Table, Service], policy::check_internal_local),
    new_check(
        "policy.external-local",
        Group::Policy,
        &[Watch, Table, Service, Nodes],
        policy::check_external_local,
    ),
    new_check("policy.local-draining", Group::Policy, &[Table], policy::check_local_draining),
    new_check("policy.topology", Group::Policy, &[Watch, Table, Service], policy::check_topology),
    new_check("policy.affinity", Group::Policy, &[Watch], policy::check_affinity),
    new_check("policy.source-ranges", Group::Policy, &[Watch, Table], policy::check_source_ranges),
    new_check("policy.publish-not-ready", Group::Policy, &[Service], policy::check_publish_not_ready),
    new_check("lb.state", Group::Balancer, &[Watch, Table, Leases, Events], balancer::check_state),
    new_check(
        "lb.no-controller",
        Group::Balancer,
        &[Watch, Table, Leases, Events],
        balancer::check_no_controller,
    ),
    new_check(
        "lb.class-unserved",
        Group::Balancer,
        &[Watch, Table, Leases, Events],
        balancer::check_class_unserved,
    ),
    new_check("lb.failing", Group::Balancer, &[Watch, Table, Leases, Events], balancer::check_failing),
    new_check(
        "lb.stuck-ensuring",
        Group::Balancer,
        &[Watch, Table, Leases, Events],
        balancer::check_stuck_ensuring,
    ),
    new_check(
        "lb.ensured-no-ingress",
        Group::Balancer,
        &[Watch, Table, Leases, Events],
        balancer::check_ensured_no_ingress,
    ),
    new_check("lb.no-nodes", Group::Balancer, &[Watch, Table, Leases, Events], balancer::check_no_nodes),
    new_check("lb.degraded", Group::Balancer, &[Watch, Table, Leases, Events], balancer::check_degraded),
    new_check("lb.pending", Group::Balancer, &[Watch, Table, Leases, Events], balancer::check_pending),
    new_check("lb.flapping", Group::Balancer, &[Watch, Table, Leases, Events], balancer::check_flapping),
    new_check(
        "lb.delete-stuck",
        Group::Balancer,
        &[Watch, Table, Leases, Events],
        balancer::check_delete_stuck,
    ),
    new_check(
        "lb.orphan-risk",
        Group::Balancer,
        &[Watch, Table, Leases, Events],
        balancer::check_orphan_risk,
    ),
    new_check(
        "lb.controller-alive",
        Group::Balancer,
        &[Watch, Table, Service, Leases, Events],
        balancer::check_controller_alive,
    ),
    new_check("lb.owner", Group::Balancer, &[Watch, Service], balancer::check_owner),
    new_check("lb.ipmode", Group::Balancer, &[Watch, Service], balancer::check_ip_mode),
    new_check("lb.vip-local", Group::Balancer, &[Table, Host], balancer::check_vip_local),
    new_check("lb.health-port", Group::Balancer, &[Watch, Table, Host, Service], balancer::check_health_port),
    new_check(
        "lb.node-eligible",
        Group::Balancer,
        &[Watch, Table, Service, Nodes],
        balancer::check_node_eligible,
    ),
    new_check("lb.nodeports", Group::Balancer, &[Watch, Table, Service], balancer::check_node_ports),
    new_check("host.filters", Group::Host, &[Table, Host], filters::check_filters),
    new_check("nodeport.addresses", Group::Host, &[Table], host::check_node_port_addresses),
    new_check("host.listener", Group::Host, &[Table, Host], host::check_listener),
    new_check("host.ephemeral", Group::Host, &[Table, Host], host::check_ephemeral),
    new_check("host.port-pods", Group::Host, &[Table, Host, Pods], host::check_port_pods),
    new_check("host.sysctls", Group::Host, &[Table, Host], host::check_sysctls),
    new_check("host.conntrack", Group::Host, &[Host], host::check_conntrack),
    new_check("host.routes", Group::Host, &[Host], host::check_routes),
    new_check("host.devices", Group::Host, &[Kernel, Host], devices::check_devices),
    new_check("host.announced", Group::Host, &[Table, Host], announcements::check_announcements),
    new_check("view.api-cache", Group::Views, &[Watch, Slices], views::check_api_cache),
    new_check("view.cache-table", Group::Views, &[Watch, Table], views::check_cache_table),
    new_check("view.table-kernel", Group::Views, &[Kernel], views::check_table_kernel),
    new_check("view.drift", Group::Views, &[Table], views::check_drift),
    new_check("hold.state", Group::Views, &[Table], views::check_hold),
    new_check("verdict", Group::Views, &[Watch, Table], views::check_verdict),
    new_check("lookup", Group::Views, &[Watch, Kernel], paths::check_lookup),
    new_check("flows.stale", Group::Views, &[Table, Flows], paths::check_stale),
    new_check("flows.refused", Group::Views, &[Table, Flows], paths::check_refused),
    new_check("flows.room", Group::Views, &[Watch, Table, Kernel], capacity::check_capacity),
    new_check("clients.refusals", Group::Views, &[Watch, Table, Kernel], refusals::check_refusals),
    new_check("foreign.kube-proxy", Group::Foreign, &[Table, Host], foreign::check_kube_proxy),
    new_check("foreign.cilium", Group::Foreign, &[Table, Host], foreign::check_cilium),
    new_check("foreign.calico", Group::Foreign, &[Host], foreign::check_calico),
    new_check("foreign.kube-router", Group::Foreign, &[Host], foreign::check_kube_router),
    new_check("foreign.antrea", Group::Foreign, &[Host], foreign::check_antrea),
    new_check("foreign.leftover", Group::Foreign, &[Table, Host], foreign::check_leftover),
    new_check("probe.frontend", Group::Probes, &[Watch, Table, Kernel, Probes], probes::check_frontend),
    new_check(
        "probe.backend",
        Group::Probes,
        &[Watch, Table, Kernel, Host, Probes, Checks, Service, Policies],
        probes::check_backend,
    ),
    new_check("probe.clients", Group::Probes, &[Watch, Table, Kernel, Probes], probes::check_client_failures),
    new_check(
        "probe.checks",
        Group::Probes,
        &[Watch, Table, Host, Probes, Checks],
        health_checks::check_health_checks,
    ),
    new_check("probe.http", Group::Probes, &[Probes], http::check_http),
    new_check("probe.udp", Group::Probes, &[Table, Probes, Checks, Policies], name_servers::check_servers),
    new_check("dns.service", Group::Dns, &[Table], dns::check_service),
    new_check("dns.name", Group::Dns, &[Watch, Table, Probes], name_servers::check_service_name),
    new_check("dns.external-name", Group::Dns, &[Watch, Table, Service], dns::check_external_name),
    new_check("dns.node", Group::Dns, &[Host], dns::check_node),
    new_check("events.readable", Group::History, &[Events], events::check_readable),
    new_check("events.list", Group::History, &[Endpoints, Events], events::check_list),
    new_check("history.recent", Group::History, &[History], events::check_recent),
    new_check("history.correlate", Group::History, &[History, Events], events::check_correlate),
];
