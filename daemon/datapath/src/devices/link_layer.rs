//! Which devices there are, and where a packet begins at one.

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::net::if_::if_nameindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::load::Layer;

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
    let asking = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: a request of zeros is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_ifru.ifru_ifindex = i32::try_from(index).unwrap_or_default();
    ask(&asking, libc::SIOCGIFNAME, &mut request)?;
    ask(&asking, libc::SIOCGIFHWADDR, &mut request)?;
    // SAFETY: the kernel has written this part, and any bytes are a value of it.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

fn ask(socket: &OwnedFd, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the kernel reads and writes one request, which outlives the call.
    let returned = unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut *request) };
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
