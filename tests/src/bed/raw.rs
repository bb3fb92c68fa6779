//! Packets that no ordinary socket sends: fragments in any order, SYNs without a handshake, segments of no connection.
//!
//! Invariant: their number is bounded, and they follow the routes of the bed's own network.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use socket2::{Domain, Protocol, Socket, Type};

use super::ask::Transport;
use super::probe_packet::ProbePacket;

/// A multiple of 8, and small enough for any path.
const FRAGMENT_BYTES: usize = 1024;

const HEADER_BYTES: usize = 20;

const UDP_HEADER_BYTES: usize = 8;

/// More SYNs than any flow table holds, and seconds of work.
const FLOOD_MAX: u32 = 2_000_000;

const MORE_FRAGMENTS: u16 = 0x2000;

/// With this protocol the kernel sends headers as given.
fn socket() -> io::Result<Socket> {
    let raw = Protocol::from(nix::libc::IPPROTO_RAW);
    Socket::new(Domain::IPV4, Type::RAW, Some(raw))
}

/// A header without options. The kernel fills in length and checksum.
fn header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, id: u16, fragment: u16) -> [u8; HEADER_BYTES] {
    let ([a, b, c, d], [e, f, g, h]) = (from.octets(), to.octets());
    let ([i, j], [k, l]) = (id.to_be_bytes(), fragment.to_be_bytes());
    [0x45, 0, 0, 0, i, j, k, l, 64, protocol, 0, 0, a, b, c, d, e, f, g, h]
}

/// A datagram without a checksum, in fragments, the last one first.
pub(super) fn backwards(from: SocketAddrV4, to: SocketAddrV4, bytes: &[u8]) -> io::Result<()> {
    let length = u16::try_from(bytes.len() + UDP_HEADER_BYTES).map_err(io::Error::other)?;
    let ports = [from.port(), to.port(), length, 0].map(u16::to_be_bytes).concat();
    let datagram = [&ports, bytes].concat();
    let socket = socket()?;
    let id = from.port() ^ length;
    let last = datagram.len().saturating_sub(1) / FRAGMENT_BYTES;
    for (index, piece) in datagram.chunks(FRAGMENT_BYTES).enumerate().collect::<Vec<_>>().into_iter().rev() {
        let offset = u16::try_from(index * FRAGMENT_BYTES / 8).map_err(io::Error::other)?;
        let fragment = offset | if index == last { 0 } else { MORE_FRAGMENTS };
        let head = header(*from.ip(), *to.ip(), 17, id, fragment);
        socket.send_to(&[&head, piece].concat(), &to.into())?;
    }
    Ok(())
}

/// A packet that belongs to no connection and opens none.
#[derive(Clone, Copy, Debug)]
pub enum Unknown {
    /// A reset.
    Reset,
    /// An end without an acknowledgement.
    End,
    /// Data of an SCTP association.
    Data,
    /// A fragment of a datagram without its first one.
    Fragment,
}

impl Unknown {
    /// The transport, and the bytes behind the IP header.
    fn body(self, from: u16, to: u16) -> (u8, Vec<u8>) {
        let ports = [from, to].map(u16::to_be_bytes).concat();
        let tcp = |flags| [&ports, &[0, 0, 0, 7, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0][..]].concat();
        match self {
            Self::Reset => (6, tcp(4)),
            Self::End => (6, tcp(1)),
            Self::Data => (132, [&ports, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 3, 0, 8, 0, 0, 0, 0][..]].concat()),
            Self::Fragment => (17, vec![0; 64]),
        }
    }
}

/// The number of the IPv6 fragment header, and where a second fragment of an ordinary link begins, in eight bytes.
const FRAGMENT_HEADER: u8 = 44;
const FRAGMENT_OFFSET: u16 = 185;

/// An IP packet. `fragment`: its id, and its offset in units of eight bytes.
fn packet(
    from: SocketAddr,
    to: SocketAddr,
    protocol: u8,
    fragment: Option<(u16, u16)>,
    body: &[u8],
) -> Vec<u8> {
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            let (id, offset) = fragment.unwrap_or((1, 0));
            [&header(*from.ip(), *to.ip(), protocol, id, offset), body].concat()
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            let extension = fragment.map(|(id, offset)| {
                let [[i, j], [k, l]] = [id, offset * 8].map(u16::to_be_bytes);
                vec![protocol, 0, k, l, 0, 0, i, j]
            });
            let next = if extension.is_some() { FRAGMENT_HEADER } else { protocol };
            let payload = [&extension.unwrap_or_default(), body].concat();
            let [high, low] = u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes();
            let start = [0x60, 0, 0, 0, high, low, next, 64];
            [&start, &from.ip().octets()[..], &to.ip().octets()[..], &payload].concat()
        }
        _ => Vec::new(),
    }
}

/// Sends such packets from so many ports, or so many fragments.
pub fn send_unknown(from: SocketAddr, to: SocketAddr, kind: Unknown, count: u16) -> io::Result<()> {
    let raw = Protocol::from(nix::libc::IPPROTO_RAW);
    let socket = Socket::new(Domain::for_address(to), Type::RAW, Some(raw))?;
    let host = SocketAddr::new(to.ip(), 0);
    for number in 1..=count {
        let (transport, body) = kind.body(from.port() + number, to.port());
        let fragment = matches!(kind, Unknown::Fragment).then_some((number, FRAGMENT_OFFSET));
        socket.send_to(&packet(from, to, transport, fragment, &body), &host.into())?;
    }
    Ok(())
}

/// Sends SYNs from 250 addresses of the range, then from further ports. Returns how many were sent.
pub(super) fn flood(range: Ipv4Addr, to: SocketAddrV4, count: u32) -> io::Result<u32> {
    let socket = socket()?;
    let [a, b, c, _] = range.octets();
    let mut sent = 0;
    for number in 0..count.min(FLOOD_MAX) {
        let last = u8::try_from(1 + number % 250).map_err(io::Error::other)?;
        let port = 1024 + u16::try_from(number / 250 % 60_000).map_err(io::Error::other)?;
        let from = SocketAddrV4::new(Ipv4Addr::new(a, b, c, last), port);
        let probe = ProbePacket { number, transport: Transport::Tcp, from: from.into(), to: to.into() };
        let packet = [header(*from.ip(), *to.ip(), 6, 0, 0).as_slice(), &probe.body()].concat();
        // A queue on the path may be full for a while; floods lose packets.
        sent += u32::from(socket.send_to(&packet, &to.into()).is_ok());
    }
    Ok(sent)
}
