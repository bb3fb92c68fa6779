//! The role of each device of this node, and why.
//!
//! Invariant: plain data; nothing here decides.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::datapath::{Device, DeviceSide, DeviceStatus, FastPathState, XdpState, XdpUse};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceClass {
    /// Other hosts reach this node through it.
    Outer,
    /// It leads to a pod, and packets of that pod are served.
    Pod,
    /// It leads to backends; packets that arrive there are not served.
    Backends,
    /// It leads to pods of this node that are served at their sockets; their replies to clients of other devices take
    /// the fast path.
    LocalPods,
    /// No programs run there.
    None,
}

impl DeviceClass {
    /// As the API spells it.
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

/// Every word that [`DeviceClass::as_str`] gives.
pub const CLASSES: [&str; 5] = [
    DeviceClass::Outer.as_str(),
    DeviceClass::Pod.as_str(),
    DeviceClass::Backends.as_str(),
    DeviceClass::LocalPods.as_str(),
    DeviceClass::None.as_str(),
];

/// Why a device has its class.
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
    /// The reason as an operator reads it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Configured => "packets.devices names it",
            Self::Address => "it has a global address",
            Self::Gateway => "a route leads to a gateway by it",
            Self::Route => "a route to other hosts uses it",
            Self::PodConfigured => "packets.pod_devices names it",
            Self::LeadsToPod => "it leads to a pod",
            Self::Loopback => "it is the loopback",
            Self::Member => "it is part of another device, which counts instead",
            Self::Dummy => "no packet ever arrives at a dummy",
            Self::LocalPeer => "its peer belongs to this node too, and to no pod",
            Self::LocalPodsOnly => "it leads to pods of this node alone: no route leads to a gateway by it",
            Self::NoAddress => "it has no global address, and no route to other hosts uses it",
            Self::NotConfigured => "packets.devices does not name it",
            Self::ExcludedUplink => {
                "packets.devices does not name it, though a route to other hosts uses it: backends behind it are \
                 reachable, but clients that arrive there are not served"
            }
            Self::ExcludedLocalPods => {
                "packets.devices does not name it: local backends behind it are reachable, but clients that arrive \
                 there are not served"
            }
            Self::Absent => "packets.devices names it, but it does not exist",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyRouting {
    /// As packets of the backend, the kernel's default.
    ByBackend,
    /// As packets of the frontend's address, because routing rules distinguish the two.
    ByFrontend,
}

impl ReplyRouting {
    /// As the API spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByBackend => "backend",
            Self::ByFrontend => "dialled",
        }
    }
}

pub const REPLY_ROUTINGS: [&str; 2] = [ReplyRouting::ByBackend.as_str(), ReplyRouting::ByFrontend.as_str()];

/// Whether packets of flows take the fast path at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastPathDecision {
    /// They do.
    Enabled,
    /// No flow of outside clients crosses it.
    NoOutsideFlows,
    /// No device where clients arrive has a fast path.
    NoClientDevice,
    /// More devices lead to pods than the programs have entries for.
    TooManyDevices,
    /// The configuration disables it.
    DisabledByConfig,
    /// Packets there have no Ethernet header, or a different one.
    NoEthernet,
    /// `packets.forward_mark` is for a firewall.
    ForwardMark,
    /// Replies are routed by the frontend's address.
    RoutedByAddress,
    /// The device accepts packets only from where it would route replies, and there are other devices.
    StrictRpFilter,
    /// Another observer on this node must see these packets.
    ObserverPresent(Arc<str>),
}

impl FastPathDecision {
    /// Why packets go through the stack; `None`: they need not.
    pub fn obstacle(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(match self {
            Self::Enabled => return None,
            Self::ObserverPresent(what) => return Some(Cow::Owned(format!("{what} must see packets"))),
            Self::NoOutsideFlows => "no flow of outside clients crosses it",
            Self::NoClientDevice => "no device where clients arrive has a fast path",
            Self::TooManyDevices => "more devices lead to pods than the programs have entries for",
            Self::DisabledByConfig => "packets.shortcut is \"never\"",
            Self::NoEthernet => "its packets have no Ethernet header",
            Self::ForwardMark => "packets.forward_mark is for a firewall, which must see packets",
            Self::RoutedByAddress => "replies are routed by the frontend's address",
            Self::StrictRpFilter => "rp_filter is strict there, and flows may arrive at other devices too",
        }))
    }
}

/// One device, its role, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDecision {
    /// The interface index of the device; 0: it does not exist.
    pub index: u32,
    pub name: String,
    pub class: DeviceClass,
    pub reason: ClassReason,
    /// The source address that backends of other nodes see after SNAT; at a pod's device, the address that the pod sees
    /// when it reaches itself.
    pub address4: Option<Ipv4Addr>,
    pub address6: Option<Ipv6Addr>,
    /// Prefix length in `address4` of this node's own pods behind the device, which see the client's own address. 0: no
    /// such pods are behind it.
    pub local_prefix4: u8,
    pub local_prefix6: u8,
    /// How replies to clients that arrived at the device are routed, if it is an outer one.
    pub reply_routing: ReplyRouting,
    pub fast_path: FastPathDecision,
    /// Whether packets may go straight to its peer; at a device where clients arrive, whether arriving packets carry
    /// nothing of this node.
    pub peer: bool,
    /// Whether the fast path there starts at its driver.
    pub xdp: XdpUse,
    /// Whether route lookups ignore the ports, in IPv4 and in IPv6.
    pub fib_ignores_ports: [bool; 2],
    /// Whether segments without a flow that arrive there may go on to the node that all nodes select for their client.
    pub adopts_flows: bool,
    /// Whether IPsec policies must see packets to and from other nodes.
    pub has_ipsec: bool,
    /// Whether the device is a bridge: netfilter may see its packets at the ports.
    pub bridge: bool,
    /// Whether the device is a virtual switch, with pods of this node and of others behind it.
    pub switch: bool,
}

impl DeviceDecision {
    /// The device as the datapath takes it; `None`: no programs run there.
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

    /// Whether flows of outside clients cross the device, so that packets may take the fast path there.
    pub const fn has_outside_flows(&self) -> bool {
        !matches!(self.fast_path, FastPathDecision::NoOutsideFlows)
    }

    /// Why packets do not take the fast path at the device, by the decision and the state found; `None`: they do.
    pub fn fast_path_obstacle(&self, found: Option<&DeviceStatus>) -> Option<Cow<'_, str>> {
        let state_obstacle = match found.map(|it| it.fast_path) {
            Some(FastPathState::Active) => None,
            Some(FastPathState::Unsupported)
                if matches!(self.class, DeviceClass::LocalPods | DeviceClass::Pod) =>
            {
                Some("this kernel has no links for programs at devices of pods (before Linux 6.6)")
            }
            Some(FastPathState::Unsupported) => Some(
                "this kernel does not report to programs which packets exceed the MTU (before Linux 5.12)",
            ),
            Some(FastPathState::ForeignPrograms) => {
                Some("foreign programs are attached too, and must see packets")
            }
            Some(FastPathState::NotAttached) => Some("its programs are not attached"),
            Some(FastPathState::Disabled) | None => Some("its programs have not enabled it yet"),
        };
        self.fast_path.obstacle().or(state_obstacle.map(Cow::Borrowed))
    }

    /// Whether the fast path runs at the device's driver.
    pub fn is_xdp_active(&self, found: Option<&DeviceStatus>) -> bool {
        found.is_some_and(|it| it.xdp == XdpState::Active) && self.fast_path_obstacle(found).is_none()
    }

    /// Why the fast path does not run at the device's driver; `None`: it does, or is not configured to.
    pub fn xdp_obstacle(&self, found: Option<&DeviceStatus>) -> Option<Cow<'static, str>> {
        if self.xdp == XdpUse::Never || self.is_xdp_active(found) {
            return None;
        }
        match found.map(|it| &it.xdp) {
            Some(XdpState::Unavailable(why)) => Some(why.clone()),
            Some(XdpState::Active) => Some(Cow::Borrowed("packets go through the stack there")),
            Some(XdpState::Disabled) | None => Some(Cow::Borrowed("its programs have not enabled it yet")),
        }
    }

    /// The networks of this node's own pods behind the device.
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
