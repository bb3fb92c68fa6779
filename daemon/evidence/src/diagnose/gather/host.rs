//! What this host says: files of the kernel, netlink, sockets. It is looked at on a thread of its own.
//!
//! Invariant: nothing is changed, and no diagnosis waits longer than [`HOST`]. What the sandbox does not let the daemon
//! see is named as unseen, and never taken for "none".

mod files;
mod listeners;
mod routes;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use holdfast_core::keys::Transport;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::material::{Asked, Host, Listener, ReversePath, Route, Rule};
use nix::ifaddrs::getifaddrs;
use tokio::time::{Instant, timeout_at};

use super::probes::{self, Target};
use crate::diagnose::limits::HOST;
use holdfast_agent::proxies;

/// What to look for on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Node ports and the health port.
    ports: BTreeSet<(Transport, u16)>,
    health: Option<u16>,
    frontends: BTreeSet<(SocketAddr, Transport)>,
    backends: Vec<IpAddr>,
}

impl Wanted {
    /// What to look for, for all services of one name.
    pub(super) fn of(views: &[Arc<ServiceView>], backends: &[Target]) -> Self {
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
        let addresses: BTreeSet<IpAddr> = backends.iter().map(Target::address).collect();
        wanted.backends = addresses.into_iter().collect();
        wanted
    }
}

/// Looks at this host, and gives up on what takes too long.
pub(super) async fn gather(wanted: Wanted, deadline: Instant) -> Host {
    let until = deadline.min(Instant::now() + HOST);
    let health = wanted.health;
    let looking = tokio::task::spawn_blocking(move || look(Path::new("/"), &wanted));
    let mut host = match timeout_at(until, looking).await {
        Ok(Ok(host)) => host,
        Ok(Err(_)) => failed("the look at this host broke off"),
        Err(_) => failed("this host did not say it in time"),
    };
    host.health = match health {
        Some(port) => probes::health(port, host.listeners.answer(), until).await,
        None => Asked::Not("the service has no health port"),
    };
    host
}

fn failed(why: &str) -> Host {
    fn failed<T>(why: &str) -> Asked<T> {
        Asked::Failed(why.into())
    }
    Host {
        listeners: failed(why),
        port_range: failed(why),
        reserved: failed(why),
        forwards: failed(why),
        forwards6: failed(why),
        reverse_path: failed(why),
        conntrack: failed(why),
        resolver: failed(why),
        routes: failed(why),
        rules: failed(why),
        host_port_rules: failed(why),
        addresses: failed(why),
        health: failed(why),
    }
}

fn look(root: &Path, wanted: &Wanted) -> Host {
    let routes = asked(routes::to(&wanted.backends));
    Host {
        listeners: listeners(root, wanted),
        port_range: files::port_range(root),
        reserved: files::reserved(root),
        forwards: files::forwards(root, "ipv4/ip_forward"),
        forwards6: files::forwards(root, "ipv6/conf/all/forwarding"),
        reverse_path: reverse_path(root, &routes),
        conntrack: files::conntrack(root),
        resolver: files::resolver(root),
        routes,
        rules: asked(proxies::naming(&wanted.frontends)).map(rules),
        host_port_rules: asked(proxies::host_ports()).map(|ports| ports.into_iter().collect()),
        addresses: asked(addresses()),
        health: Asked::default(),
    }
}

fn asked<T>(result: io::Result<T>) -> Asked<T> {
    result.map_or_else(|error| Asked::Failed(error.to_string().into()), Asked::Answered)
}

fn listeners(root: &Path, wanted: &Wanted) -> Asked<Vec<Listener>> {
    if wanted.ports.is_empty() {
        return Asked::Not("the service has neither node ports nor a health port");
    }
    asked(listeners::at(root, &wanted.ports))
}

fn reverse_path(root: &Path, routes: &Asked<Vec<Route>>) -> Asked<Vec<ReversePath>> {
    routes.as_ref().map(|routes| {
        let devices: BTreeSet<&str> = routes.iter().filter_map(|route| route.device.as_deref()).collect();
        devices.into_iter().filter_map(|device| files::reverse_path(root, device)).collect()
    })
}

fn rules(found: Vec<proxies::Found>) -> Vec<Rule> {
    let rule = |it: proxies::Found| Rule {
        proxy: "kube-proxy".to_owned(),
        place: it.place,
        frontend: it.frontend,
        backends: it.backends,
    };
    found.into_iter().map(rule).collect()
}

/// Every address of this host, loopback included.
pub(super) fn addresses() -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter_map(|it| it.address);
    let ip = all.filter_map(|address| {
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::from(it.ip())))
    });
    Ok(ip.collect())
}
