//! Subscribes to changes of drivers' XDP properties.
//!
//! Invariant: a socket sees the network namespace of the thread that opened it, and never blocks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::driver::resolve_family;
use crate::netlink::{NetlinkFamily, attribute, attributes, subscribe};
use crate::sys;

/// From `linux/genetlink.h`.
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;

/// The groups to join: XDP features of drivers (Linux 6.3), and settings by `ethtool` (Linux 5.6).
const GROUPS: [(&[u8], &[u8]); 2] = [(b"netdev\0", b"mgmt\0"), (b"ethtool\0", b"monitor\0")];

/// Opens a socket that receives changes of drivers. An error: this kernel reports none.
pub fn subscribe_driver_changes() -> io::Result<OwnedFd> {
    let socket = subscribe(NetlinkFamily::Generic, 0)?;
    let join = |(family, name)| sys::join_group(socket.as_fd(), resolve_group(family, name)?);
    let joined = GROUPS.map(join);
    if joined.iter().any(Result::is_ok) {
        return Ok(socket);
    }
    joined.into_iter().collect::<io::Result<()>>().map(|()| socket)
}

fn resolve_group(named: &[u8], name: &[u8]) -> io::Result<u32> {
    let described = resolve_family(named)?.2;
    let groups = attribute(&described, CTRL_ATTR_MCAST_GROUPS).unwrap_or_default();
    let has_name = |group: &&[u8]| attribute(group, CTRL_ATTR_MCAST_GRP_NAME) == Some(name);
    let found = attributes(groups).map(|(_, group)| group).find(has_name);
    let number = found.and_then(|group| attribute(group, CTRL_ATTR_MCAST_GRP_ID)?.first_chunk());
    Ok(u32::from_ne_bytes(*number.ok_or(io::ErrorKind::NotFound)?))
}
