//! Reads a driver's XDP properties from the kernel.
//!
//! Invariant: it asks the kernel, never the driver's name. If the kernel does not report a property, it counts as
//! absent.

use std::io;

use super::link_layer::{self, IFLA_LINKINFO};
use crate::netlink::{NetlinkFamily, NetlinkSocket, attribute, attributes, encode_attribute};

/// From `linux/if_link.h`.
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const XDP_ATTACHED_DRV: u8 = 1;

/// From `linux/genetlink.h` and `linux/netdev.h`.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
/// The bytes before the attributes of a generic netlink message.
const GENL_HEADER_BYTES: usize = 4;

/// From `linux/ethtool_netlink.h`.
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
/// Marks an attribute that contains others.
const NLA_F_NESTED: u16 = 1 << 15;

/// Features by which a device strips VLAN tags: of 802.1Q and of 802.1ad.
const VLAN_OFFLOADS: [&[u8]; 2] = [b"rx-vlan-hw-parse", b"rx-vlan-stag-hw-parse"];

/// Whether an XDP program is attached in the driver, and the device's kind; empty for hardware and its equivalents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Driver {
    pub(super) has_program: bool,
    kind: String,
}

impl Driver {
    pub(super) fn query(index: u32) -> io::Result<Self> {
        link_layer::query_link(index)
            .map(|link| Self::parse(link.get(link_layer::IFINFOMSG_BYTES..).unwrap_or_default()))
    }

    fn parse(attributes: &[u8]) -> Self {
        let attached = attribute(attributes, IFLA_XDP).and_then(|xdp| attribute(xdp, IFLA_XDP_ATTACHED));
        let has_program = attached.and_then(<[u8]>::first) == Some(&XDP_ATTACHED_DRV);
        let kind = attribute(attributes, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_KIND));
        let kind = kind.map(|kind| kind.split(|byte| *byte == 0).next().unwrap_or_default());
        Self { has_program, kind: String::from_utf8_lossy(kind.unwrap_or_default()).into_owned() }
    }

    /// Whether it is a bond or a team: its frames arrive at its members, with their indices.
    pub(super) fn has_members(&self) -> bool {
        matches!(self.kind.as_str(), "bond" | "team")
    }

    pub(super) fn is_veth(&self) -> bool {
        self.kind == "veth"
    }
}

/// Whether the driver transmits redirected frames at present. An error: this kernel does not report it (before Linux
/// 6.3).
pub(crate) fn has_xdp_xmit(index: u32) -> io::Result<bool> {
    query_xdp_features(index).map(|features| features & NETDEV_XDP_ACT_NDO_XMIT != 0)
}

fn query_xdp_features(index: u32) -> io::Result<u64> {
    let (mut kernel, family, _) = resolve_family(b"netdev\0")?;
    let device = encode_attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let reply = query_attributes(&mut kernel, family, NETDEV_CMD_DEV_GET, &device)?;
    let features = attribute(&reply, NETDEV_A_DEV_XDP_FEATURES).and_then(<[u8]>::first_chunk);
    Ok(u64::from_ne_bytes(*features.ok_or(io::ErrorKind::InvalidData)?))
}

/// Opens a socket for a generic netlink family. Returns it with the family's id and all attributes.
pub(super) fn resolve_family(name: &[u8]) -> io::Result<(NetlinkSocket, u16, Vec<u8>)> {
    let mut kernel = NetlinkSocket::open(NetlinkFamily::Generic)?;
    let reply = query_attributes(
        &mut kernel,
        GENL_ID_CTRL,
        CTRL_CMD_GETFAMILY,
        &encode_attribute(CTRL_ATTR_FAMILY_NAME, name),
    )?;
    let number = attribute(&reply, CTRL_ATTR_FAMILY_ID).and_then(<[u8]>::first_chunk);
    let number = u16::from_ne_bytes(*number.ok_or(io::ErrorKind::InvalidData)?);
    Ok((kernel, number, reply))
}

fn query_attributes(
    kernel: &mut NetlinkSocket,
    family: u16,
    command: u8,
    attributes: &[u8],
) -> io::Result<Vec<u8>> {
    kernel.request(family, 0, &[&[command, 1, 0, 0], attributes].concat())?;
    let mut reply = kernel.read_one()??;
    Ok(reply.split_off(GENL_HEADER_BYTES.min(reply.len())))
}

/// Whether programs at the device see VLAN tags. If the device strips them, a program cannot recognize a VLAN's frame.
pub(crate) fn keeps_vlan_tags(index: u32) -> io::Result<bool> {
    let (mut kernel, family, _) = resolve_family(b"ethtool\0")?;
    let device = encode_attribute(ETHTOOL_A_HEADER_DEV_INDEX, &index.to_ne_bytes());
    let device = encode_attribute(ETHTOOL_A_FEATURES_HEADER | NLA_F_NESTED, &device);
    let reply = query_attributes(&mut kernel, family, ETHTOOL_MSG_FEATURES_GET, &device)?;
    let active = attribute(&reply, ETHTOOL_A_FEATURES_ACTIVE).ok_or(io::ErrorKind::InvalidData)?;
    Ok(!bit_names(active).any(|name| VLAN_OFFLOADS.contains(&name)))
}

/// The names of a bitset's bits. The kernel lists only set bits.
fn bit_names(set: &[u8]) -> impl Iterator<Item = &[u8]> {
    let bits = attribute(set, ETHTOOL_A_BITSET_BITS).unwrap_or_default();
    let named = attributes(bits).filter_map(|(_, bit)| attribute(bit, ETHTOOL_A_BITSET_BIT_NAME));
    named.map(|name| name.split(|byte| *byte == 0).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_programs_and_device_kinds_are_parsed() {
        let attached = |mode: u8| encode_attribute(IFLA_XDP, &encode_attribute(IFLA_XDP_ATTACHED, &[mode]));
        let kind = |kind: &[u8]| encode_attribute(IFLA_LINKINFO, &encode_attribute(IFLA_INFO_KIND, kind));
        let read = |parts: &[Vec<u8>]| Driver::parse(&parts.concat());
        assert_eq!(read(&[]), Driver::default());
        for (mode, has_program) in [(0, false), (XDP_ATTACHED_DRV, true), (2, false)] {
            assert_eq!(read(&[attached(mode)]).has_program, has_program);
        }
        let veth = read(&[kind(b"veth\0"), attached(XDP_ATTACHED_DRV)]);
        assert!(veth.is_veth() && veth.has_program);
    }

    #[test]
    fn only_bonds_and_teams_have_members() {
        for kind in ["bond", "team", "bridge", "macvlan", "unheard-of"] {
            let attributes =
                encode_attribute(IFLA_LINKINFO, &encode_attribute(IFLA_INFO_KIND, kind.as_bytes()));
            assert_eq!(Driver::parse(&attributes).has_members(), ["bond", "team"].contains(&kind));
        }
    }

    #[test]
    fn the_names_of_a_bitset_are_parsed() {
        let bit = |name: &[u8]| encode_attribute(1, &encode_attribute(ETHTOOL_A_BITSET_BIT_NAME, name));
        let set = encode_attribute(ETHTOOL_A_BITSET_BITS, &[bit(b"tx\0"), bit(b"rx\0")].concat());
        assert_eq!(bit_names(&set).collect::<Vec<_>>(), [b"tx", b"rx"]);
        assert_eq!(bit_names(&[]).count(), 0);
    }
}
