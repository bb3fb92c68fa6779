//! Lists devices, and finds the header that packets begin with at each.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use nix::net::if_::if_nameindex;

use super::Device;
use crate::load::LinkLayer;
use crate::netlink::{NetlinkFamily, NetlinkSocket, attribute, ip};

/// From `linux/rtnetlink.h`.
const RTM_GETLINK: u16 = 18;

/// From `linux/if_link.h`: a device's kind, and the attributes of that kind.
pub(super) const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_DATA: u16 = 2;

/// From `linux/if_tunnel.h`: a tunnel's remote, and that each packet has its own.
const IFLA_GRE_REMOTE: u16 = 7;
const IFLA_GRE_COLLECT_METADATA: u16 = 18;

/// Types of devices with packets that begin with the IP header: PPP, raw IP, tunnels (IPIP, IP6IP6, SIT, GRE, GRE over
/// IPv6), and TUN and WireGuard, which have no type.
const IP_HARDWARE_TYPES: [u16; 8] = [512, 519, 768, 769, 776, 778, 823, 0xfffe];

const GRE_HARDWARE_TYPES: [u16; 2] = [778, 823];

/// The indices of all devices in this thread's network namespace.
pub(super) fn list_devices() -> Vec<u32> {
    let Ok(devices) = if_nameindex() else { return Vec::new() };
    devices.iter().map(nix::net::if_::Interface::index).collect()
}

pub(super) fn query_layer(index: u32) -> io::Result<LinkLayer> {
    parse_layer(&query_link(index)?)
}

fn parse_layer(link: &[u8]) -> io::Result<LinkLayer> {
    match parse_hardware_type(link)? {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(LinkLayer::Ethernet),
        kind if GRE_HARDWARE_TYPES.contains(&kind)
            && has_tunnel_header(link.get(IFINFOMSG_BYTES..).unwrap_or_default()) =>
        {
            let why = "packets of a GRE tunnel without a remote of its own begin with the tunnel's header";
            Err(io::Error::other(why))
        }
        kind if IP_HARDWARE_TYPES.contains(&kind) => Ok(LinkLayer::Ip),
        kind => Err(io::Error::other(format!("packets of its kind (ARPHRD {kind}) cannot be read"))),
    }
}

/// The size of a `struct ifinfomsg`; attributes follow it.
pub(super) const IFINFOMSG_BYTES: usize = 16;

pub(super) fn query_link(index: u32) -> io::Result<Vec<u8>> {
    let mut kernel = NetlinkSocket::open(NetlinkFamily::Route)?;
    // A `struct ifinfomsg` with only the index set.
    kernel.request(RTM_GETLINK, 0, [0, index, 0, 0].map(u32::to_ne_bytes).as_flattened())?;
    kernel.read_one()?
}

/// Whether packets at a GRE device begin with the tunnel's header, which gives each packet's remote: tunnels without a
/// remote, and IPv4 tunnels with many.
fn has_tunnel_header(attributes: &[u8]) -> bool {
    let Some(tunnel) = attribute(attributes, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_DATA))
    else {
        return false;
    };
    let is_one_end = |remote: IpAddr| match remote {
        IpAddr::V4(remote) => !remote.is_unspecified() && !remote.is_multicast(),
        IpAddr::V6(remote) => !remote.is_unspecified(),
    };
    let has_end = attribute(tunnel, IFLA_GRE_REMOTE).and_then(ip).is_some_and(is_one_end);
    !has_end && attribute(tunnel, IFLA_GRE_COLLECT_METADATA).is_none()
}

/// The device's type by `net/if_arp.h`: the second 16 bits of a `struct ifinfomsg`.
fn parse_hardware_type(link: &[u8]) -> io::Result<u16> {
    let kind = link.get(2..).and_then(|it| it.first_chunk()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(u16::from_ne_bytes(*kind))
}

/// The link layers of these devices. A node without devices gets Ethernet, which it soon needs.
pub(crate) fn query_layers(devices: &[Device]) -> Vec<LinkLayer> {
    let found: BTreeSet<LinkLayer> =
        devices.iter().filter_map(|device| query_layer(device.index).ok()).collect();
    if found.is_empty() { vec![LinkLayer::Ethernet] } else { found.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::encode_attribute;

    /// The link message of a device of that type, with these attributes of its kind.
    fn link_message(kind: u16, own: &[Vec<u8>]) -> Vec<u8> {
        let info = encode_attribute(IFLA_LINKINFO, &encode_attribute(IFLA_INFO_DATA, &own.concat()));
        [&[0, 0], &kind.to_ne_bytes()[..], &[0; IFINFOMSG_BYTES - 4], &info].concat()
    }

    fn remote(address: &str) -> Vec<u8> {
        match address.parse().unwrap() {
            IpAddr::V4(address) => encode_attribute(IFLA_GRE_REMOTE, &address.octets()),
            IpAddr::V6(address) => encode_attribute(IFLA_GRE_REMOTE, &address.octets()),
        }
    }

    /// A type, the remote, whether each packet has its own remote, and whether programs can read the packets.
    const TUNNELS: [(u16, &str, bool, bool); 9] = [
        (778, "192.0.2.9", false, true),
        (778, "0.0.0.0", false, false),
        (778, "224.0.0.9", false, false),
        (778, "0.0.0.0", true, true),
        (823, "2001:db8::9", false, true),
        (823, "::", false, false),
        (823, "::", true, true),
        // IPIP and SIT show no header of their own, with or without a remote.
        (768, "0.0.0.0", false, true),
        (776, "0.0.0.0", false, true),
    ];

    #[test]
    fn a_gre_tunnel_whose_packets_begin_with_its_header_is_refused() {
        for (kind, end, has_many, is_read) in TUNNELS {
            let mut own = vec![remote(end)];
            own.extend(has_many.then(|| encode_attribute(IFLA_GRE_COLLECT_METADATA, &[])));
            let layer = parse_layer(&link_message(kind, &own));
            assert_eq!(layer.as_ref().ok(), is_read.then_some(&LinkLayer::Ip), "{kind} to {end}, {has_many}");
            assert!(layer.err().is_none_or(|why| why.to_string().contains("GRE")), "{kind} to {end}");
        }
    }
}
