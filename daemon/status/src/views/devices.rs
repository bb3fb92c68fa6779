//! What each device of this node is to packets, and why, as it was decided.
//!
//! Invariant: plain data; nothing here decides.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::datapath::{Device, DeviceSide, DeviceStatus, FastPathState, XdpState, XdpUse};

/// What a device is to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceClass {
    /// Others reach this node by it.
    Outer,
    /// It leads to a pod that is served by its packets.
    Pod,
    /// The device leads to backends; packets that come by it are not served.
    Backends,
    /// It leads to pods of this node that are served by their sockets; what they answer to clients of other devices
    /// passes by the stack.
    LocalPods,
    /// Nothing is done there.
    None,
}

impl DeviceClass {
    /// As answers spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Outer => "outer",
            Self::Pod => "pod",
            Self::Backends => "backends",
            Self::LocalPods => "near",
            Self::None => "none",
        }
    }
}

/// Every word that [`ClientClass::as_str`] gives.
pub const CLASSES: [&str; 5] = [
    DeviceClass::Outer.as_str(),
    DeviceClass::Pod.as_str(),
    DeviceClass::Backends.as_str(),
    DeviceClass::LocalPods.as_str(),
    DeviceClass::None.as_str(),
];

/// Why a device is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassReason {
    Configured,
    Address,
    Gateway,
    Route,
    PodConfigured,
    LeadsToPod,
    Loopback,
    Member,
    Dummy,
    LocalPeer,
    LocalPodsOnly,
    NoAddress,
    NotConfigured,
    ExcludedUplink,
    ExcludedLocalPods,
    Absent,
}

impl ClassReason {
    /// What an operator reads.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Configured => "packets.devices names it",
            Self::Address => "it has a global address",
            Self::Gateway => "a route leads to a gateway by it",
            Self::Route => "a route leads to others by it",
            Self::PodConfigured => "packets.pod_devices names it",
            Self::LeadsToPod => "it leads to a pod",
            Self::Loopback => "it is the loopback",
            Self::Member => "it belongs to another device, which counts in its place",
            Self::Dummy => "no packet ever comes by a dummy",
            Self::LocalPeer => "its other end is this node's too, and no pod's",
            Self::LocalPodsOnly => "it leads to pods of this node alone: no route leads to a gateway by it",
            Self::NoAddress => "it has no global address, and no route leads to others by it",
            Self::NotConfigured => "packets.devices names others",
            Self::ExcludedUplink => {
                "packets.devices names others, though a route leads to others by it: backends behind it are reached as \
                 everywhere, and nobody is served who comes by it"
            }
            Self::ExcludedLocalPods => {
                "packets.devices names others: backends near it are reached, and nobody is served who comes by it"
            }
            Self::Absent => "packets.devices names it, and it is not there",
        }
    }
}

/// How answers to clients are routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyRouting {
    /// As packets of the backend: that is how the kernel does it.
    ByBackend,
    /// As packets of the address that was dialled, since rules of routing tell the two apart.
    ByFrontend,
}

impl ReplyRouting {
    /// As answers spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByBackend => "backend",
            Self::ByFrontend => "dialled",
        }
    }
}

/// Every word that [`ReplyRouting::as_str`] gives.
pub const REPLY_ROUTINGS: [&str; 2] = [ReplyRouting::ByBackend.as_str(), ReplyRouting::ByFrontend.as_str()];

/// Whether packets of flows are to pass by the stack at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastPathDecision {
    /// They are to.
    Enabled,
    /// No flow of clients outside leads by it.
    NoOutsideFlows,
    /// At no device by which clients come do packets pass by the stack.
    NoClientDevice,
    /// So many devices lead to pods that the programs know of others alone.
    TooManyDevices,
    /// The configuration says so.
    DisabledByConfig,
    /// Packets there have no Ethernet header, or another one.
    NoEthernet,
    /// `packets.forward_mark` is for a firewall.
    ForwardMark,
    /// Answers are routed by the address that was dialled.
    RoutedByAddress,
    /// The device takes packets only from where it would send answers, and there are other devices.
    StrictRpFilter,
    /// Something else on this node is to see these packets.
    ObserverPresent(Arc<str>),
}

impl FastPathDecision {
    /// Why packets go through the stack; `None`: they need not.
    pub fn obstacle(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(match self {
            Self::Enabled => return None,
            Self::ObserverPresent(what) => return Some(Cow::Owned(format!("{what} is to see packets"))),
            Self::NoOutsideFlows => "no flow with clients outside leads by it",
            Self::NoClientDevice => "they do at no device by which clients come",
            Self::TooManyDevices => "more devices lead to pods than the programs know of",
            Self::DisabledByConfig => "packets.shortcut is \"never\"",
            Self::NoEthernet => "its packets have no Ethernet header",
            Self::ForwardMark => "packets.forward_mark is for a firewall, which is to see packets",
            Self::RoutedByAddress => "answers are routed by the address that was dialled",
            Self::StrictRpFilter => "rp_filter is strict there, and flows may come by other devices too",
        }))
    }
}

/// One device, what it is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDecision {
    /// The number of the device; 0: it is not there.
    pub index: u32,
    pub name: String,
    pub class: DeviceClass,
    pub reason: ClassReason,
    /// The address that backends of other nodes see as a client's; at a pod's device, the address that the pod sees
    /// when it reaches itself.
    pub address4: Option<Ipv4Addr>,
    pub address6: Option<Ipv6Addr>,
    /// How many first bits of `address4` this node's own pods behind the device share; those pods see a client's own
    /// address. 0: no such pods are behind it.
    pub local_prefix4: u8,
    pub local_prefix6: u8,
    /// How answers are routed to clients that came by the device, if it is an outer one.
    pub reply_routing: ReplyRouting,
    /// Whether packets are to pass by the stack there.
    pub fast_path: FastPathDecision,
    /// Whether packets may be given to its other end right away; of a device by which clients come, whether what comes
    /// by it bears nothing of this node.
    pub peer: bool,
    /// Whether packets that pass by the stack there are to do so at its driver.
    pub xdp: XdpUse,
    /// Whether the kernel finds ways without a look at ports, in IPv4 and in IPv6.
    pub fib_ignores_ports: [bool; 2],
    /// Whether segments of no flow that come by it may go on to the node that all nodes choose for their client.
    pub adopts_flows: bool,
    /// Whether policies of IPsec are to see what goes to other nodes and comes from them.
    pub has_ipsec: bool,
    /// Whether the device is a bridge with others behind it, at whose ports filters may see its packets.
    pub bridge: bool,
    /// Whether the device is a virtual switch with pods of this node behind it beside those of others.
    pub switch: bool,
}

impl DeviceDecision {
    /// The device as the datapath takes it; none: nothing is done there.
    pub fn to_device(&self) -> Option<Device> {
        let side = match self.class {
            DeviceClass::Outer => DeviceSide::Outer,
            DeviceClass::Pod => DeviceSide::Pod,
            DeviceClass::Backends => DeviceSide::Backends,
            DeviceClass::LocalPods => DeviceSide::LocalPods,
            DeviceClass::None => return None,
        };
        Some(Device {
            index: self.index,
            name: self.name.clone(),
            side,
            address4: self.address4,
            address6: self.address6,
            local_prefix4: self.local_prefix4,
            local_prefix6: self.local_prefix6,
            route_by_address: self.reply_routing == ReplyRouting::ByFrontend,
            fast_path: self.fast_path == FastPathDecision::Enabled,
            peer: self.peer,
            xdp: self.xdp,
            fib_ignores_ports: self.fib_ignores_ports,
            adopts_flows: self.adopts_flows,
            has_ipsec: self.has_ipsec,
            bridge: self.bridge,
            switch: self.switch,
        })
    }

    /// Whether flows with clients outside lead by the device, so that packets may pass by the stack there.
    pub const fn has_outside_flows(&self) -> bool {
        !matches!(self.fast_path, FastPathDecision::NoOutsideFlows)
    }

    /// Why packets do not pass by the stack at the device, by what was decided and what was found there; `None`: they
    /// do.
    pub fn fast_path_obstacle(&self, found: Option<&DeviceStatus>) -> Option<Cow<'_, str>> {
        let at_hand = match found.map(|it| it.fast_path) {
            Some(FastPathState::Active) => None,
            Some(FastPathState::Unsupported)
                if matches!(self.class, DeviceClass::LocalPods | DeviceClass::Pod) =>
            {
                Some("this kernel has no links for programs at devices of pods (before Linux 6.6)")
            }
            Some(FastPathState::Unsupported) => {
                Some("this kernel does not tell programs which packets are too long (before Linux 5.12)")
            }
            Some(FastPathState::ForeignPrograms) => {
                Some("programs of others are there too, and are to see packets")
            }
            Some(FastPathState::NotAttached) => Some("its programs are not there"),
            Some(FastPathState::Disabled) | None => Some("its programs do not know of it yet"),
        };
        self.fast_path.obstacle().or(at_hand.map(Cow::Borrowed))
    }

    /// Whether packets pass by the stack at the device's driver.
    pub fn is_xdp_active(&self, found: Option<&DeviceStatus>) -> bool {
        found.is_some_and(|it| it.xdp == XdpState::Active) && self.fast_path_obstacle(found).is_none()
    }

    /// Why packets do not pass by the stack at the device's driver; `None`: they do, or are not to.
    pub fn xdp_obstacle(&self, found: Option<&DeviceStatus>) -> Option<Cow<'static, str>> {
        if self.xdp == XdpUse::Never || self.is_xdp_active(found) {
            return None;
        }
        match found.map(|it| &it.xdp) {
            Some(XdpState::Unavailable(why)) => Some(why.clone()),
            Some(XdpState::Active) => Some(Cow::Borrowed("packets go through the stack there")),
            Some(XdpState::Disabled) | None => Some(Cow::Borrowed("its programs do not know of it yet")),
        }
    }

    /// The networks behind the device in which pods are this node's own.
    pub fn local_networks(&self) -> Vec<String> {
        let v4 = self
            .address4
            .filter(|_| self.local_prefix4 > 0)
            .map(|it| format_network(it.into(), self.local_prefix4));
        let v6 = self
            .address6
            .filter(|_| self.local_prefix6 > 0)
            .map(|it| format_network(it.into(), self.local_prefix6));
        v4.into_iter().chain(v6).collect()
    }
}

/// The network of so many bits around an address, as routes are written.
fn format_network(address: IpAddr, bits: u8) -> String {
    let bits_after = |all: u32| all.saturating_sub(u32::from(bits));
    let first = match address {
        IpAddr::V4(it) => {
            let mask = u32::MAX.checked_shl(bits_after(Ipv4Addr::BITS)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(it.to_bits() & mask))
        }
        IpAddr::V6(it) => {
            let mask = u128::MAX.checked_shl(bits_after(Ipv6Addr::BITS)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(it.to_bits() & mask))
        }
    };
    format!("{first}/{bits}")
}
