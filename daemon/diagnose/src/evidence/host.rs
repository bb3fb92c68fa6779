//! The state of this host, read from /proc and netlink.
//!
//! Invariant: only the names of processes come from tenants.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::Lookup;

#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Host {
    /// The sockets that listen at the node ports and the health port of this service.
    pub listeners: Lookup<Vec<Listener>>,
    /// The first and the last port of `ip_local_port_range`.
    pub port_range: Lookup<(u16, u16)>,
    /// Ports that the kernel never assigns to a connection, as ranges with both ends.
    pub reserved: Lookup<Vec<(u16, u16)>>,
    /// Whether the kernel forwards IPv4 packets.
    pub forwards: Lookup<bool>,
    pub forwards6: Lookup<bool>,
    /// The reverse-path filter of each device that traffic of this service uses.
    pub reverse_path: Lookup<Vec<ReversePath>>,
    pub conntrack: Lookup<Conntrack>,
    pub resolver: Lookup<Resolver>,
    pub routes: Lookup<Vec<Route>>,
    /// Rules of other proxies that name a frontend of this service.
    pub rules: Lookup<Vec<Rule>>,
    /// Ports that rules of a CNI plug-in redirect as pods' host ports.
    pub host_port_rules: Lookup<Vec<u16>>,
    pub addresses: Lookup<Vec<IpAddr>>,
    /// The HTTP status of this service's health port.
    pub health: Lookup<u16>,
    /// What the folder of manifests has besides the objects that are served.
    pub manifests: Lookup<ManifestWorkload>,
}

/// The selector of a manifest's Service, and the pods that manifests describe. Neither counts for what is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ManifestWorkload {
    /// `None`: the Service has no selector.
    pub selector: Option<BTreeMap<String, String>>,
    /// Pods and templates of pods in the Service's namespace; the first ones.
    pub pods: Vec<ManifestPod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct ManifestPod {
    /// `Pod`, or the kind that has the template.
    pub kind: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// A socket that listens, or is bound without a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Listener {
    pub port: u16,
    /// `TCP` or `UDP`.
    pub protocol: String,
    pub address: IpAddr,
    /// The process that has the socket. `None`: unknown.
    #[cfg_attr(test, serde(default))]
    pub process: Option<String>,
    #[cfg_attr(test, serde(default))]
    pub pid: Option<u32>,
    /// Whether the socket belongs to this daemon.
    #[cfg_attr(test, serde(default))]
    pub own: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct ReversePath {
    pub device: String,
    /// 0 off, 1 strict, 2 loose: the larger of the device's own setting and the setting `all`.
    pub mode: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Conntrack {
    pub entries: u64,
    pub entries_max: u64,
}

/// The node's `/etc/resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Resolver {
    pub missing: bool,
    pub nameservers: usize,
    pub search_domains: usize,
    /// The length of all search domains, with separators.
    pub search_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Route {
    pub to: IpAddr,
    #[cfg_attr(test, serde(default))]
    pub device: Option<String>,
    #[cfg_attr(test, serde(default))]
    pub mtu: Option<u32>,
    /// Why there is no route.
    #[cfg_attr(test, serde(default))]
    pub unreachable: Option<String>,
}

/// A rule of another proxy for one of our frontends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Rule {
    /// `kube-proxy`, `Cilium`, …
    pub proxy: String,
    /// Where the rule is: `nft table ip nat, chain KUBE-SERVICES`.
    pub place: String,
    pub frontend: SocketAddr,
    /// The rule's backends, as far as known.
    #[cfg_attr(test, serde(default))]
    pub backends: Vec<SocketAddr>,
}
