//! This host's state: kernel files, netlink, sockets. A thread of its own reads them.
//!
//! Invariant: nothing is changed, and no diagnosis waits longer than [`HOST_TIMEOUT`]. Whatever the sandbox hides from
//! the daemon is reported as unreadable, and never counts as "none".

mod files;
mod listeners;
mod manifests;
mod routes;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use holdfast_core::keys::{Source, Transport};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::evidence::{Host, Listener, Lookup, ReversePath, Route, Rule};
use nix::ifaddrs::getifaddrs;
use tokio::time::{Instant, timeout_at};

use self::manifests::ManifestQuery;
use super::probes::{self, ProbeTarget};
use crate::diagnose::limits::HOST_TIMEOUT;
use holdfast_agent::proxies;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostQuery {
    /// Node ports and the health port.
    ports: BTreeSet<(Transport, u16)>,
    health: Option<u16>,
    /// Addresses of this host at which the configuration has backends: a wrong port shows beside the right one.
    hosts: BTreeSet<IpAddr>,
    frontends: BTreeSet<(SocketAddr, Transport)>,
    backends: Vec<IpAddr>,
    /// The Service and the folder of manifests that it comes from.
    manifests: Option<ManifestQuery>,
}

impl HostQuery {
    pub(super) fn from_views(views: &[Arc<ServiceView>], backends: &[ProbeTarget]) -> Self {
        let mut wanted = Self::default();
        for frontend in views.iter().flat_map(|view| view.frontends.iter()) {
            let Some(transport) = frontend.protocol.transport() else { continue };
            let address = SocketAddr::new(frontend.address, frontend.port.get());
            wanted.frontends.insert((address, transport));
            if frontend.kind == FrontendType::NodePort {
                wanted.ports.insert((transport, frontend.port.get()));
            }
        }
        let facts = views.iter().filter_map(|view| view.facts.as_deref());
        wanted.health = facts.filter_map(|facts| facts.health_check_node_port).next().map(u16::from);
        wanted.ports.extend(wanted.health.map(|port| (Transport::Tcp, port)));
        if views.iter().any(|view| view.key.source == Source::Config) {
            wanted.hosts = backends.iter().filter(|it| it.is_local()).map(ProbeTarget::address).collect();
        }
        let addresses: BTreeSet<IpAddr> = backends.iter().map(ProbeTarget::address).collect();
        wanted.backends = addresses.into_iter().collect();
        wanted
    }

    /// Reads the folder of manifests as well, if the service comes from there.
    pub(super) fn with_manifests(self, folder: Option<&Path>, views: &[Arc<ServiceView>]) -> Self {
        let view = views.iter().find(|view| view.key.source == Source::Manifests);
        let manifests = view.zip(folder).map(|(view, folder)| ManifestQuery::new(folder, view));
        Self { manifests, ..self }
    }
}

/// Reads this host's state, up to the deadline.
pub(super) async fn gather(wanted: HostQuery, deadline: Instant) -> Host {
    let until = deadline.min(Instant::now() + HOST_TIMEOUT);
    let health = wanted.health;
    let reading = tokio::task::spawn_blocking(move || read_host(Path::new("/"), &wanted));
    let mut host = match timeout_at(until, reading).await {
        Ok(Ok(host)) => host,
        Ok(Err(_)) => fail_all("reading this host failed"),
        Err(_) => fail_all("reading this host took too long"),
    };
    host.health = match health {
        Some(port) => probes::query_health(port, host.listeners.answer(), until).await,
        None => Lookup::Skipped("the service has no health port"),
    };
    host
}

fn fail_all(why: &str) -> Host {
    fn fail<T>(why: &str) -> Lookup<T> {
        Lookup::Failed(why.into())
    }
    Host {
        listeners: fail(why),
        port_range: fail(why),
        reserved: fail(why),
        forwards: fail(why),
        forwards6: fail(why),
        reverse_path: fail(why),
        conntrack: fail(why),
        resolver: fail(why),
        routes: fail(why),
        rules: fail(why),
        host_port_rules: fail(why),
        addresses: fail(why),
        health: fail(why),
        manifests: fail(why),
    }
}

fn read_host(root: &Path, wanted: &HostQuery) -> Host {
    let routes = to_lookup(routes::find_routes(&wanted.backends));
    Host {
        listeners: list_listeners(root, wanted),
        port_range: files::read_port_range(root),
        reserved: files::read_reserved_ports(root),
        forwards: files::read_forwarding(root, "ipv4/ip_forward"),
        forwards6: files::read_forwarding(root, "ipv6/conf/all/forwarding"),
        reverse_path: read_reverse_paths(root, &routes),
        conntrack: files::read_conntrack(root),
        resolver: files::read_resolver(root),
        routes,
        rules: to_lookup(proxies::find_rules(&wanted.frontends)).map(to_rules),
        host_port_rules: to_lookup(proxies::host_ports()).map(|ports| ports.into_iter().collect()),
        addresses: to_lookup(host_addresses()),
        health: Lookup::default(),
        manifests: manifests::read_workload(wanted.manifests.as_ref()),
    }
}

fn to_lookup<T>(result: io::Result<T>) -> Lookup<T> {
    result.map_or_else(|error| Lookup::Failed(error.to_string().into()), Lookup::Answered)
}

fn list_listeners(root: &Path, wanted: &HostQuery) -> Lookup<Vec<Listener>> {
    if wanted.ports.is_empty() && wanted.hosts.is_empty() {
        return Lookup::Skipped("the service has neither node ports nor a health port");
    }
    to_lookup(listeners::find_listeners(root, &wanted.ports, &wanted.hosts))
}

fn read_reverse_paths(root: &Path, routes: &Lookup<Vec<Route>>) -> Lookup<Vec<ReversePath>> {
    routes.as_ref().map(|routes| {
        let devices: BTreeSet<&str> = routes.iter().filter_map(|route| route.device.as_deref()).collect();
        devices.into_iter().filter_map(|device| files::read_reverse_path(root, device)).collect()
    })
}

fn to_rules(found: Vec<proxies::RuleMatch>) -> Vec<Rule> {
    let rule = |it: proxies::RuleMatch| Rule {
        proxy: "kube-proxy".to_owned(),
        place: it.location,
        frontend: it.frontend,
        backends: it.backends,
    };
    found.into_iter().map(rule).collect()
}

/// Every address of this host, loopback included.
pub(super) fn host_addresses() -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter_map(|it| it.address);
    let ip = all.filter_map(|address| {
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::from(it.ip())))
    });
    Ok(ip.collect())
}
