//! Devices at which programs translate packets, and the state of the programs there.
//!
//! Invariant: plain data.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The senders of the packets that arrive at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceSide {
    /// Hosts outside of this node.
    Outer,
    /// A pod of this node.
    Pod,
    /// Backends of other nodes, but no clients.
    Backends,
    /// Pods of this node, but no clients: their replies take the fast path, so one program runs at ingress.
    LocalPods,
}

/// A device at which programs translate packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its interface index in this network namespace.
    pub index: u32,
    pub name: String,
    pub side: DeviceSide,
    /// The IPv4 source address after SNAT when packets leave by this device. A pod that reaches itself sees it too.
    pub address4: Option<Ipv4Addr>,
    /// As `address4`, for IPv6.
    pub address6: Option<Ipv6Addr>,
    /// Prefix length in `address4` of this node's own pods behind the device, which see the client's own address; 0:
    /// only backends of other nodes are behind it.
    pub local_prefix4: u8,
    /// As `local_prefix4`, for `address6`.
    pub local_prefix6: u8,
    /// Replies to clients that arrived here are routed by the frontend's address instead of the backend's.
    pub route_by_address: bool,
    /// Packets between it and other such devices take the fast path past the stack. Only the two hooks see them.
    pub fast_path: bool,
    /// At a pod's device: packets may go straight to its peer, because nothing here waits for them. At another device:
    /// arriving packets carry nothing of this node that a pod must not see.
    pub peer: bool,
    /// Whether the fast path there starts at its driver.
    pub xdp: XdpUse,
    /// Whether a route lookup for a packet that arrives there ignores the ports: for IPv4, and for IPv6, where a flow
    /// label counts as a port.
    pub fib_ignores_ports: [bool; 2],
    /// Whether a segment without a flow that arrives there may belong to a connection that another node accepted, and
    /// to none of another proxy of this node.
    pub adopts_flows: bool,
    /// Whether IPsec policies must see what the stack sends and receives. If so, no packet is encapsulated to another
    /// node or accepted from one there.
    pub has_ipsec: bool,
    /// Whether it is a bridge: netfilter may have seen its packets at the ports.
    pub bridge: bool,
    /// Whether it is a virtual switch, with pods of this node and of others behind it, and not an uplink.
    pub switch: bool,
}

impl Device {
    /// A device with every option off.
    pub fn new(index: u32, name: &str, side: DeviceSide) -> Self {
        Self {
            index,
            name: name.to_owned(),
            side,
            address4: None,
            address6: None,
            local_prefix4: 0,
            local_prefix6: 0,
            route_by_address: false,
            fast_path: false,
            peer: false,
            xdp: XdpUse::Never,
            fib_ignores_ports: [false; 2],
            adopts_flows: false,
            has_ipsec: false,
            bridge: false,
            switch: false,
        }
    }
}

/// A device with the state of its programs at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    pub device: Device,
    pub attached: bool,
    /// Whether they are attached without pins: they end with this process.
    pub unpinned: bool,
    /// How many foreign programs and filters are there too. They are not counted at a pod's device without a fast path.
    pub foreign_programs: usize,
    pub fast_path: FastPathState,
    pub xdp: XdpState,
    /// Why a program is not attached, or has no pin.
    pub error: Option<String>,
}

/// Whether packets take the fast path at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPathState {
    /// They do.
    Active,
    /// They are not configured to.
    Disabled,
    /// This kernel does not report to programs which packets exceed the MTU (before Linux 5.12), or has no links for
    /// programs at pods' devices (before Linux 6.6).
    Unsupported,
    /// Foreign programs or filters are at the device and must see all packets, or they could not be counted.
    ForeignPrograms,
    /// Our own programs are not attached.
    NotAttached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// By links of their own (Linux 6.6).
    Tcx,
    /// By a filter in the clsact qdisc, among foreign ones.
    Clsact,
}

/// At which devices the fast path may run at the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpUse {
    #[default]
    Never,
    /// At devices with a driver that runs XDP programs.
    Native,
}

/// Whether the fast path runs at a device's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpState {
    /// It is not configured to.
    Disabled,
    /// It does, for all packets that take the fast path.
    Active,
    /// It does not, and why.
    Unavailable(Cow<'static, str>),
}
