//! What the kernel lists of devices, addresses, routes and rules.
//!
//! Invariant: only what decisions about devices need is kept, as the kernel says it.

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
    /// Whether its packets have an Ethernet header; by that a tap is told from other devices of the kind "tun".
    pub(super) is_ethernet: bool,
    /// The device that it belongs to, such as a bridge.
    pub(super) master: Option<u32>,
    /// Whether its other end is in this network namespace too, as those of `cilium_host` and `cilium_net` are.
    pub(super) is_peer_local: bool,
    /// The device that it stands on and gets its packets from, as a VLAN or a macvlan does.
    pub(super) lower_link: Option<u32>,
    /// Whether something is to see packets before the other end gets them: a queue here, a limit of bandwidth as a
    /// rule, or a program of the other end's driver (XDP), which limits what the device takes.
    pub(super) is_observed: bool,
}

/// An address that others may be given: global, and neither deprecated nor temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) index: u32,
    pub(super) address: IpAddr,
    /// How many of its first bits name its network.
    pub(super) bits: u8,
}

/// How a device leads to a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GatewayRoute {
    pub(super) index: u32,
    /// Whether it is a default route, which leads everywhere.
    pub(super) is_default: bool,
    pub(super) gateway: Option<IpAddr>,
    /// The address from which this node sends by this way, where the route names one.
    pub(super) source: Option<IpAddr>,
}

/// A network to which the main table leads by a device that ends here, and in which the device has an address.
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

/// Whether two addresses have their first `bits` bits in common.
pub(super) fn share_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let differs = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
        _ => return false,
    };
    differs.leading_zeros() >= u32::from(bits)
}

/// What the kernel lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelListing {
    pub(super) links: Vec<Link>,
    /// In the kernel's order: the first one of a device and family is the primary.
    pub(super) addresses: Vec<Address>,
    /// Devices by which a route leads to a gateway.
    pub(super) gateways: BTreeSet<u32>,
    /// Devices by which a default route leads to a gateway.
    pub(super) defaults: BTreeSet<u32>,
    /// Devices of routes to others, without routes that the kernel has made for an address.
    pub(super) routed: BTreeSet<u32>,
    /// How devices lead to gateways.
    pub(super) gateway_routes: BTreeSet<GatewayRoute>,
    /// Networks to which devices with both ends here lead, and in which the device has an address.
    pub(super) networks: BTreeSet<Network>,
    /// Rules by which the kernel chooses a table of routes, as far as they count here.
    pub(super) rules: Vec<RoutingRule>,
    /// Whether the kernel may send two connections between the same hosts different ways, in IPv4 and in IPv6: by a
    /// rule that goes by ports, or by a route with several ways.
    pub(super) port_rules: [bool; 2],
    /// Devices that take packets of IPv4 only from where they would send the answers.
    pub(super) strict: BTreeSet<u32>,
}

/// What a rule goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleSelector {
    /// A mark, which a firewall gives to packets.
    Mark,
    /// The sender: an address, and how many of its bits count.
    Source(IpAddr, u8),
}

/// One rule: packets that it goes by are routed by `table`. Rules are asked in the order of their priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoutingRule {
    pub(super) priority: u32,
    pub(super) selector: RuleSelector,
    pub(super) table: u32,
    pub(super) is_v4: bool,
}
