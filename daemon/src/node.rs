//! What the host says of itself: its name, and the local addresses that answer NodePorts.
//!
//! Invariant: which addresses count is decided by a pure function of the setting and what the kernel lists. Deliberately
//! absent: the Node object of a cluster; its zone is told by the source that watches it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::facts::NodeFacts;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{Config, NoNodeName, NodeName, NodePortAddresses};

/// How often the host's addresses are looked at again. An address that comes late waits at most this long for its NodePorts.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// One address of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// On the loopback interface.
    pub loopback: bool,
    /// On the interface of the family's default route.
    pub default_route: bool,
}

/// The host's name, as kubelet would register it, unless the configuration gives one.
pub fn name(config: &Config) -> Result<NodeName, NoNodeName> {
    let host = || nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    config.node.name.clone().map_or_else(|| NodeName::of_host(&host()), Ok)
}

/// The node's facts as they are now. The configuration's zone goes before a cluster's.
pub fn facts(config: &Config, name: &NodeName, zone: Option<&Arc<str>>) -> NodeFacts {
    let configured = config.node.zone.as_deref().map(Into::into);
    NodeFacts {
        name: name.as_str().into(),
        zone: configured.or_else(|| zone.cloned()),
        node_port_addresses: node_port_addresses(&config.node.node_port_addresses, &local_addresses()),
    }
}

/// The zone in which a cluster says that the node is.
#[derive(Debug)]
pub struct Zone {
    /// Its name; none if the cluster does not say.
    pub name: Option<Arc<str>>,
    /// Answered when the engine has been told.
    pub told: oneshot::Sender<()>,
}

/// Tells the engine of the node, now and whenever its addresses, its zone or the configuration change. Until a cluster tells
/// the zone it is the one that is remembered.
pub async fn run(
    mut config: watch::Receiver<Arc<Config>>,
    name: NodeName,
    mut zone: Option<Arc<str>>,
    mut zones: mpsc::Receiver<Zone>,
    events: mpsc::Sender<Vec<Event>>,
) {
    let (mut told, mut heard) = (None, None);
    loop {
        let now = facts(&config.borrow_and_update().clone(), &name, zone.as_ref());
        if told.as_ref() != Some(&now) {
            told = Some(now.clone());
            if events.send(vec![Event::NodeApplied(Arc::new(now))]).await.is_err() {
                return;
            }
        }
        // Whoever asked may have gone meanwhile.
        let _ = heard.take().map(|heard: oneshot::Sender<()>| heard.send(()));
        tokio::select! {
            changed = config.changed() => if changed.is_err() { return },
            Some(new) = zones.recv() => (zone, heard) = (new.name, Some(new.told)),
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Which local addresses answer NodePorts.
///
/// `primary` is, per family, the first address of the interface with the default route, else the first that is not
/// loopback. CIDRs speak only for their own family: a family without one answers at all its addresses, as in kube-proxy.
pub fn node_port_addresses(setting: &NodePortAddresses, local: &[LocalAddress]) -> BTreeSet<IpAddr> {
    let families = [true, false].map(|ipv4| local.iter().filter(move |it| it.address.is_ipv4() == ipv4));
    let chosen = families.into_iter().flat_map(|own| match setting {
        NodePortAddresses::All => own.map(|it| it.address).collect(),
        NodePortAddresses::Primary => primary(&own.copied()).into_iter().collect::<Vec<_>>(),
        NodePortAddresses::Cidrs(cidrs) => {
            let ipv4 = own.clone().any(|it| it.address.is_ipv4());
            let mut speaking = cidrs.iter().filter(|cidr| cidr.network().is_ipv4() == ipv4).peekable();
            let silent = speaking.peek().is_none();
            let speaking: Vec<_> = speaking.collect();
            let covers = |address| silent || speaking.iter().any(|cidr| cidr.contains(address));
            own.map(|it| it.address).filter(|address| covers(*address)).collect()
        }
    });
    chosen.collect()
}

fn primary(own: &(impl Iterator<Item = LocalAddress> + Clone)) -> Option<IpAddr> {
    let usable = |it: &LocalAddress| !it.loopback && !is_link_local(it.address);
    let routed = own.clone().filter(usable).find(|it| it.default_route);
    routed.or_else(|| own.clone().find(usable)).map(|it| it.address)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Every address of every interface that is up, in the kernel's order. Unreadable counts as none.
fn local_addresses() -> Vec<LocalAddress> {
    let (v4_route, v6_route) = (default_interface_v4(), default_interface_v6());
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let up = interfaces.filter(|it| it.flags.contains(InterfaceFlags::IFF_UP));
    up.filter_map(|it| {
        let address = it.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))?;
        let route = if address.is_ipv4() { &v4_route } else { &v6_route };
        Some(LocalAddress {
            address,
            loopback: it.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            default_route: route.as_ref() == Some(&it.interface_name),
        })
    })
    .collect()
}

/// `/proc/net/route`: the interface of the route whose destination and mask are zero.
fn default_interface_v4() -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/route").ok()?;
    let zero = format!("{:08X}", Ipv4Addr::UNSPECIFIED.to_bits());
    table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|fields| {
        let default = fields.get(1) == Some(&zero.as_str()) && fields.get(7) == Some(&zero.as_str());
        fields.first().filter(|_| default).map(|name| (*name).to_owned())
    })
}

/// `/proc/net/ipv6_route`: likewise; `lo` carries the unreachable default of a host without IPv6.
fn default_interface_v6() -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/ipv6_route").ok()?;
    let zero = format!("{:032x}", Ipv6Addr::UNSPECIFIED.to_bits());
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|fields| {
        let default = fields.first() == Some(&zero.as_str()) && fields.get(1) == Some(&"00");
        fields.last().filter(|name| default && **name != "lo").map(|name| (*name).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> Vec<LocalAddress> {
        let one = |word: &str| {
            let mut parts = word.split('@');
            let address = parts.next().unwrap().parse().unwrap();
            let mark = parts.next().unwrap_or_default();
            LocalAddress { address, loopback: mark == "lo", default_route: mark == "default" }
        };
        text.split(' ').map(one).collect()
    }

    #[track_caller]
    fn check(name: &str, setting: &str, local_text: &str, expected: &[&str]) {
        let text = format!("[node]\nnode_port_addresses = {setting}\n[manifests]\npath = \"/m\"\n");
        let (config, _) = Config::parse(&text, "config.toml").unwrap();
        let found = node_port_addresses(&config.node.node_port_addresses, &local(local_text));
        let expected: BTreeSet<IpAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn node_ports_answer_at_the_chosen_addresses() {
        let all = "127.0.0.1@lo ::1@lo 10.0.0.5 192.168.1.7@default fe80::1@default fd00::7@default";
        check("primary is on the default route", "[\"primary\"]", all, &["192.168.1.7", "fd00::7"]);
        check("without a route the first", "[\"primary\"]", "127.0.0.1@lo 10.0.0.5 10.0.0.6", &["10.0.0.5"]);
        check("loopback is never primary", "[\"primary\"]", "127.0.0.1@lo", &[]);
        check("all", "[\"all\"]", "127.0.0.1@lo 10.0.0.5", &["127.0.0.1", "10.0.0.5"]);
        check(
            "a family without a CIDR answers everywhere",
            "[\"10.0.0.0/8\"]",
            "10.0.0.5 192.168.1.7 ::1@lo fd00::7",
            &["10.0.0.5", "::1", "fd00::7"],
        );
    }

    #[test]
    fn this_host_has_a_loopback_address() {
        assert!(local_addresses().iter().any(|it| it.loopback && it.address.is_loopback()));
    }
}
