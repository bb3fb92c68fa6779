//! Crafts packets as any host may send them, and parses them independently of the programs.
//!
//! Invariant: checksums are computed here over all covered bytes, never from differences.

use std::net::{IpAddr, SocketAddr};

use super::sctp::{self, SCTP};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

const ETHERNET: usize = 14;

/// A packet to send.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) transport: u8,
    pub(super) flags: u8,
    /// The number of a TCP segment.
    pub(super) sequence: u32,
    pub(super) payload: Vec<u8>,
    /// IPv4: options, a multiple of four bytes. IPv6: whole extension headers, each with its number.
    pub(super) options: Vec<u8>,
    pub(super) extensions: Vec<(u8, Vec<u8>)>,
    /// The datagram's id, the fragment's offset, and whether more follows.
    pub(super) fragment: Option<(u16, u16, bool)>,
    /// UDP over IPv4 without a checksum.
    pub(super) no_sum: bool,
    pub(super) has_ethernet: bool,
}

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Sent {
    pub(super) fn tcp(from: &str, to: &str, flags: u8) -> Self {
        Self {
            from: address(from),
            to: address(to),
            transport: TCP,
            flags,
            sequence: 7,
            payload: Vec::new(),
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
            no_sum: false,
            has_ethernet: true,
        }
    }

    pub(super) fn udp(from: &str, to: &str, payload: &[u8]) -> Self {
        Self { transport: UDP, payload: payload.to_vec(), ..Self::tcp(from, to, 0) }
    }

    /// With the chunks that correspond to TCP's flags.
    pub(super) fn sctp(from: &str, to: &str, flags: u8, content: &[u8]) -> Self {
        Self::chunks(from, to, sctp::chunk_of(flags, content))
    }

    pub(super) fn chunks(from: &str, to: &str, chunks: Vec<u8>) -> Self {
        Self { transport: SCTP, payload: chunks, ..Self::tcp(from, to, 0) }
    }

    /// Over that transport, with the payload if its flags allow one.
    pub(super) fn by(transport: u8, from: &str, to: &str, flags: u8, payload: &[u8]) -> Self {
        match transport {
            TCP => Self { payload: payload.to_vec(), ..Self::tcp(from, to, flags) },
            SCTP => Self::sctp(from, to, flags, payload),
            _ => Self::udp(from, to, payload),
        }
    }

    /// The bytes of the frame.
    pub(super) fn frame(&self) -> Vec<u8> {
        let kind: [u8; 2] = if self.from.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        let mut frame = Vec::new();
        if self.has_ethernet {
            frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            frame.extend(kind);
        }
        frame.extend(self.packet());
        frame
    }

    /// The bytes from the IP header on.
    pub(super) fn packet(&self) -> Vec<u8> {
        let is_later = self.fragment.is_some_and(|(_, offset, _)| offset > 0);
        let segment = if is_later { self.payload.clone() } else { self.segment() };
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.packet4(from.octets(), to.octets(), &segment),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.packet6(from.octets(), to.octets(), &segment),
            _ => panic!("one family"),
        }
    }

    fn segment(&self) -> Vec<u8> {
        let mut segment = Vec::new();
        segment.extend(self.from.port().to_be_bytes());
        segment.extend(self.to.port().to_be_bytes());
        let at = if self.transport == TCP {
            segment.extend(self.sequence.to_be_bytes());
            segment.extend([0, 0, 0, 9, 0x50, self.flags, 1, 0, 0, 0, 0, 0]);
            16
        } else if self.transport == SCTP {
            segment.extend([0, 0, 0, 7, 0, 0, 0, 0]);
            segment.extend(&self.payload);
            let sum = sctp::sum_of(&segment);
            segment[sctp::SUM..sctp::HEADER].copy_from_slice(&sum);
            return segment;
        } else {
            let length = u16::try_from(8 + self.payload.len()).unwrap();
            segment.extend(length.to_be_bytes());
            segment.extend([0, 0]);
            6
        };
        segment.extend(&self.payload);
        if !self.no_sum {
            let sum = sum_of_segment(self.from.ip(), self.to.ip(), self.transport, &segment);
            segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        segment
    }

    fn packet4(&self, from: [u8; 4], to: [u8; 4], segment: &[u8]) -> Vec<u8> {
        let header = 20 + self.options.len();
        let total = u16::try_from(header + segment.len()).unwrap();
        let (id, offset, more) = self.fragment.unwrap_or((0x1234, 0, false));
        let place = (offset / 8) | if more { 0x2000 } else { 0 };
        let mut packet = vec![0x40 | u8::try_from(header / 4).unwrap(), 0];
        packet.extend(total.to_be_bytes());
        packet.extend(id.to_be_bytes());
        packet.extend(place.to_be_bytes());
        packet.extend([63, self.transport, 0, 0]);
        packet.extend(from);
        packet.extend(to);
        packet.extend(&self.options);
        let sum = !folded(0, &packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(segment);
        packet
    }

    fn packet6(&self, from: [u8; 16], to: [u8; 16], segment: &[u8]) -> Vec<u8> {
        let mut extensions = self.extensions.clone();
        if let Some((id, offset, more)) = self.fragment {
            let place = offset | u16::from(more);
            let mut header = vec![0, 0];
            header.extend(place.to_be_bytes());
            header.extend(u32::from(id).to_be_bytes());
            extensions.push((44, header));
        }
        let mut payload = Vec::new();
        for at in 0..extensions.len() {
            let next = extensions.get(at + 1).map_or(self.transport, |(kind, _)| *kind);
            let mut header = extensions[at].1.clone();
            header[0] = next;
            payload.extend(header);
        }
        payload.extend(segment);
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        packet.extend([extensions.first().map_or(self.transport, |(kind, _)| *kind), 63]);
        packet.extend(from);
        packet.extend(to);
        packet.extend(payload);
        packet
    }
}

/// Forbids routers to fragment an IPv4 packet, as most hosts do.
pub(super) fn unfragmentable(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12..14] == [8, 0] {
        frame[ETHERNET + 6] |= 0x40;
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let sum = !folded(0, &frame[ETHERNET..ETHERNET + 20]);
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// Adds all 16-bit words, and folds the carries.
pub(super) fn folded(start: u32, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum = words.fold(u64::from(start), |sum, word| sum + u64::from(word));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let mut header = [octets(from), octets(to)].concat();
    header.extend(u32::try_from(length).unwrap().to_be_bytes());
    header.extend([0, 0, 0, protocol]);
    header
}

/// The checksum of a segment whose checksum field is zero.
pub(super) fn sum_of_segment(from: IpAddr, to: IpAddr, transport: u8, segment: &[u8]) -> u16 {
    let pseudo = folded(0, &pseudo_header(from, to, transport, segment.len()));
    let sum = !folded(u32::from(pseudo), segment);
    if transport == UDP && sum == 0 { 0xffff } else { sum }
}

/// A packet as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) protocol: u8,
    pub(super) flags: u8,
    pub(super) payload: Vec<u8>,
    /// Whether all checksums are right; a UDP datagram over IPv4 may have none.
    pub(super) is_valid: bool,
    /// An ICMP error's type, code, and quoted packet.
    pub(super) error: Option<(u8, u8, Box<Seen>)>,
}

/// Parses a frame.
pub(super) fn see(frame: &[u8], has_ethernet: bool) -> Seen {
    see_packet(&frame[if has_ethernet { ETHERNET } else { 0 }..], false)
}

fn address4(bytes: &[u8]) -> IpAddr {
    IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap())
}

fn address6(bytes: &[u8]) -> IpAddr {
    IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The fields of the IP header.
struct Outer {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    /// Where the transport header begins, and where the packet ends.
    at: usize,
    end: usize,
    is_valid: bool,
    is_first: bool,
    is_later: bool,
}

fn outer4(packet: &[u8]) -> Outer {
    let at = usize::from(packet[0] & 15) * 4;
    let place = u16_at(packet, 6);
    Outer {
        from: address4(&packet[12..16]),
        to: address4(&packet[16..20]),
        protocol: packet[9],
        at,
        end: usize::from(u16_at(packet, 2)).min(packet.len()),
        is_valid: folded(0, &packet[..at]) == 0xffff,
        is_first: place & 0x2000 != 0,
        is_later: place & 0x1fff != 0,
    }
}

fn outer6(packet: &[u8]) -> Outer {
    let mut outer = Outer {
        from: address6(&packet[8..24]),
        to: address6(&packet[24..40]),
        protocol: packet[6],
        at: 40,
        end: (40 + usize::from(u16_at(packet, 4))).min(packet.len()),
        is_valid: true,
        is_first: false,
        is_later: false,
    };
    while !outer.is_later && [0, 43, 44, 60, 51].contains(&outer.protocol) {
        let header = &packet[outer.at..];
        let length = match outer.protocol {
            44 => 8,
            51 => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if outer.protocol == 44 {
            outer.is_later = u16_at(header, 2) & 0xfff8 != 0;
            outer.is_first = u16_at(header, 2) & 1 != 0;
        }
        outer.protocol = header[0];
        outer.at += length;
    }
    outer
}

/// `is_quoted`: only the beginning is there, so the transport's checksum cannot be checked.
fn see_packet(packet: &[u8], is_quoted: bool) -> Seen {
    let outer = if packet[0] >> 4 == 4 { outer4(packet) } else { outer6(packet) };
    let segment = &packet[outer.at..outer.end];
    let seen = Seen {
        from: SocketAddr::new(outer.from, 0),
        to: SocketAddr::new(outer.to, 0),
        protocol: outer.protocol,
        flags: 0,
        payload: segment.to_vec(),
        is_valid: outer.is_valid,
        error: None,
    };
    match outer.protocol {
        _ if outer.is_later => seen,
        TCP | UDP | SCTP => see_transport(segment, is_quoted || outer.is_first, seen),
        _ => see_control(segment, &seen),
    }
}

/// `is_part`: bytes covered by the checksum are missing.
fn see_transport(segment: &[u8], is_part: bool, outer: Seen) -> Seen {
    let (from, to) = (outer.from.ip(), outer.to.ip());
    let (header, sum) = match outer.protocol {
        TCP => (20, 16),
        SCTP => (sctp::HEADER, sctp::SUM),
        _ => (8, 6),
    };
    let mut is_valid = outer.is_valid;
    if !is_part && outer.protocol == SCTP {
        is_valid &= sctp::is_right(segment);
    } else if !is_part {
        let pseudo = folded(0, &pseudo_header(from, to, outer.protocol, segment.len()));
        let has_none = outer.protocol == UDP && from.is_ipv4() && u16_at(segment, sum) == 0;
        is_valid &= has_none || folded(u32::from(pseudo), segment) == 0xffff;
    }
    Seen {
        from: SocketAddr::new(from, u16_at(segment, 0)),
        to: SocketAddr::new(to, u16_at(segment, 2)),
        flags: if outer.protocol == TCP { segment.get(13).copied().unwrap_or(0) } else { 0 },
        payload: segment.get(header..).unwrap_or_default().to_vec(),
        is_valid,
        ..outer
    }
}

fn see_control(segment: &[u8], outer: &Seen) -> Seen {
    let start = match outer.protocol {
        58 => u32::from(folded(0, &pseudo_header(outer.from.ip(), outer.to.ip(), 58, segment.len()))),
        _ => 0,
    };
    let is_error = if outer.protocol == 1 { [3, 11, 12].contains(&segment[0]) } else { segment[0] < 128 };
    let quoted = is_error.then(|| Box::new(see_packet(&segment[8..], true)));
    Seen {
        payload: segment[8..].to_vec(),
        is_valid: outer.is_valid && folded(start, segment) == 0xffff,
        error: quoted.map(|quoted| (segment[0], segment[1], quoted)),
        ..outer.clone()
    }
}

/// An error from `from` to `to` about that packet, quoting so many bytes.
pub(super) fn error(from: &str, to: &str, (kind, code): (u8, u8), about: &[u8], quoted: usize) -> Vec<u8> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let mut body = vec![kind, code, 0, 0, 0, 0, 0x05, 0x78];
    body.extend(&about[..quoted.min(about.len())]);
    let protocol = if from.is_ipv4() { 1 } else { 58 };
    let start = match protocol {
        58 => u32::from(folded(0, &pseudo_header(from, to, protocol, body.len()))),
        _ => 0,
    };
    let sum = !folded(start, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let outer = Sent {
        from: SocketAddr::new(from, 0),
        to: SocketAddr::new(to, 0),
        transport: protocol,
        payload: body,
        // Only a first fragment has a transport header.
        ..Sent::tcp("192.0.2.1:1", "192.0.2.1:1", 0)
    };
    let body = outer.payload.clone();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(if from.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
    frame.extend(match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => outer.packet4(from.octets(), to.octets(), &body),
        (IpAddr::V6(from), IpAddr::V6(to)) => outer.packet6(from.octets(), to.octets(), &body),
        _ => panic!("one family"),
    });
    frame
}
