//! Two SCTP endpoints over raw sockets, as far as a test needs them; the kernel needs no SCTP.
//!
//! Invariant: each received packet has a correct CRC32c over its whole length; any other is an error.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::{Bed, BedError, Location, at};

const SCTP: i32 = 132;

/// Ports, tag and checksum. Chunks follow, each with its kind, flags and length first.
const HEADER_BYTES: usize = 12;
const SUM_AT: usize = 8;
const CHUNK_BYTES: usize = 4;

const PACKET_BYTES: usize = 65_536;

/// The polynomial of CRC32c, with the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Kinds of chunks.
pub const DATA: u8 = 0;
pub const INIT: u8 = 1;
pub const INIT_ACK: u8 = 2;
pub const SACK: u8 = 3;
pub const SHUTDOWN: u8 = 7;
pub const SHUTDOWN_ACK: u8 = 8;
pub const COOKIE_ECHO: u8 = 10;
pub const COOKIE_ACK: u8 = 11;
pub const SHUTDOWN_COMPLETE: u8 = 14;

/// An SCTP endpoint at one port.
#[derive(Debug)]
pub struct End {
    // A raw socket: packets have no IP header.
    socket: UdpSocket,
    is_four: bool,
    port: u16,
}

/// A received packet: its source and its first chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedChunk {
    pub from: SocketAddr,
    pub tag: u32,
    pub kind: u8,
    pub content: Vec<u8>,
}

impl End {
    /// Opens an endpoint in the network of a place.
    pub fn open(bed: &Bed, place: Location<'_>, is_four: bool, port: u16) -> Result<Self, BedError> {
        let domain = if is_four { Domain::IPV4 } else { Domain::IPV6 };
        let socket = bed.within(place, || Socket::new(domain, Type::RAW, Some(Protocol::from(SCTP))))?;
        let socket = socket.map_err(at("open a raw socket in", std::path::Path::new("a network")))?;
        Ok(Self { socket: socket.into(), is_four, port })
    }

    /// Sends one chunk.
    pub fn say(&self, to: SocketAddr, tag: u32, kind: u8, content: &[u8]) -> io::Result<()> {
        let length = u16::try_from(content.len() + CHUNK_BYTES).map_err(io::Error::other)?;
        let ports = [self.port, to.port()].map(u16::to_be_bytes).concat();
        let chunk = [&[kind, 0][..], &length.to_be_bytes(), content].concat();
        let mut packet = [&ports[..], &tag.to_be_bytes(), &[0; 4], &chunk].concat();
        packet.resize(packet.len().next_multiple_of(4), 0);
        let sum = crc32c(&packet).to_le_bytes();
        packet.splice(SUM_AT..HEADER_BYTES, sum);
        self.socket.send_to(&packet, SocketAddr::new(to.ip(), 0)).map(drop)
    }

    /// The next chunk for this port, within this time.
    pub fn hear(&self, within: Duration) -> io::Result<ReceivedChunk> {
        let until = Instant::now() + within;
        let mut buffer = vec![0; PACKET_BYTES];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            let (count, from) = match self.socket.recv_from(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                received => received?,
            };
            if let Some(heard) = self.read(from.ip(), buffer.get(..count).unwrap_or_default())? {
                return Ok(heard);
            }
        }
    }

    /// `None`: the packet is for another port.
    fn read(&self, from: IpAddr, bytes: &[u8]) -> io::Result<Option<ReceivedChunk>> {
        let short = || io::Error::new(ErrorKind::InvalidData, "a packet that is too short");
        // The kernel does not pass on IPv6 headers.
        let head = if self.is_four { usize::from(bytes.first().ok_or_else(short)? & 15) * 4 } else { 0 };
        let packet =
            bytes.get(head..).filter(|it| it.len() >= HEADER_BYTES + CHUNK_BYTES).ok_or_else(short)?;
        let two =
            |at: usize| packet.get(at..at + 2).and_then(|it| Some(u16::from_be_bytes(it.try_into().ok()?)));
        if two(2) != Some(self.port) {
            return Ok(None);
        }
        if !is_right(packet) {
            let what = format!("a packet from {from} with a wrong sum: {packet:02x?}");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        let length = usize::from(two(HEADER_BYTES + 2).ok_or_else(short)?);
        let content = packet.get(HEADER_BYTES + CHUNK_BYTES..HEADER_BYTES + length).ok_or_else(short)?;
        let tag = packet.get(4..8).and_then(|it| Some(u32::from_be_bytes(it.try_into().ok()?)));
        Ok(Some(ReceivedChunk {
            from: SocketAddr::new(from, two(0).ok_or_else(short)?),
            tag: tag.ok_or_else(short)?,
            kind: *packet.get(HEADER_BYTES).ok_or_else(short)?,
            content: content.to_vec(),
        }))
    }
}

fn is_right(packet: &[u8]) -> bool {
    let mut plain = packet.to_vec();
    let sum: Vec<u8> = plain.splice(SUM_AT..HEADER_BYTES, [0; 4]).collect();
    sum == crc32c(&plain).to_le_bytes()
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |register: u32, _| (register >> 1) ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
    !bytes.iter().fold(u32::MAX, |register, byte| (0..8).fold(register ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_standards_example_is_right() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
