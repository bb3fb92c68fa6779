//! `[kube_proxy]`: where the daemon answers the health checks and scrapes that are meant for kube-proxy.
//!
//! Invariant: by default the ports are open only where the daemon serves a cluster's Services, for packets too, in
//! kube-proxy's place. Elsewhere no client asks, and a port that is open to all is no good default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use toml::de::DeValue;

use super::address::parse_address_port;
use super::table::{Found, Table};
use super::value::{expected, quote};
use super::{Config, DatapathKind};

/// The value that keeps a port closed.
pub(super) const OFF: &str = "off";

/// The table `[kube_proxy]`; `None` is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KubeProxy {
    /// Where load balancers ask for health. While this is off, the health check ports of Services stay closed too.
    pub health: Option<SocketAddr>,
    /// Where kube-proxy's metrics and mode are asked for.
    pub metrics: Option<SocketAddr>,
}

/// kube-proxy's default addresses. Its "0.0.0.0" answers both families, so health listens at the unspecified IPv6
/// address.
const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 10256);
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// The table as read, before it is known whether this daemon stands in kube-proxy's place.
#[derive(Debug, Default)]
pub(super) struct ReadKubeProxy {
    health: Option<Option<SocketAddr>>,
    metrics: Option<Option<SocketAddr>>,
}

impl ReadKubeProxy {
    /// The table with the defaults filled in, which depend on the rest of the configuration.
    pub(super) fn within(&self, config: &Config) -> KubeProxy {
        let stands_in = config.kubernetes.enabled
            && config.kubernetes.service_proxy_name.is_none()
            && config.datapath.kind == DatapathKind::Kernel
            && config.packets.enabled;
        KubeProxy {
            health: self.health.unwrap_or(stands_in.then_some(HEALTH)),
            metrics: self.metrics.unwrap_or(stands_in.then_some(METRICS)),
        }
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> ReadKubeProxy {
    let health = table.find("health", port);
    let metrics = table.find("metrics", port);
    let both = health.as_ref().zip(metrics.as_ref());
    if let Some((health, Found { value: Some(address), site })) = both
        && health.value == Some(*address)
    {
        table.report().error(site, format!("{address} is where health listens: give metrics another port"));
    }
    ReadKubeProxy { health: health.map(|it| it.value), metrics: metrics.map(|it| it.value) }
}

const LEGAL: &str = "an address and port such as \"0.0.0.0:10256\", or \"off\"";

fn port(value: &DeValue<'_>) -> Result<Option<SocketAddr>, String> {
    let DeValue::String(text) = value else { return Err(expected(LEGAL, value)) };
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
            Err(format!("{address} is a multicast address: nobody can listen there"))
        }
        _ => Ok(Some(address)),
    }
}
