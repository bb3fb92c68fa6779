//! Which devices there are, and where a packet begins at one.

use std::fs::File;
use std::io::{self, Read, Write};

use nix::net::if_::if_nameindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::load::Layer;
use crate::netlink::{NLM_F_REQUEST, PIECE, ending, message, messages};

/// From `linux/rtnetlink.h`.
const RTM_GETLINK: u16 = 18;

/// Types of devices at which packets begin with the header of IP: PPP, raw IP, tunnels (IPIP, IP6IP6, SIT, GRE, GRE
/// over IPv6), and TUN and WireGuard, which have none.
const OF_IP: [u16; 8] = [512, 519, 768, 769, 776, 778, 823, 0xfffe];

/// The numbers of all devices of this thread's network namespace.
pub(super) fn all() -> Vec<u32> {
    let Ok(devices) = if_nameindex() else { return Vec::new() };
    devices.iter().map(nix::net::if_::Interface::index).collect()
}

/// Where a packet begins at a device.
pub(super) fn layer_of(index: u32) -> io::Result<Layer> {
    match kind_of(index)? {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(Layer::Ethernet),
        kind if OF_IP.contains(&kind) => Ok(Layer::Ip),
        kind => Err(io::Error::other(format!("packets of its kind (ARPHRD {kind}) cannot be read"))),
    }
}

/// As `net/if_arp.h` numbers them.
fn kind_of(index: u32) -> io::Result<u16> {
    let protocol = SockProtocol::NetlinkRoute;
    let mut kernel: File =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?.into();
    // A `struct ifinfomsg` that names the device alone.
    let fields = [0, index, 0, 0].map(u32::to_ne_bytes);
    kernel.write_all(&message(RTM_GETLINK, NLM_F_REQUEST, 0, fields.as_flattened()))?;
    let mut answer = vec![0; PIECE];
    let length = kernel.read(&mut answer)?;
    told_kind(answer.get(..length).unwrap_or_default())
}

/// The kind that an answer tells, in the second 16 bits of its `struct ifinfomsg`.
fn told_kind(answer: &[u8]) -> io::Result<u16> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let (message, body) = messages(answer).next().ok_or_else(invalid)?;
    ending(message, body).unwrap_or(Ok(()))?;
    let kind = body.get(2..).and_then(|it| it.first_chunk()).ok_or_else(invalid)?;
    Ok(u16::from_ne_bytes(*kind))
}
