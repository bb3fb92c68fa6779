//! The kernel's devices, addresses, routes and rules.
//!
//! Invariant: it holds only what decisions about devices need, as the kernel reports it.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// A device as the kernel lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// What made it: "veth", "bridge" …; empty for hardware.
    pub(super) kind: String,
    pub(super) is_loopback: bool,
    /// Whether its packets have an Ethernet header; this tells a tap from other devices of kind "tun".
    pub(super) is_ethernet: bool,
    /// Its master, such as a bridge.
    pub(super) master: Option<u32>,
    /// Whether its other end is in this network namespace too, as with `cilium_host` and `cilium_net`.
    pub(super) is_peer_local: bool,
    /// The lower device that it gets packets from, as a VLAN or a macvlan does.
    pub(super) lower_link: Option<u32>,
    /// Whether something must see packets before the other end gets them: a qdisc here, usually a bandwidth limit, or
    /// an XDP program of the other end, which limits the packets that the device takes.
    pub(super) is_observed: bool,
}

/// An address that others may be given: global, and neither deprecated nor temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) index: u32,
    pub(super) address: IpAddr,
    /// The length of its network prefix.
    pub(super) bits: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GatewayRoute {
    pub(super) index: u32,
    pub(super) is_default: bool,
    pub(super) gateway: Option<IpAddr>,
    /// The source address that the route names, if any.
    pub(super) source: Option<IpAddr>,
}

/// A network that the main table routes to a device with both ends here, in which the device has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Network {
    pub(super) index: u32,
    pub(super) address: IpAddr,
    pub(super) bits: u8,
    pub(super) gateway: Option<IpAddr>,
}

impl Network {
    pub(super) fn contains(&self, other: IpAddr) -> bool {
        share_prefix(self.address, other, self.bits)
    }
}

pub(super) fn share_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let differs = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
        _ => return false,
    };
    differs.leading_zeros() >= u32::from(bits)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelListing {
    pub(super) links: Vec<Link>,
    /// In the kernel's order: the first one of a device and family is the primary.
    pub(super) addresses: Vec<Address>,
    /// Devices with a route to a gateway.
    pub(super) gateways: BTreeSet<u32>,
    /// Devices with a default route to a gateway.
    pub(super) defaults: BTreeSet<u32>,
    /// Devices with routes to others, except the kernel's own routes for an address.
    pub(super) routed: BTreeSet<u32>,
    pub(super) gateway_routes: BTreeSet<GatewayRoute>,
    /// Networks of devices with both ends here, in which the device has an address.
    pub(super) networks: BTreeSet<Network>,
    /// The rules that select a route table, as far as they matter here.
    pub(super) rules: Vec<RoutingRule>,
    /// Whether the kernel may route two connections between the same hosts differently, in IPv4 and in IPv6: by a
    /// rule on ports or by a multipath route.
    pub(super) port_rules: [bool; 2],
    /// Devices with strict `rp_filter`: they take IPv4 packets only from where they would send the replies.
    pub(super) strict: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleSelector {
    Mark,
    /// The sender: an address and its prefix length.
    Source(IpAddr, u8),
}

/// One rule: `table` routes the packets that match. The kernel evaluates rules by priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoutingRule {
    pub(super) priority: u32,
    pub(super) selector: RuleSelector,
    pub(super) table: u32,
    pub(super) is_v4: bool,
}
