//! Lists links, addresses, routes and rules over netlink.
//!
//! Invariant: a listing is bounded in time and bytes. An incomplete listing is an error.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;

use holdfast_datapath::netlink::{NetlinkFamily, NetlinkSocket, attribute, attributes, ip};

use crate::netlink_monitor::NetlinkMonitor;

use super::listing::{Address, GatewayRoute, KernelListing, Link, Network, RoutingRule};
use super::routing_rules::{self, ROUTE, RTM_GETRULE, RTM_NEWRULE, read_u32};

/// The most bytes of one dump. A router with a million routes has some 100 MB of them; each datagram is parsed and
/// dropped.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The most devices listed, far above any node's: an uplink beyond them would serve no one.
const LINKS_MAX: usize = 1 << 16;
/// The most addresses listed: a node that used IPVS keeps one of each Service on one device.
const ADDRESSES_MAX: usize = 65_536;
/// The most rules listed: a node with some hundred pods has two of each.
const RULES_MAX: usize = 8192;
/// The most routes to gateways listed: of a million routes most share a few gateways.
const GATEWAY_ROUTES_MAX: usize = 1024;
/// How often a list that changes during the dump is read again.
const TRIES: usize = 5;

/// The qdisc of a device without a queue, and the MTU of one without a driver's limit.
const NO_QUEUE: &str = "noqueue";
const MTU_MAX: u32 = 65_535;

/// Strict `rp_filter`. The greater number of the device and `all` counts, and 2 is loose.
const STRICT: u32 = 1;

/// From `linux/rtnetlink.h`.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
/// `RTMGRP_LINK`, `_TC` for queues, `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV4_RULE`, `_IPV6_IFADDR` and `_IPV6_ROUTE`,
/// and the groups of `RTNLGRP_IPV6_RULE` and `RTNLGRP_IPV4_NETCONF` for `rp_filter`.
const GROUPS: u32 = 0x1 | 0x8 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 23;

/// From `linux/if_link.h`, `linux/if_addr.h` and `linux/rtnetlink.h`.
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_MAX_MTU: u16 = 51;
const IFLA_INFO_KIND: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
/// A nexthop object, of one hop or several.
const RTA_NH_ID: u16 = 30;
const RTN_UNICAST: u8 = 1;
/// The kernel made the route itself, for an address.
const RTPROT_KERNEL: u8 = 2;
const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_UNIVERSE: u8 = 0;
/// `IFA_F_DADFAILED`, `_DEPRECATED` and `_TENTATIVE`; `_TEMPORARY` in IPv6, while in IPv4 the same bit marks a
/// secondary address of its network.
const UNUSABLE_FLAGS: u32 = 0x08 | 0x20 | 0x40 | 0x01;
/// The lengths of `ifinfomsg`, `ifaddrmsg` and `rtnexthop`.
const LINK: usize = 16;
const ADDRESS: usize = 8;
const HOP: usize = 8;

/// Subscribes to changes of everything that is listed here.
pub(super) fn open_monitor() -> io::Result<NetlinkMonitor> {
    NetlinkMonitor::open(NetlinkFamily::Route, GROUPS)
}

/// Lists all current links, addresses, routes and rules.
pub(super) fn list() -> io::Result<KernelListing> {
    let links = dump_consistent((RTM_GETLINK, RTM_NEWLINK), (LINK, LINKS_MAX), parse_link)?;
    let addresses = dump_consistent((RTM_GETADDR, RTM_NEWADDR), (ADDRESS, ADDRESSES_MAX), parse_address)?;
    let inside = local_peer_addresses(&links, &addresses);
    let mut listed = KernelListing {
        links,
        addresses,
        rules: list_rules()?,
        port_rules: families_with_port_rules()?,
        ..KernelListing::default()
    };
    // A list of routes that keep changing is never complete, and need not be: a device has many routes, or some that
    // stay.
    dump(RTM_GETROUTE, ROUTE, |kind, body| {
        if kind == RTM_NEWROUTE {
            add_route(body, &mut listed);
            listed.networks.extend(parse_network(body, &inside));
        }
    })?;
    listed.strict = strict_devices(&listed.links);
    Ok(listed)
}

/// The devices at which the kernel drops a packet if another device leads to its sender. Pods' devices are skipped,
/// because there are many.
fn strict_devices(links: &[Link]) -> BTreeSet<u32> {
    let of_all = rp_filter("all");
    let is_strict = |link: &&Link| of_all.max(rp_filter(&link.name)) == STRICT;
    let asked = links.iter().filter(|link| link.kind != "veth" || link.master.is_none());
    asked.filter(is_strict).map(|link| link.index).collect()
}

/// The `rp_filter` of a device; an unreadable one counts as strict.
fn rp_filter(device: &str) -> u32 {
    let setting = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"));
    setting.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(STRICT)
}

/// The addresses of devices with both ends here.
fn local_peer_addresses(links: &[Link], addresses: &[Address]) -> Vec<Address> {
    let ends_here: BTreeSet<u32> = links.iter().filter(|it| it.is_peer_local).map(|it| it.index).collect();
    addresses.iter().filter(|it| ends_here.contains(&it.index)).copied().collect()
}

pub(super) fn list_rules() -> io::Result<Vec<RoutingRule>> {
    dump_consistent((RTM_GETRULE, RTM_NEWRULE), (ROUTE, RULES_MAX), routing_rules::parse_rule)
}

fn families_with_port_rules() -> io::Result<[bool; 2]> {
    let found =
        dump_consistent((RTM_GETRULE, RTM_NEWRULE), (ROUTE, RULES_MAX), routing_rules::port_rule_family)?;
    Ok([true, false].map(|is_v4| found.contains(&is_v4)))
}

/// The index of the device of the IPv6 default route in the main table; of several routes the one with the best
/// priority counts.
pub(super) fn default_device6() -> io::Result<Option<u32>> {
    let mut best: Option<(u32, u32)> = None;
    dump(RTM_GETROUTE, ROUTE, |kind, body| {
        let found = (kind == RTM_NEWROUTE).then(|| parse_default6(body)).flatten();
        best = best.into_iter().chain(found).min();
    })?;
    Ok(best.map(|(_, index)| index))
}

/// The priority and device of a default route of the main table.
fn parse_default6(body: &[u8]) -> Option<(u32, u32)> {
    let [family, bits, _, _, table, _, _, kind, ..] = *body else { return None };
    let is_v6 = i32::from(family) == nix::libc::AF_INET6;
    if !is_v6 || bits != 0 || table != RT_TABLE_MAIN || kind != RTN_UNICAST {
        return None;
    }
    let rest = body.get(ROUTE..)?;
    let one = |kind| attribute(rest, kind);
    let of_several = || parse_hops(one(RTA_MULTIPATH)?).next().map(|(index, _)| index);
    let index = one(RTA_OIF).map(|index| read_u32(index, 0)).or_else(of_several)?;
    Some((one(RTA_PRIORITY).map_or(0, |priority| read_u32(priority, 0)), index))
}

/// Dumps a list, and retries if it changed meanwhile.
fn dump_consistent<T>(
    (question, answer): (u16, u16),
    (header, most): (usize, usize),
    read: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Vec<T>> {
    for _ in 0..TRIES {
        let mut listed = Vec::new();
        let take = |kind, body: &[u8]| {
            let one = (kind == answer && listed.len() < most).then(|| read(body)).flatten();
            listed.extend(one);
        };
        if dump(question, header, take)? {
            return Ok(listed);
        }
    }
    Err(io::Error::other("they change while they are read"))
}

/// Dumps a list, and passes each message to `each`. Returns `false` if the list changed meanwhile and may be
/// incomplete.
fn dump(question: u16, header: usize, mut each: impl FnMut(u16, &[u8])) -> io::Result<bool> {
    let question = (question, &*vec![0; header]);
    NetlinkSocket::dump(NetlinkFamily::Route, question, ANSWER_BYTES_MAX, |message| {
        each(message.kind, message.body);
    })
}

/// A device's name or kind, without control characters: a name may hold anything but "/", ":" and white space.
fn parse_text(value: &[u8]) -> String {
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).replace(char::is_control, "?")
}

/// Parses a link from an `ifinfomsg`; `None` if the message is cut off.
fn parse_link(body: &[u8]) -> Option<Link> {
    let kind_of_layer = u16::from_ne_bytes(*body.get(2..)?.first_chunk()?);
    let mut link = Link {
        index: read_u32(body, 4),
        is_ethernet: kind_of_layer == nix::libc::ARPHRD_ETHER,
        is_loopback: kind_of_layer == nix::libc::ARPHRD_LOOPBACK,
        is_observed: true,
        ..Link::default()
    };
    let mut other = None;
    let mut is_elsewhere = false;
    let (mut has_queue, mut takes_all) = (true, false);
    for (kind, value) in attributes(body.get(LINK..)?) {
        match kind {
            IFLA_LINK => other = Some(read_u32(value, 0)).filter(|other| *other != 0),
            IFLA_LINK_NETNSID => is_elsewhere = true,
            IFLA_QDISC => has_queue = parse_text(value) != NO_QUEUE,
            IFLA_MAX_MTU => takes_all = read_u32(value, 0) == MTU_MAX,
            IFLA_IFNAME => link.name = parse_text(value),
            IFLA_MASTER => link.master = Some(read_u32(value, 0)).filter(|master| *master != 0),
            IFLA_LINKINFO => {
                link.kind = attribute(value, IFLA_INFO_KIND).map(parse_text).unwrap_or_default();
            }
            _ => {}
        }
    }
    link.is_observed = has_queue || !takes_all;
    // For a VLAN and the like, `IFLA_LINK` names the lower device and not another end.
    let other = other.filter(|_| !is_elsewhere);
    if matches!(link.kind.as_str(), "veth" | "netkit") {
        link.is_peer_local = other.is_some();
    } else {
        link.lower_link = other;
    }
    Some(link)
}

/// Parses an address from an `ifaddrmsg`; `None` if it is not for others.
fn parse_address(body: &[u8]) -> Option<Address> {
    let bits = *body.get(1)?;
    let mut flags = u32::from(*body.get(2)?);
    let scope = *body.get(3)?;
    let mut own = None;
    let mut other = None;
    for (kind, value) in attributes(body.get(ADDRESS..)?) {
        match kind {
            IFA_LOCAL => own = ip(value),
            IFA_ADDRESS => other = ip(value),
            IFA_FLAGS => flags = read_u32(value, 0),
            _ => {}
        }
    }
    let address = own.or(other).filter(|address| is_global(*address))?;
    let is_fit = scope == RT_SCOPE_UNIVERSE && flags & UNUSABLE_FLAGS == 0;
    is_fit.then_some(Address { index: read_u32(body, 4), address, bits })
}

fn is_global(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// Adds an `rtmsg`: the devices by which it leads to others or to a gateway, the gateway, and the source address.
fn add_route(body: &[u8], listed: &mut KernelListing) {
    let [family, bits, _, _, table, origin, _, kind, ..] = body else { return };
    if *kind != RTN_UNICAST || *table == RT_TABLE_LOCAL {
        return;
    }
    let rest = body.get(ROUTE..).unwrap_or_default();
    let one = |kind| attribute(rest, kind);
    if attributes(rest).any(|(kind, _)| matches!(kind, RTA_MULTIPATH | RTA_NH_ID)) {
        let [v4, v6] = &mut listed.port_rules;
        *(if i32::from(*family) == nix::libc::AF_INET { v4 } else { v6 }) = true;
    }
    if *origin != RTPROT_KERNEL {
        listed.routed.extend(one(RTA_OIF).map(|index| read_u32(index, 0)));
    }
    let source = one(RTA_PREFSRC).and_then(ip);
    let mut ways = parse_hops(one(RTA_MULTIPATH).unwrap_or_default()).collect::<Vec<_>>();
    if attributes(rest).any(|(kind, _)| is_gateway_attribute(kind)) {
        ways.extend(one(RTA_OIF).map(|index| (read_u32(index, 0), one(RTA_GATEWAY).and_then(ip))));
    }
    for (index, gateway) in ways {
        listed.gateways.insert(index);
        if *bits == 0 {
            listed.defaults.insert(index);
        }
        if listed.gateway_routes.len() < GATEWAY_ROUTES_MAX {
            listed.gateway_routes.insert(GatewayRoute { index, is_default: *bits == 0, gateway, source });
        }
    }
}

/// The network of an `rtmsg`, if its route uses one of these devices and it contains the device's own address.
/// Others' networks are left out: there are as many as nodes.
fn parse_network(body: &[u8], inside: &[Address]) -> Option<Network> {
    let [_, bits, _, _, table, _, _, kind, ..] = *body else { return None };
    let rest = body.get(ROUTE..).filter(|_| kind == RTN_UNICAST && table == RT_TABLE_MAIN)?;
    let one = |kind| attribute(rest, kind);
    let index = read_u32(one(RTA_OIF)?, 0);
    let gateway = one(RTA_GATEWAY).and_then(ip);
    let network = Network { index, address: one(RTA_DST).and_then(ip)?, bits, gateway };
    inside.iter().any(|it| it.index == index && network.contains(it.address)).then_some(network)
}

const fn is_gateway_attribute(kind: u16) -> bool {
    matches!(kind, RTA_GATEWAY | RTA_VIA)
}

/// The hops of a multipath route that lead to a gateway: the device of each, and its gateway.
fn parse_hops(mut rest: &[u8]) -> impl Iterator<Item = (u32, Option<IpAddr>)> {
    let next = move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let hop = rest.get(..length).filter(|_| length >= HOP)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        let found = hop.get(HOP..).unwrap_or_default();
        let gateway = attribute(found, RTA_GATEWAY).and_then(ip);
        Some(
            attributes(found)
                .any(|(kind, _)| is_gateway_attribute(kind))
                .then(|| (read_u32(hop, 4), gateway)),
        )
    };
    std::iter::from_fn(next).flatten()
}
