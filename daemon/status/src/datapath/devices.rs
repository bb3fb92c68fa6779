//! Devices at which packets are translated, and what programs are there.
//!
//! Invariant: plain data.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The senders of the packets that come in by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceSide {
    /// Hosts outside of this node.
    Outer,
    /// A pod of this node.
    Pod,
    /// Backends of other nodes, and no client.
    Backends,
    /// Pods of this node, and no client: their answers pass by the stack, for which one program looks at what comes in.
    LocalPods,
}

/// A device at which packets are translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number in this network namespace.
    pub index: u32,
    /// What people call it. It may change.
    pub name: String,
    /// The senders of the packets that come in by it.
    pub side: DeviceSide,
    /// The address that backends of other nodes see instead of an IPv4 client's, when packets leave by this device; a
    /// pod that reaches itself sees it too.
    pub address4: Option<Ipv4Addr>,
    /// As above, of IPv6.
    pub address6: Option<Ipv6Addr>,
    /// So many first bits of `address4` are those of this node's own pods behind the device, which see a client's own
    /// address; 0: only backends of other nodes are behind it.
    pub local_prefix4: u8,
    /// As above, of `address6`.
    pub local_prefix6: u8,
    /// Answers to clients that came by it are routed by the address that they bear, and not by the backend's.
    pub route_by_address: bool,
    /// Packets between it and other such devices pass by the stack, where nothing but the two hooks needs them.
    pub fast_path: bool,
    /// Of a device that leads to a pod: packets can be given to its other end right away, because nothing waits for
    /// them at this one. Of another device: what comes by it bears nothing of this node that a pod must not see.
    pub peer: bool,
    /// Whether packets that pass by the stack there are to do so at its driver.
    pub xdp: XdpUse,
    /// Whether the kernel finds the way of a packet that comes by it without a look at its ports: of IPv4, and of IPv6,
    /// where a label counts as ports do.
    pub fib_ignores_ports: [bool; 2],
    /// Whether a segment of no flow that comes by it may be of a connection that another node has let in, and of none
    /// that another proxy of this node has.
    pub adopts_flows: bool,
    /// Whether policies of IPsec are to see what the stack sends and takes: then nothing goes by it to another node as
    /// it came, and nothing is taken so.
    pub has_ipsec: bool,
    /// Whether it is a bridge: filters of the stack may have seen its packets at the ports.
    pub bridge: bool,
    /// Whether it is a virtual switch, behind which pods of this node are beside those of others, and no way out.
    pub switch: bool,
}

impl Device {
    /// A device of which nothing more is known.
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

/// A device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    pub device: Device,
    /// Whether the programs are in place.
    pub attached: bool,
    /// Whether they are, but without their pins: they end with this process.
    pub unpinned: bool,
    /// How many programs and filters of others are there too; they are not counted at a device of class pod where
    /// packets are not to pass by the stack.
    pub foreign_programs: usize,
    /// Whether packets pass by the stack there.
    pub fast_path: FastPathState,
    /// Whether those that do pass by it at the driver.
    pub xdp: XdpState,
    /// Why a program is not in place, or has no pin.
    pub error: Option<String>,
}

/// Whether packets pass by the stack at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPathState {
    /// They do.
    Active,
    /// They are not to.
    Disabled,
    /// This kernel does not tell programs which packets are too long for their way (before Linux 5.12), or has no links
    /// for programs at devices of pods (before Linux 6.6).
    Unsupported,
    /// Programs or filters of others are at the device, and are to see all packets; or they could not be counted.
    ForeignPrograms,
    /// Our own programs are not there.
    NotAttached,
}

/// What programs hang by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// By links of their own (Linux 6.6).
    Tcx,
    /// By a filter among those of others.
    Clsact,
}

/// At which devices packets may pass by the stack at the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpUse {
    #[default]
    Never,
    /// At devices with a driver that has a place for programs.
    Native,
}

/// Whether packets pass by the stack at a device's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpState {
    /// They are not to.
    Disabled,
    /// They do, as far as they pass by the stack at all.
    Active,
    /// They do not, and why.
    Unavailable(Cow<'static, str>),
}
