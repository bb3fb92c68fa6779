//! `[kube_proxy]`: where the daemon answers health checks and scrapes in kube-proxy's place.
//!
//! Invariant: by default the ports are open only where the daemon serves a cluster's Services, packets included, in
//! kube-proxy's place. Elsewhere no client needs them, and an open port is a bad default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use toml::Value;
use toml::de::DeValue;

use super::address::parse_address_port;
use super::keys::{Keys as _, table, take};
use super::table::Table;
use super::value::{mismatch_message, quote};
use super::{Datapath, DatapathKind, Kubernetes, Packets, show};

/// The value that keeps a port closed.
const OFF: &str = "off";

table! {
    /// The table `[kube_proxy]`; `None` is off.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KubeProxy "kube_proxy" {
        /// The listen address for load balancers' health checks. While this is off, the health check ports of Services
        /// stay closed too.
        health: Option<SocketAddr> = None, take(port), show_port, restart;
        /// The listen address for kube-proxy's metrics and mode.
        metrics: Option<SocketAddr> = None, take(port), show_port, restart;
    }
}

/// kube-proxy's default addresses. Its "0.0.0.0" serves both families, so health listens at the unspecified IPv6
/// address.
const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 10256);
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// Reads the table. Its defaults depend on whether this daemon replaces kube-proxy.
pub(super) fn read(table: &mut Table<'_, '_, '_>, stands_in: bool) -> KubeProxy {
    let default = KubeProxy { health: stands_in.then_some(HEALTH), metrics: stands_in.then_some(METRICS) };
    let read = KubeProxy::read_over(default, table);
    let sites = table.good_site("health").zip(table.good_site("metrics"));
    if let (Some(address), Some((_, site))) = (read.metrics, sites)
        && read.health == Some(address)
    {
        table
            .report()
            .add_error(&site, format!("{address} is where health listens: give metrics another port"));
    }
    read
}

/// Whether this daemon serves a cluster's Services in kube-proxy's place.
pub(super) fn replaces_kube_proxy(kubernetes: &Kubernetes, datapath: &Datapath, packets: &Packets) -> bool {
    kubernetes.enabled
        && kubernetes.service_proxy_name.is_none()
        && datapath.kind == DatapathKind::Kernel
        && packets.enabled
}

fn show_port(port: &Option<SocketAddr>) -> Option<Value> {
    port.map_or_else(|| show::text(OFF), |address| show::text(&address))
}

const LEGAL: &str = "an address and port such as \"0.0.0.0:10256\", or \"off\"";

fn port(value: &DeValue<'_>) -> Result<Option<SocketAddr>, String> {
    let DeValue::String(text) = value else { return Err(mismatch_message(LEGAL, value)) };
    if text == OFF {
        return Ok(None);
    }
    if text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Err(format!("{} is not {LEGAL}", quote(text)));
    }
    let address = parse_address_port(text)?;
    match address.port() {
        0 => Err(format!("{address} has port 0: legal is 1 to 65535")),
        _ if address.ip().is_multicast() => {
            Err(format!("{address} is a multicast address: no socket can listen there"))
        }
        _ => Ok(Some(address)),
    }
}
