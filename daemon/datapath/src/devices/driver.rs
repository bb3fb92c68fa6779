//! What the kernel tells of a device that a program for frames has to do with.
//!
//! Invariant: found by asking, never by the name of a driver. What cannot be asked is not there.

#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::link_layer;
use crate::netlink::{Conversation, Part, attribute, with_kind};

/// From `linux/if_link.h`.
const IFLA_LINKINFO: u16 = 18;
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const XDP_ATTACHED_DRV: u8 = 1;
const XDP_ATTACHED_SKB: u8 = 2;

/// From `linux/genetlink.h` and `linux/netdev.h`.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
/// The bytes before the attributes of a generic message.
const GENERIC: usize = 4;

/// From `linux/ethtool.h`.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// Where a program gets frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// Behind it, from packets that the kernel has made.
    Generic,
}

impl Mode {
    /// As answers spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// How a device has a program for frames, and of which kind the device is; no kind: it is hardware, or stands for some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Driver {
    pub(super) mode: Option<Mode>,
    kind: String,
}

impl Driver {
    pub(super) fn of(index: u32) -> io::Result<Self> {
        link_layer::describe(index).map(|told| Self::read(told.get(link_layer::HEADER..).unwrap_or_default()))
    }

    fn read(told: &[u8]) -> Self {
        let attached = attribute(told, IFLA_XDP).and_then(|xdp| attribute(xdp, IFLA_XDP_ATTACHED));
        let mode = match attached.and_then(<[u8]>::first) {
            Some(&XDP_ATTACHED_DRV) => Some(Mode::Native),
            Some(&XDP_ATTACHED_SKB) => Some(Mode::Generic),
            _ => None,
        };
        let kind = attribute(told, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_KIND));
        let kind = kind.map(|kind| kind.split(|byte| *byte == 0).next().unwrap_or_default());
        Self { mode, kind: String::from_utf8_lossy(kind.unwrap_or_default()).into_owned() }
    }

    /// Whether a bond or a team: its frames come by its members, and bear their numbers.
    pub(super) fn has_members(&self) -> bool {
        matches!(self.kind.as_str(), "bond" | "team")
    }

    pub(super) fn is_veth(&self) -> bool {
        self.kind == "veth"
    }

    /// Whether the device, which has the program, sends what the program gives it. Where the kernel does not tell,
    /// hardware does.
    pub(super) fn sends_frames(&self, index: u32) -> bool {
        sends_frames(index).unwrap_or(self.kind.is_empty())
    }
}

/// Whether a device sends what programs give it at the moment. An error: this kernel does not tell (before Linux 6.3).
pub(crate) fn sends_frames(index: u32) -> io::Result<bool> {
    features(index).map(|features| features & NETDEV_XDP_ACT_NDO_XMIT != 0)
}

/// What the driver of a device can do with frames, as far as this kernel tells it.
fn features(index: u32) -> io::Result<u64> {
    let mut kernel = Conversation::open(Part::Generic)?;
    let family =
        ask(&mut kernel, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &with_kind(CTRL_ATTR_FAMILY_NAME, b"netdev\0"))?;
    let family = attribute(&family, CTRL_ATTR_FAMILY_ID).and_then(<[u8]>::first_chunk);
    let family = u16::from_ne_bytes(*family.ok_or(io::ErrorKind::InvalidData)?);
    let device = with_kind(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let told = ask(&mut kernel, family, NETDEV_CMD_DEV_GET, &device)?;
    let features = attribute(&told, NETDEV_A_DEV_XDP_FEATURES).and_then(<[u8]>::first_chunk);
    Ok(u64::from_ne_bytes(*features.ok_or(io::ErrorKind::InvalidData)?))
}

/// Asks a family of generic netlink, and returns the attributes of the answer.
fn ask(kernel: &mut Conversation, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    kernel.ask(family, 0, &[&[command, 1, 0, 0], attributes].concat())?;
    let mut told = kernel.one()??;
    Ok(told.split_off(GENERIC.min(told.len())))
}

/// Whether a program at the device sees the tags of VLANs. Where the device takes them off before, a program cannot tell
/// a frame of a VLAN from another one.
pub(crate) fn knows_tags(index: u32) -> io::Result<bool> {
    let name = nix::net::if_::if_indextoname(index)?;
    let mut asked = [ETHTOOL_GFLAGS, 0];
    // SAFETY: a request of zeros asks for nothing; each of its fields may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = asked.as_mut_ptr().cast();
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
    // SAFETY: the kernel reads the request and the word that it points to, and writes the second one.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let [_, flags] = asked;
    Ok(flags & ETH_FLAG_RXVLAN == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_of_a_device_is_read() {
        let attached = |mode: u8| with_kind(IFLA_XDP, &with_kind(IFLA_XDP_ATTACHED, &[mode]));
        let of_kind = |kind: &[u8]| with_kind(IFLA_LINKINFO, &with_kind(IFLA_INFO_KIND, kind));
        let read = |told: &[Vec<u8>]| Driver::read(&told.concat());
        assert_eq!(read(&[]), Driver::default());
        assert_eq!(read(&[attached(0)]).mode, None);
        assert_eq!(read(&[attached(XDP_ATTACHED_DRV)]).mode, Some(Mode::Native));
        assert_eq!(read(&[attached(XDP_ATTACHED_SKB)]).mode, Some(Mode::Generic));
        let veth = read(&[of_kind(b"veth\0"), attached(XDP_ATTACHED_DRV)]);
        assert!(veth.is_veth() && veth.mode == Some(Mode::Native) && !veth.has_members());
        assert!(read(&[of_kind(b"bond\0")]).has_members() && read(&[of_kind(b"team")]).has_members());
    }
}
