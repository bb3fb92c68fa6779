//! Lists the conntrack entries of a place by netlink, because not every kernel shows them in a file.
//!
//! Invariant: a list is complete or an error, and bounded in time and bytes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use holdfast_datapath::netlink::{
    NLM_F_ACK, NLM_F_DUMP, NetlinkFamily, NetlinkSocket, attribute, attributes, ip,
};

use super::ask::Transport;
use super::{Bed, BedError, Location, at};

/// Some 100,000 connections.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// An empty `nfgenmsg`: all families.
const ANY: [u8; 4] = [0; 4];
/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW`, `_GET` and `_DELETE`.
const NEW: u16 = 0x100;
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;

/// As `linux/netfilter/nfnetlink_conntrack.h` numbers them.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// A tracked connection with its addresses before and after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrackedConnection {
    pub transport: Transport,
    /// The client, and the address that it dialled.
    pub ends: [SocketAddr; 2],
    /// The replying address, and the one that it replies to.
    pub answer: [SocketAddr; 2],
}

impl TrackedConnection {
    /// A connection without translation.
    pub fn plain(transport: Transport, from: SocketAddr, to: SocketAddr) -> Self {
        Self { transport, ends: [from, to], answer: [to, from] }
    }
}

/// The tracked TCP and UDP connections of a place.
pub fn tracked(bed: &Bed, place: Location<'_>) -> Result<Vec<TrackedConnection>, BedError> {
    let mut found = Vec::new();
    let mut each = |kind, body: &[u8]| found.extend((kind == NEW).then(|| connection(body)).flatten());
    bed.within(place, || ask(GET, NLM_F_DUMP, &mut each))?.map_err(at("list", Path::new("conntrack")))?;
    Ok(found)
}

/// Deletes all conntrack entries of a place.
pub fn untrack(bed: &Bed, place: Location<'_>) -> Result<(), BedError> {
    bed.within(place, || ask(DELETE, NLM_F_ACK, &mut |_, _| ()))?.map_err(at("empty", Path::new("conntrack")))
}

fn ask(question: u16, flags: u16, each: &mut impl FnMut(u16, &[u8])) -> io::Result<()> {
    let mut kernel = NetlinkSocket::open(NetlinkFamily::Netfilter)?;
    kernel.request(question, flags, &ANY)?;
    kernel.read_reply(ANSWER_BYTES_MAX, |message| each(message.kind, message.body)).map(drop)
}

/// `None`: neither TCP nor UDP.
fn connection(body: &[u8]) -> Option<TrackedConnection> {
    let body = body.get(ANY.len()..)?;
    let (transport, ends) = tuple(attribute(body, CTA_TUPLE_ORIG)?)?;
    let (_, answer) = tuple(attribute(body, CTA_TUPLE_REPLY)?)?;
    Some(TrackedConnection { transport, ends, answer })
}

fn tuple(value: &[u8]) -> Option<(Transport, [SocketAddr; 2])> {
    let protocol = attribute(value, CTA_TUPLE_PROTO)?;
    let port = |kind| Some(u16::from_be_bytes(attribute(protocol, kind)?.try_into().ok()?));
    let transport = match attribute(protocol, CTA_PROTO_NUM)? {
        [6] => Transport::Tcp,
        [17] => Transport::Udp,
        _ => return None,
    };
    // The source comes before the destination, in either family.
    let mut addresses = attributes(attribute(value, CTA_TUPLE_IP)?).filter_map(|(_, value)| ip(value));
    let from = SocketAddr::new(addresses.next()?, port(CTA_PROTO_SRC_PORT)?);
    Some((transport, [from, SocketAddr::new(addresses.next()?, port(CTA_PROTO_DST_PORT)?)]))
}
