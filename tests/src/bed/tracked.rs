//! The connections that the kernel of a place tracks (conntrack), by netlink: not every kernel shows them in a file.
//!
//! Invariant: a list is whole or an error, and bounded in time and bytes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket};
use nix::sys::time::TimeVal;

use super::ask::Transport;
use super::{Bed, BedError, Location, at};

/// The kernel answers at once; it may be emulated.
const ANSWER_TIME_MAX: i64 = 20;
/// Some 100,000 connections.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// One datagram of a list.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// As `linux/netlink.h` numbers them.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
/// Of an `nfgenmsg`, which says nothing here: all families are meant.
const ANY: [u8; 4] = [0; 4];
/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW`, `_GET` and `_DELETE`.
const NEW: u16 = 0x100;
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const ORDER: u16 = 5;

/// As `linux/netfilter/nfnetlink_conntrack.h` numbers them.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// A connection by its addresses, before and after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tracked {
    pub transport: Transport,
    /// The client, and the address that it dialled.
    pub ends: [SocketAddr; 2],
    /// The address that answers, and the one that it answers to.
    pub answer: [SocketAddr; 2],
}

impl Tracked {
    /// A connection without translation.
    pub fn plain(transport: Transport, from: SocketAddr, to: SocketAddr) -> Self {
        Self { transport, ends: [from, to], answer: [to, from] }
    }
}

/// The connections by TCP and UDP that are tracked there.
pub fn tracked(bed: &Bed, place: Location<'_>) -> Result<Vec<Tracked>, BedError> {
    let mut found = Vec::new();
    let mut each = |kind, body: &[u8]| found.extend((kind == NEW).then(|| connection(body)).flatten());
    bed.within(place, || ask(GET, DUMP, &mut each))?.map_err(at("list", Path::new("conntrack")))?;
    Ok(found)
}

/// Has the kernel of that place forget them all.
pub fn untrack(bed: &Bed, place: Location<'_>) -> Result<(), BedError> {
    bed.within(place, || ask(DELETE, ORDER, &mut |_, _| ()))?.map_err(at("empty", Path::new("conntrack")))
}

fn ask(question: u16, flags: u16, each: &mut impl FnMut(u16, &[u8])) -> io::Result<()> {
    let (family, protocol) = (AddressFamily::Netlink, SockProtocol::NetlinkNetFilter);
    let kernel = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    setsockopt(&kernel, ReceiveTimeout, &TimeVal::new(ANSWER_TIME_MAX, 0))?;
    let mut kernel = File::from(kernel);
    let length = u32::try_from(HEADER + ANY.len()).map_err(io::Error::other)?;
    let header = [&length.to_ne_bytes()[..], &question.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
    kernel.write_all(&[&header.concat()[..], &ANY].concat())?;
    let (mut datagram, mut total) = (vec![0; DATAGRAM_BYTES_MAX], 0);
    while total < ANSWER_BYTES_MAX {
        let count = kernel.read(&mut datagram)?;
        total += count.max(1);
        for (kind, body) in messages(datagram.get(..count).unwrap_or_default()) {
            match kind {
                NLMSG_DONE | NLMSG_ERROR => return ended(body),
                _ => each(kind, body),
            }
        }
    }
    Err(io::Error::other("the kernel's answer has no end"))
}

fn ended(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno)) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
    }
}

fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Type and value of each attribute, without the flag of those that hold others.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn attribute(within: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(within).find(|(it, _)| *it == kind).map(|(_, value)| value)
}

/// `None`: it is neither of TCP nor of UDP.
fn connection(body: &[u8]) -> Option<Tracked> {
    let body = body.get(ANY.len()..)?;
    let (transport, ends) = tuple(attribute(body, CTA_TUPLE_ORIG)?)?;
    let (_, answer) = tuple(attribute(body, CTA_TUPLE_REPLY)?)?;
    Some(Tracked { transport, ends, answer })
}

fn tuple(value: &[u8]) -> Option<(Transport, [SocketAddr; 2])> {
    let protocol = attribute(value, CTA_TUPLE_PROTO)?;
    let port = |kind| Some(u16::from_be_bytes(attribute(protocol, kind)?.try_into().ok()?));
    let transport = match attribute(protocol, CTA_PROTO_NUM)? {
        [6] => Transport::Tcp,
        [17] => Transport::Udp,
        _ => return None,
    };
    // Where from comes before where to, in either family.
    let mut addresses = attributes(attribute(value, CTA_TUPLE_IP)?).filter_map(|(_, value)| ip(value));
    let from = SocketAddr::new(addresses.next()?, port(CTA_PROTO_SRC_PORT)?);
    Some((transport, [from, SocketAddr::new(addresses.next()?, port(CTA_PROTO_DST_PORT)?)]))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(value).ok().map(IpAddr::from))
}
