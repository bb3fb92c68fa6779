//! Which devices there are, and where a packet begins at one.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use nix::net::if_::if_nameindex;

use super::Device;
use crate::load::LinkLayer;
use crate::netlink::{NetlinkFamily, NetlinkSocket, attribute, ip};

/// From `linux/rtnetlink.h`.
const RTM_GETLINK: u16 = 18;

/// From `linux/if_link.h`: what a device is, and what only devices of its kind have.
pub(super) const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_DATA: u16 = 2;

/// From `linux/if_tunnel.h`: the other end of a tunnel, and that each packet has an end of its own.
const IFLA_GRE_REMOTE: u16 = 7;
const IFLA_GRE_COLLECT_METADATA: u16 = 18;

/// Types of devices at which packets begin with the header of IP: PPP, raw IP, tunnels (IPIP, IP6IP6, SIT, GRE, GRE
/// over IPv6), and TUN and WireGuard, which have none.
const IP_HARDWARE_TYPES: [u16; 8] = [512, 519, 768, 769, 776, 778, 823, 0xfffe];

/// Those of GRE, and of GRE over IPv6.
const GRE_HARDWARE_TYPES: [u16; 2] = [778, 823];

/// The numbers of all devices of this thread's network namespace.
pub(super) fn list_devices() -> Vec<u32> {
    let Ok(devices) = if_nameindex() else { return Vec::new() };
    devices.iter().map(nix::net::if_::Interface::index).collect()
}

/// Where a packet begins at a device.
pub(super) fn query_layer(index: u32) -> io::Result<LinkLayer> {
    parse_layer(&query_link(index)?)
}

fn parse_layer(told: &[u8]) -> io::Result<LinkLayer> {
    match parse_hardware_type(told)? {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(LinkLayer::Ethernet),
        kind if GRE_HARDWARE_TYPES.contains(&kind)
            && has_tunnel_header(told.get(IFINFOMSG_BYTES..).unwrap_or_default()) =>
        {
            let why = "packets of a GRE tunnel without a remote of its own begin with the tunnel's header";
            Err(io::Error::other(why))
        }
        kind if IP_HARDWARE_TYPES.contains(&kind) => Ok(LinkLayer::Ip),
        kind => Err(io::Error::other(format!("packets of its kind (ARPHRD {kind}) cannot be read"))),
    }
}

/// The size of a `struct ifinfomsg`, after which attributes come.
pub(super) const IFINFOMSG_BYTES: usize = 16;

/// What the kernel tells of a device.
pub(super) fn query_link(index: u32) -> io::Result<Vec<u8>> {
    let mut kernel = NetlinkSocket::open(NetlinkFamily::Route)?;
    // A `struct ifinfomsg` that names the device alone.
    kernel.request(RTM_GETLINK, 0, [0, index, 0, 0].map(u32::to_ne_bytes).as_flattened())?;
    kernel.read_one()?
}

/// Whether packets at a device of GRE begin with the header of the tunnel, because that says where each comes from, or
/// is to go: where the tunnel has no end, and where it has many by IPv4.
fn has_tunnel_header(told: &[u8]) -> bool {
    let Some(tunnel) = attribute(told, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_DATA)) else {
        return false;
    };
    let is_one_end = |remote: IpAddr| match remote {
        IpAddr::V4(remote) => !remote.is_unspecified() && !remote.is_multicast(),
        IpAddr::V6(remote) => !remote.is_unspecified(),
    };
    let has_end = attribute(tunnel, IFLA_GRE_REMOTE).and_then(ip).is_some_and(is_one_end);
    !has_end && attribute(tunnel, IFLA_GRE_COLLECT_METADATA).is_none()
}

/// The type of a device, as `net/if_arp.h` numbers types; it stands in the second 16 bits of a `struct ifinfomsg`.
fn parse_hardware_type(told: &[u8]) -> io::Result<u16> {
    let kind = told.get(2..).and_then(|it| it.first_chunk()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(u16::from_ne_bytes(*kind))
}

/// The layers at which packets of these devices begin; a node that has no device yet soon has one of Ethernet.
pub(crate) fn query_layers(devices: &[Device]) -> Vec<LinkLayer> {
    let found: BTreeSet<LinkLayer> =
        devices.iter().filter_map(|device| query_layer(device.index).ok()).collect();
    if found.is_empty() { vec![LinkLayer::Ethernet] } else { found.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::encode_attribute;

    /// What the kernel tells of a device of that type, with these attributes of its own.
    fn told(kind: u16, own: &[Vec<u8>]) -> Vec<u8> {
        let info = encode_attribute(IFLA_LINKINFO, &encode_attribute(IFLA_INFO_DATA, &own.concat()));
        [&[0, 0], &kind.to_ne_bytes()[..], &[0; IFINFOMSG_BYTES - 4], &info].concat()
    }

    fn remote(address: &str) -> Vec<u8> {
        match address.parse().unwrap() {
            IpAddr::V4(address) => encode_attribute(IFLA_GRE_REMOTE, &address.octets()),
            IpAddr::V6(address) => encode_attribute(IFLA_GRE_REMOTE, &address.octets()),
        }
    }

    /// A type, the other end of a tunnel, and whether each packet has an end of its own; whether programs can read it.
    const TUNNELS: [(u16, &str, bool, bool); 9] = [
        (778, "192.0.2.9", false, true),
        (778, "0.0.0.0", false, false),
        (778, "224.0.0.9", false, false),
        (778, "0.0.0.0", true, true),
        (823, "2001:db8::9", false, true),
        (823, "::", false, false),
        (823, "::", true, true),
        // IPIP and SIT have no header of their own to show, whether they have an end or not.
        (768, "0.0.0.0", false, true),
        (776, "0.0.0.0", false, true),
    ];

    #[test]
    fn a_tunnel_whose_packets_begin_with_its_own_header_is_refused_by_name() {
        for (kind, end, has_many, is_read) in TUNNELS {
            let mut own = vec![remote(end)];
            own.extend(has_many.then(|| encode_attribute(IFLA_GRE_COLLECT_METADATA, &[])));
            let layer = parse_layer(&told(kind, &own));
            assert_eq!(layer.as_ref().ok(), is_read.then_some(&LinkLayer::Ip), "{kind} to {end}, {has_many}");
            assert!(layer.err().is_none_or(|why| why.to_string().contains("GRE")), "{kind} to {end}");
        }
    }
}
