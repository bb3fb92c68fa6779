//! What each device of this node is to packets, and why, as it was decided.
//!
//! Invariant: plain data; nothing here decides.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::datapath::{Device, DeviceStatus, ShortcutState, Side, XdpState, XdpUse};

/// What a device is to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Others reach this node by it.
    Outer,
    /// It leads to a pod that is served by its packets.
    Pod,
    /// The device leads to backends; packets that come by it are not served.
    Backends,
    /// It leads to pods of this node that are served by their sockets; what they answer to clients of other devices
    /// passes by the stack.
    Near,
    /// Nothing is done there.
    None,
}

impl Class {
    /// As answers spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Outer => "outer",
            Self::Pod => "pod",
            Self::Backends => "backends",
            Self::Near => "near",
            Self::None => "none",
        }
    }
}

/// Every word that [`ClientClass::as_str`] gives.
pub const CLASSES: [&str; 5] = [
    Class::Outer.as_str(),
    Class::Pod.as_str(),
    Class::Backends.as_str(),
    Class::Near.as_str(),
    Class::None.as_str(),
];

/// Why a device is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Named,
    Address,
    Gateway,
    Route,
    PodNamed,
    LeadsToPod,
    Loopback,
    Member,
    Dummy,
    EndsHere,
    PodSide,
    NoAddress,
    OthersNamed,
    LeftOut,
    NearLeftOut,
    Absent,
}

impl Reason {
    /// What an operator reads.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Named => "packets.devices names it",
            Self::Address => "it has a global address",
            Self::Gateway => "a route leads to a gateway by it",
            Self::Route => "a route leads to others by it",
            Self::PodNamed => "packets.pod_devices names it",
            Self::LeadsToPod => "it leads to a pod",
            Self::Loopback => "it is the loopback",
            Self::Member => "it belongs to another device, which counts in its place",
            Self::Dummy => "no packet ever comes by a dummy",
            Self::EndsHere => "its other end is this node's too, and no pod's",
            Self::PodSide => "it leads to pods of this node alone: no route leads to a gateway by it",
            Self::NoAddress => "it has no global address, and no route leads to others by it",
            Self::OthersNamed => "packets.devices names others",
            Self::LeftOut => {
                "packets.devices names others, though a route leads to others by it: backends behind it are reached as \
                 everywhere, and nobody is served who comes by it"
            }
            Self::NearLeftOut => {
                "packets.devices names others: backends near it are reached, and nobody is served who comes by it"
            }
            Self::Absent => "packets.devices names it, and it is not there",
        }
    }
}

/// How answers to clients are routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// As packets of the backend: that is how the kernel does it.
    Backend,
    /// As packets of the address that was dialled, since rules of routing tell the two apart.
    Dialled,
}

impl Answers {
    /// As answers spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Dialled => "dialled",
        }
    }
}

/// Every word that [`Answers::as_str`] gives.
pub const ANSWERS: [&str; 2] = [Answers::Backend.as_str(), Answers::Dialled.as_str()];

/// Whether packets of flows are to pass by the stack at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShortcutDecision {
    /// They are to.
    Wanted,
    /// No flow of clients outside leads by it.
    Inside,
    /// At no device by which clients come do packets pass by the stack.
    NoWayIn,
    /// So many devices lead to pods that the programs know of others alone.
    Many,
    /// The configuration says so.
    Never,
    /// Packets there have no Ethernet header, or another one.
    NoEthernet,
    /// `packets.forward_mark` is for a firewall.
    Marked,
    /// Answers are routed by the address that was dialled.
    ByAddress,
    /// The device takes packets only from where it would send answers, and there are other devices.
    StrictPaths,
    /// Something else on this node is to see these packets.
    Needed(Arc<str>),
}

impl ShortcutDecision {
    /// Why packets go through the stack; `None`: they need not.
    pub fn why_not(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(match self {
            Self::Wanted => return None,
            Self::Needed(what) => return Some(Cow::Owned(format!("{what} is to see packets"))),
            Self::Inside => "no flow with clients outside leads by it",
            Self::NoWayIn => "they do at no device by which clients come",
            Self::Many => "more devices lead to pods than the programs know of",
            Self::Never => "packets.shortcut is \"never\"",
            Self::NoEthernet => "its packets have no Ethernet header",
            Self::Marked => "packets.forward_mark is for a firewall, which is to see packets",
            Self::ByAddress => "answers are routed by the address that was dialled",
            Self::StrictPaths => "rp_filter is strict there, and flows may come by other devices too",
        }))
    }
}

/// One device, what it is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The number of the device; 0: it is not there.
    pub index: u32,
    pub name: String,
    pub class: Class,
    pub reason: Reason,
    /// The address that backends of other nodes see as a client's; at a pod's device, the address that the pod sees
    /// when it reaches itself.
    pub address4: Option<Ipv4Addr>,
    pub address6: Option<Ipv6Addr>,
    /// How many first bits of `address4` this node's own pods behind the device share; those pods see a client's own
    /// address. 0: no such pods are behind it.
    pub near4: u8,
    pub near6: u8,
    /// How answers are routed to clients that came by the device, if it is an outer one.
    pub answers: Answers,
    /// Whether packets are to pass by the stack there.
    pub shortcut: ShortcutDecision,
    /// Whether packets may be given to its other end right away; of a device by which clients come, whether what comes
    /// by it bears nothing of this node.
    pub peer: bool,
    /// Whether packets that pass by the stack there are to do so at its driver.
    pub xdp: XdpUse,
    /// Whether the kernel finds ways without a look at ports, in IPv4 and in IPv6.
    pub plain: [bool; 2],
    /// Whether segments of no flow that come by it may go on to the node that all nodes choose for their client.
    pub joins: bool,
    /// Whether policies of IPsec are to see what goes to other nodes and comes from them.
    pub secured: bool,
    /// Whether the device is a bridge with others behind it, at whose ports filters may see its packets.
    pub bridge: bool,
    /// Whether the device is a virtual switch with pods of this node behind it beside those of others.
    pub switch: bool,
}

impl Decision {
    /// The device as the datapath takes it; none: nothing is done there.
    pub fn device(&self) -> Option<Device> {
        let side = match self.class {
            Class::Outer => Side::Outer,
            Class::Pod => Side::Pod,
            Class::Backends => Side::Backends,
            Class::Near => Side::Near,
            Class::None => return None,
        };
        Some(Device {
            index: self.index,
            name: self.name.clone(),
            side,
            address4: self.address4,
            address6: self.address6,
            near4: self.near4,
            near6: self.near6,
            by_address: self.answers == Answers::Dialled,
            shortcut: self.shortcut == ShortcutDecision::Wanted,
            peer: self.peer,
            xdp: self.xdp,
            plain: self.plain,
            joins: self.joins,
            secured: self.secured,
            bridge: self.bridge,
            switch: self.switch,
        })
    }

    /// Whether flows with clients outside lead by the device, so that packets may pass by the stack there.
    pub const fn leads_on(&self) -> bool {
        !matches!(self.shortcut, ShortcutDecision::Inside)
    }

    /// Why packets do not pass by the stack at the device, by what was decided and what was found there; `None`: they
    /// do.
    pub fn why_no_shortcut(&self, found: Option<&DeviceStatus>) -> Option<Cow<'_, str>> {
        let at_hand = match found.map(|it| it.shortcut) {
            Some(ShortcutState::Taken) => None,
            Some(ShortcutState::Unsupported) if matches!(self.class, Class::Near | Class::Pod) => {
                Some("this kernel has no links for programs at devices of pods (before Linux 6.6)")
            }
            Some(ShortcutState::Unsupported) => {
                Some("this kernel does not tell programs which packets are too long (before Linux 5.12)")
            }
            Some(ShortcutState::Others) => Some("programs of others are there too, and are to see packets"),
            Some(ShortcutState::NotAttached) => Some("its programs are not there"),
            Some(ShortcutState::Unwanted) | None => Some("its programs do not know of it yet"),
        };
        self.shortcut.why_not().or(at_hand.map(Cow::Borrowed))
    }

    /// Whether packets pass by the stack at the device's driver.
    pub fn at_driver(&self, found: Option<&DeviceStatus>) -> bool {
        found.is_some_and(|it| it.xdp == XdpState::Taken) && self.why_no_shortcut(found).is_none()
    }

    /// Why packets do not pass by the stack at the device's driver; `None`: they do, or are not to.
    pub fn why_not_at_driver(&self, found: Option<&DeviceStatus>) -> Option<Cow<'static, str>> {
        if self.xdp == XdpUse::Never || self.at_driver(found) {
            return None;
        }
        match found.map(|it| &it.xdp) {
            Some(XdpState::Not(why)) => Some(why.clone()),
            Some(XdpState::Taken) => Some(Cow::Borrowed("packets go through the stack there")),
            Some(XdpState::Unwanted) | None => Some(Cow::Borrowed("its programs do not know of it yet")),
        }
    }

    /// The networks behind the device in which pods are this node's own.
    pub fn near(&self) -> Vec<String> {
        let v4 = self.address4.filter(|_| self.near4 > 0).map(|it| network(it.into(), self.near4));
        let v6 = self.address6.filter(|_| self.near6 > 0).map(|it| network(it.into(), self.near6));
        v4.into_iter().chain(v6).collect()
    }
}

/// The network of so many bits around an address, as routes are written.
fn network(address: IpAddr, bits: u8) -> String {
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
