//! Which devices there are, and where a packet begins at one.

use std::collections::BTreeSet;
use std::io;

use nix::net::if_::if_nameindex;

use super::Device;
use crate::load::Layer;
use crate::netlink::{Conversation, Part};

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

/// The size of a `struct ifinfomsg`, after which attributes come.
pub(super) const HEADER: usize = 16;

/// What the kernel tells of a device.
pub(super) fn describe(index: u32) -> io::Result<Vec<u8>> {
    let mut kernel = Conversation::open(Part::Routes)?;
    // A `struct ifinfomsg` that names the device alone.
    kernel.ask(RTM_GETLINK, 0, [0, index, 0, 0].map(u32::to_ne_bytes).as_flattened())?;
    kernel.one()?
}

/// The type of a device, as `net/if_arp.h` numbers types; it stands in the second 16 bits of a `struct ifinfomsg`.
fn kind_of(index: u32) -> io::Result<u16> {
    let told = describe(index)?;
    let kind = told.get(2..).and_then(|it| it.first_chunk()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(u16::from_ne_bytes(*kind))
}

/// The layers at which packets of these devices begin; a node that has no device yet soon has one of Ethernet.
pub(crate) fn layers_of(devices: &[Device]) -> Vec<Layer> {
    let found: BTreeSet<Layer> = devices.iter().filter_map(|device| layer_of(device.index).ok()).collect();
    if found.is_empty() { vec![Layer::Ethernet] } else { found.into_iter().collect() }
}
