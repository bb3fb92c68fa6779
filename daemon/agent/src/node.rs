//! The host's facts: its name, and the local addresses that answer NodePorts.
//!
//! Invariant: a pure function of the setting, the kernel's list and the cluster's Node object decides which addresses
//! count; an address that this host does not have never counts. If the kernel does not list its addresses, the last
//! list holds. The source that watches the Node object delivers it here.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::address_policy::is_reserved;
use holdfast_core::event::Event;
use holdfast_core::facts::NodeFacts;
use holdfast_core::keys::Family;
use holdfast_datapath::netlink::NetlinkFamily;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use tokio::sync::{mpsc, oneshot, watch};

use crate::devices;
use crate::netlink_monitor::NetlinkMonitor;
use holdfast_config::{Cidr, Config, HostNameError, NodeName, NodePortAddresses, OuterAddresses};
use holdfast_kubernetes::own_node::{NodeDescription, NodeReport};

/// How often the host's addresses are listed without a notice.
const RELIST_EVERY: Duration = Duration::from_secs(10);

/// Notices within this time count as one change: each pod that starts sends some.
const BURST: Duration = Duration::from_millis(100);

/// `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`, from `linux/rtnetlink.h`.
const ADDRESS_GROUPS: u32 = 0x10 | 0x100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    pub address: IpAddr,
    pub loopback: bool,
    /// Whether it is on the interface of its family's default route.
    pub default_route: bool,
}

/// The configured name, or else the host's.
pub fn name(config: &Config) -> Result<NodeName, HostNameError> {
    config.node.name.clone().map_or_else(host_node_name, Ok)
}

/// The host's current name, as kubelet would register it.
pub(crate) fn host_node_name() -> Result<NodeName, HostNameError> {
    NodeName::from_host_name(&nix::unistd::gethostname().unwrap_or_default().to_string_lossy())
}

/// The current facts of the node. It fails if the kernel's addresses cannot be read, because the facts are worthless
/// without them.
pub fn facts(config: &Config, name: &NodeName, description: &NodeDescription) -> io::Result<NodeFacts> {
    Ok(facts_with(config, name, description, &local_addresses()?))
}

/// The node's facts with these local addresses. The configuration's zone overrides the cluster's.
fn facts_with(config: &Config, name: &NodeName, node: &NodeDescription, local: &[LocalAddress]) -> NodeFacts {
    let configured = config.node.zone.as_deref().map(Into::into);
    let setting = &config.node.node_port_addresses;
    NodeFacts {
        name: name.as_str().into(),
        zone: configured.or_else(|| node.zone.clone()),
        node_port_addresses: node_port_addresses(setting, local, &node.addresses),
        addresses: own_addresses(local, &node.addresses),
        is_leaving: node.is_leaving,
    }
}

/// The addresses of the host and of its Node object. Loopback and link-local ones are left out: link-local ones
/// change with every pod, each change decides everything again, and no pod has an address of either kind.
fn own_addresses(local: &[LocalAddress], node_addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    let all = local.iter().map(|it| it.address).chain(node_addresses.iter().copied());
    all.filter(|address| !is_reserved(*address)).collect()
}

/// Sends the engine the node's facts, now and whenever its addresses, the Node object or the configuration change.
/// Until the cluster delivers, the remembered description holds.
pub async fn run(
    config: watch::Receiver<Arc<Config>>,
    name: NodeName,
    description: NodeDescription,
    nodes: mpsc::Receiver<NodeReport>,
    events: mpsc::Sender<Vec<Event>>,
) {
    let notices = NetlinkMonitor::open(NetlinkFamily::Route, ADDRESS_GROUPS);
    let notices =
        notices.map_err(|error| tracing::warn!(%error, "cannot watch this host's addresses; they are listed every ten seconds"));
    follow(config, (name, description), nodes, events, (local_addresses, notices.ok())).await;
}

/// Follows as [`run`] does. If addresses cannot be listed, for lack of file descriptors for example, they count as
/// unchanged: NodePorts stay.
async fn follow(
    mut config: watch::Receiver<Arc<Config>>,
    (name, mut description): (NodeName, NodeDescription),
    mut nodes: mpsc::Receiver<NodeReport>,
    events: mpsc::Sender<Vec<Event>>,
    (list, mut notices): (impl Fn() -> io::Result<Vec<LocalAddress>>, Option<NetlinkMonitor>),
) {
    let mut sent = None;
    let mut reporter = None;
    let mut local = None;
    loop {
        match list() {
            Ok(listed) => local = Some(listed),
            Err(error) => {
                tracing::warn!(%error, "cannot list this host's addresses; the last list holds");
            }
        }
        let config_now = config.borrow_and_update().clone();
        let now = local.as_ref().map(|local| facts_with(&config_now, &name, &description, local));
        if let Some(now) = now.filter(|now| sent.as_ref() != Some(now)) {
            sent = Some(now.clone());
            if events.send(vec![Event::NodeApplied(Arc::new(now))]).await.is_err() {
                return;
            }
        }
        // The sender may have gone meanwhile.
        let _ = reporter.take().map(|reporter: oneshot::Sender<()>| reporter.send(()));
        tokio::select! {
            changed = config.changed() => if changed.is_err() { return },
            Some(NodeReport { node, applied }) = nodes.recv() => {
                description = node.unwrap_or(NodeDescription { addresses: Vec::new(), ..description });
                reporter = Some(applied);
            }
            () = NetlinkMonitor::wait_if_open(&mut notices) => {
                tokio::time::sleep(BURST).await;
                // Notices from here on are of changes that the next listing may miss.
                notices.iter_mut().for_each(NetlinkMonitor::discard_pending);
            }
            () = tokio::time::sleep(RELIST_EVERY) => {}
        }
    }
}

/// Selects the local addresses that answer NodePorts.
///
/// In each family, `primary` is the address in the Node object if this host has it, else the first address of the
/// interface with the default route, else the first that is not loopback. CIDRs affect only their own family: a
/// family without one answers at all its addresses, as in kube-proxy, unless `primary` is listed too, which affects
/// both families. None of these includes the loopback, as in kube-proxy's nftables mode, because its listeners are
/// for this host alone. `localhost` selects the loopback, and one address of each family represents all of it.
pub fn node_port_addresses(
    setting: &NodePortAddresses,
    local: &[LocalAddress],
    said: &[IpAddr],
) -> BTreeSet<IpAddr> {
    let families = [Family::V4, Family::V6];
    let outer = families.into_iter().flat_map(|family| {
        let is_outer =
            |it: &LocalAddress| Family::from_address(it.address) == family && !it.address.is_loopback();
        let own: Vec<_> = local.iter().copied().filter(is_outer).collect();
        outer_addresses(&setting.outer, family, &own, said)
    });
    let looped = local.iter().filter(|it| it.address.is_loopback() && setting.localhost);
    outer.chain(looped.map(|it| Family::from_address(it.address).loopback_address())).collect()
}

/// The addresses of one family that answer, without its loopback.
fn outer_addresses(
    setting: &OuterAddresses,
    family: Family,
    own: &[LocalAddress],
    said: &[IpAddr],
) -> Vec<IpAddr> {
    let all = own.iter().map(|it| it.address);
    match setting {
        OuterAddresses::Nowhere => Vec::new(),
        OuterAddresses::All => all.collect(),
        OuterAddresses::Primary => primary_address(own, said).into_iter().collect(),
        OuterAddresses::Ranges { cidrs, primary: beside } => {
            let speaks = |cidr: &&Cidr| Family::from_address(cidr.network()) == family;
            let speaking: Vec<_> = cidrs.iter().filter(speaks).collect();
            let named = if *beside { primary_address(own, said) } else { None };
            let covers = |address: &IpAddr| speaking.iter().any(|cidr| cidr.contains(*address));
            let is_unspoken = speaking.is_empty() && !beside;
            all.filter(|address| is_unspoken || named == Some(*address) || covers(address)).collect()
        }
    }
}

fn primary_address(own: &[LocalAddress], said: &[IpAddr]) -> Option<IpAddr> {
    let usable = |it: &&LocalAddress| !it.loopback && !is_link_local(it.address);
    // A node's address may be on the loopback interface, from where routers announce it.
    let known = || own.iter().filter(|it| said.contains(&it.address));
    if let Some(known) = known().find(|it| it.default_route).or_else(|| known().next()) {
        return Some(known.address);
    }
    let routed = own.iter().filter(usable).find(|it| it.default_route);
    routed.or_else(|| own.iter().find(usable)).map(|it| it.address)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Every address of every interface that is up, in the kernel's order.
pub(crate) fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let v4_route = default_interface_v4()?;
    let v6_route = devices::default_device6()?;
    let up = getifaddrs()?.filter(|it| it.flags.contains(InterfaceFlags::IFF_UP));
    let all = up.filter_map(|it| {
        let address = it.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))?;
        let route = if address.is_ipv4() { &v4_route } else { &v6_route };
        Some(LocalAddress {
            address,
            loopback: it.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            default_route: route.as_ref() == Some(&it.interface_name),
        })
    });
    Ok(all.collect())
}

/// `/proc/net/route`: the interface of the route with destination and mask zero. A kernel without IPv4 lacks the
/// file.
fn default_interface_v4() -> io::Result<Option<String>> {
    match File::open("/proc/net/route") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        table => default_interface(BufReader::new(table?)),
    }
}

/// The kernel lists routes by destination, so a router's million routes are never read.
fn default_interface(table: impl BufRead) -> io::Result<Option<String>> {
    let zero = format!("{:08X}", Ipv4Addr::UNSPECIFIED.to_bits());
    for line in table.lines().skip(1) {
        let line = line?;
        let mut fields = line.split_whitespace();
        let (name, destination) = (fields.next(), fields.next());
        if destination != Some(&zero) {
            break;
        }
        // Gateway, flags, three counts, mask.
        if fields.nth(5) == Some(&zero) {
            return Ok(name.map(ToOwned::to_owned));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock::Stopwatch;
    use holdfast_fixtures::network_namespace;

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
        check_said(name, setting, local_text, &[], expected);
    }

    #[track_caller]
    fn check_said(name: &str, setting: &str, local_text: &str, said: &[&str], expected: &[&str]) {
        let text = format!("[node]\nnode_port_addresses = {setting}\n[manifests]\npath = \"/m\"\n");
        let (config, _) = Config::parse(&text, "config.toml").unwrap();
        let said: Vec<IpAddr> = said.iter().map(|text| text.parse().unwrap()).collect();
        let found = node_port_addresses(&config.node.node_port_addresses, &local(local_text), &said);
        let expected: BTreeSet<IpAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn own_addresses_exclude_loopback_and_link_local() {
        let found = own_addresses(
            &local("127.0.0.1@lo ::1@lo 10.0.0.5 192.168.1.7@default fe80::1@default 10.1.1.1@lo"),
            &["203.0.113.7".parse().unwrap()],
        );
        let expected = ["10.0.0.5", "10.1.1.1", "192.168.1.7", "203.0.113.7"];
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn node_ports_answer_at_the_chosen_addresses() {
        let all = "127.0.0.1@lo ::1@lo 10.0.0.5 192.168.1.7@default fe80::1@default fd00::7@default";
        check("primary is on the default route", "[\"primary\"]", all, &["192.168.1.7", "fd00::7"]);
        check("without a route the first", "[\"primary\"]", "127.0.0.1@lo 10.0.0.5 10.0.0.6", &["10.0.0.5"]);
        check("loopback is never primary", "[\"primary\"]", "127.0.0.1@lo", &[]);
        check("all", "[\"all\"]", "127.0.0.1@lo 10.0.0.5 10.9.9.9@lo", &["10.0.0.5", "10.9.9.9"]);
        check(
            "a family without a CIDR answers everywhere",
            "[\"10.0.0.0/8\"]",
            "10.0.0.5 192.168.1.7 ::1@lo fd00::7",
            &["10.0.0.5", "fd00::7"],
        );
        check("all and less", "[\"10.0.0.0/8\", \"all\"]", "10.0.0.5 10.9.9.9", &["10.0.0.5", "10.9.9.9"]);
    }

    #[test]
    fn primary_with_ranges_adds_an_address_and_covers_both_families() {
        let all = "127.0.0.1@lo 10.0.0.5 172.16.0.1 192.168.1.7@default fd00::7@default fd00::8";
        let both = "[\"10.0.0.0/8\", \"primary\"]";
        check(both, both, all, &["10.0.0.5", "192.168.1.7", "fd00::7"]);
        check("of the range itself", both, "10.0.0.5@default 10.0.0.6", &["10.0.0.5", "10.0.0.6"]);
        check("a family that has none", both, "10.0.0.5@default fe80::1", &["10.0.0.5"]);
    }

    #[test]
    fn node_ports_answer_at_the_loopback_only_with_localhost() {
        let all = "127.0.0.1@lo 127.0.0.53@lo ::1@lo 192.168.1.7@default fd00::7@default";
        for without in ["[\"primary\"]", "[\"all\"]", "[\"0.0.0.0/0\", \"::/0\"]", "[\"192.168.0.0/16\"]"] {
            check(without, without, all, &["192.168.1.7", "fd00::7"]);
            let with = without.replace(']', ", \"localhost\"]");
            check(&with, &with, all, &["127.0.0.1", "::1", "192.168.1.7", "fd00::7"]);
        }
        check("alone", "[\"localhost\"]", all, &["127.0.0.1", "::1"]);
        check("a host without IPv6", "[\"localhost\"]", "127.0.0.1@lo 10.0.0.5", &["127.0.0.1"]);
    }

    #[test]
    fn the_primary_address_is_the_node_objects_if_the_host_has_it() {
        let all = "127.0.0.1@lo 10.9.9.9@lo 10.0.0.5 192.168.1.7@default fd00::7@default fd00::8@default";
        let primary = "[\"primary\"]";
        check_said("both", primary, all, &["10.0.0.5", "fd00::8"], &["10.0.0.5", "fd00::8"]);
        check_said("one family", primary, all, &["10.0.0.5"], &["10.0.0.5", "fd00::7"]);
        check_said("an address of lo", primary, all, &["10.9.9.9"], &["10.9.9.9", "fd00::7"]);
        check_said("not here", primary, all, &["203.0.113.9"], &["192.168.1.7", "fd00::7"]);
        check_said("loopback", primary, all, &["127.0.0.1"], &["192.168.1.7", "fd00::7"]);
        check_said(
            "a range overrides the Node object",
            "[\"192.168.0.0/16\"]",
            "10.0.0.5 192.168.1.7",
            &["10.0.0.5"],
            &["192.168.1.7"],
        );
        let standing = ["10.0.0.5", "192.168.1.7"];
        check_said("the host's choice of several", primary, all, &standing, &["192.168.1.7", "fd00::7"]);
    }

    #[tokio::test]
    async fn a_changed_node_object_is_followed_and_the_old_one_holds_meanwhile() {
        let (_config, configs) = watch::channel(Arc::new(Config::default()));
        let (nodes, nodes_told) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel(8);
        let here = local_addresses().unwrap();
        let here = here.into_iter().find(|it| !it.address.is_loopback() && !is_link_local(it.address));
        let zone = |name: &str| Some(Arc::from(name));
        let said = NodeDescription {
            zone: zone("remembered"),
            addresses: here.iter().map(|it| it.address).collect(),
            is_leaving: false,
        };
        let name = NodeName::from_host_name("n").unwrap();
        let run = tokio::spawn(run(configs, name, said.clone(), nodes_told, events));
        let mut next = async || match told.recv().await.unwrap().remove(0) {
            Event::NodeApplied(facts) => facts,
            other => panic!("{other:?}"),
        };
        let first = next().await;
        assert_eq!(first.zone, zone("remembered"));
        assert!(here.iter().all(|it| first.node_port_addresses.contains(&it.address)));
        for (node, expected) in [
            (
                Some(NodeDescription { zone: zone("a"), is_leaving: true, ..NodeDescription::default() }),
                zone("a"),
            ),
            (Some(NodeDescription { zone: None, ..said }), None),
        ] {
            let (heard, hears) = oneshot::channel();
            nodes.send(NodeReport { node, applied: heard }).await.unwrap();
            hears.await.unwrap();
            let facts = next().await;
            assert_eq!((&facts.zone, facts.is_leaving), (&expected, expected.is_some()));
        }
        run.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_cannot_be_listed_stay() {
        let (_config, configs) = watch::channel(Arc::new(Config::default()));
        let (_nodes, nodes_told) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel::<Vec<Event>>(8);
        let looks = std::cell::Cell::new(0);
        let list = || {
            looks.set(looks.get() + 1);
            match looks.get() {
                1 => Ok(local("10.0.0.5@default")),
                2..=9 => Err(io::Error::from_raw_os_error(nix::libc::EMFILE)),
                _ => Ok(local("10.0.0.6@default")),
            }
        };
        let identity = (NodeName::from_host_name("n").unwrap(), NodeDescription::default());
        let seen = async {
            for expected in ["10.0.0.5", "10.0.0.6"] {
                let Event::NodeApplied(facts) = told.recv().await.unwrap().remove(0) else { panic!() };
                let found: Vec<_> = facts.node_port_addresses.iter().map(ToString::to_string).collect();
                assert_eq!((found, facts.addresses.len()), (vec![expected.to_owned()], 1));
            }
        };
        tokio::select! {
            () = follow(configs, identity, nodes_told, events, (list, None)) => panic!("it has ended"),
            () = seen => assert_eq!(looks.get(), 10),
        }
    }

    /// As when keepalived takes over an address: clients dial its NodePorts at once.
    #[test]
    fn kernel_a_new_address_answers_node_ports_at_once() {
        network_namespace::block_on_inside(async || {
            // Without the kernel's notice, this clock jumps to the next listing.
            tokio::time::pause();
            let ip = |arguments: &str| {
                let status = std::process::Command::new("ip").args(arguments.split(' ')).status();
                assert!(status.unwrap().success(), "{arguments}");
            };
            ip("link set lo up");
            let text = "[node]\nnode_port_addresses = [\"all\"]\n[manifests]\npath = \"/m\"\n";
            let config = Config::parse(text, "config.toml").unwrap().0;
            let (_config, configs) = watch::channel(Arc::new(config));
            let (_nodes, nodes) = mpsc::channel(1);
            let (events, mut told) = mpsc::channel::<Vec<Event>>(8);
            let name = NodeName::from_host_name("n").unwrap();
            let running = tokio::spawn(run(configs, name, NodeDescription::default(), nodes, events));
            for (change, expected) in [("", 0), ("add", 1), ("del", 0)] {
                if !change.is_empty() {
                    ip(&format!("addr {change} 192.0.2.9/32 dev lo"));
                }
                let changed = Stopwatch::start();
                let Event::NodeApplied(facts) = told.recv().await.unwrap().remove(0) else { panic!() };
                assert!(changed.read() < RELIST_EVERY, "no notice of the kernel came");
                assert_eq!(facts.node_port_addresses.len(), expected, "{change} {facts:?}");
            }
            running.abort();
        });
    }

    /// A router's table of a million routes would delay everything else by a second.
    #[test]
    fn reading_routes_stops_after_the_default_ones() {
        struct Unread;
        impl io::Read for Unread {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                panic!("it is read on")
            }
        }
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let row = |name: &str, destination: &str, mask: &str| {
            format!("{name}\t{destination}\t0102000A\t0003\t0\t0\t100\t{mask}\t0\t0\t0\n")
        };
        let (half, all) = (row("tun0", "00000000", "00000080"), row("eth0", "00000000", "00000000"));
        let other = row("eth1", "0002000A", "00FFFFFF");
        for (rows, expected) in
            [(format!("{half}{all}{other}"), Some("eth0")), (format!("{half}{other}"), None), (other, None)]
        {
            let table = io::Read::chain(io::Cursor::new(format!("{head}{rows}")), Unread);
            let found = default_interface(BufReader::new(table)).unwrap();
            assert_eq!(found.as_deref(), expected, "{rows}");
        }
        assert_eq!(default_interface(io::Cursor::new(head)).unwrap(), None);
    }

    #[test]
    fn this_host_has_a_loopback_address() {
        assert!(local_addresses().unwrap().iter().any(|it| it.loopback && it.address.is_loopback()));
    }
}
