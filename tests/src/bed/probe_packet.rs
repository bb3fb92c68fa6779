//! A numbered first packet, and how a receiver recognizes it: where it arrives, and in any reply to it.
//!
//! Invariant: the number is where no translation writes: in a SYN's sequence number, and in the payload of a datagram.
//! The TTL is low, so that a routing loop drops the packet soon.

use std::net::{IpAddr, SocketAddr};

use super::ask::Transport;

/// Enough for the longest path of a fabric: router, node, other node.
const HOPS: u8 = 8;

/// A TCP window that no kernel offers; also the first bytes of a datagram.
const SIGN: [u8; 2] = [0x4b, 0x6e];

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP4: u8 = 1;
const ICMP6: u8 = 58;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The offset of TCP's flags.
const FLAGS_AT: usize = 13;

/// The header of an ICMP error, before the quoted packet.
const ICMP_BYTES: usize = 8;

const HEADER4_BYTES: usize = 20;
const HEADER6_BYTES: usize = 40;

/// One first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbePacket {
    pub(super) number: u32,
    pub(super) transport: Transport,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
}

/// The reply that a client receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    #[default]
    Nothing,
    /// A socket listens there.
    Accepted,
    /// A reset, or an ICMP error for a closed port.
    Refused,
    /// An ICMP error for a missing route or a routing loop.
    Lost,
    /// A reply from another address than the dialled one.
    Stray,
}

/// What a received packet says about a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeEvent {
    /// The probe itself, with its current addresses.
    Arrived(ProbePacket),
    /// A reply to the probe, with the addresses that the replying side sees.
    Answered(ProbePacket, Reply),
}

/// A received packet: its addresses, its protocol, and the bytes after its IP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) protocol: u8,
    pub(super) body: &'a [u8],
}

impl Transport {
    pub(super) const fn protocol(self) -> u8 {
        match self {
            Self::Tcp => TCP,
            Self::Udp => UDP,
        }
    }
}

impl ProbePacket {
    /// The whole packet. The kernel fills in IPv4's length and checksum.
    pub(super) fn packet(&self) -> Vec<u8> {
        let body = self.body();
        let (from, to) = (octets(self.from.ip()), octets(self.to.ip()));
        let protocol = self.transport.protocol();
        let head = if self.to.is_ipv4() {
            vec![0x45, 0, 0, 0, 0, 0, 0, 0, HOPS, protocol, 0, 0]
        } else {
            let [high, low] = length(&body);
            vec![0x60, 0, 0, 0, high, low, protocol, HOPS]
        };
        [head, from, to, body].concat()
    }

    /// The transport header and the payload, with their checksum.
    pub(super) fn body(&self) -> Vec<u8> {
        let ports = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        let number = self.number.to_be_bytes();
        let (mut body, at) = match self.transport {
            // No acknowledgement, five words, no checksum yet, no urgent pointer.
            Transport::Tcp => {
                ([&ports[..], &number, &[0, 0, 0, 0, 0x50, SYN], &SIGN, &[0, 0, 0, 0]].concat(), 16)
            }
            // Eight bytes of header, eight of payload, no checksum yet.
            Transport::Udp => ([&ports[..], &[0, 16, 0, 0], &SIGN, &[0, 0], &number].concat(), 6),
        };
        let pseudo = [octets(self.from.ip()), octets(self.to.ip()), vec![0, self.transport.protocol()]];
        let sum = checksum(&[pseudo.concat().as_slice(), &length(&body), &body].concat());
        if let Some(place) = body.get_mut(at..at + 2) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
        body
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn length(body: &[u8]) -> [u8; 2] {
    u16::try_from(body.len()).unwrap_or_default().to_be_bytes()
}

/// The checksum of an even number of bytes. A sum of 0 becomes 0xffff, because 0 in a datagram means no checksum.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).filter_map(|pair| Some(u16::from_be_bytes(pair.try_into().ok()?)));
    let mut sum: u32 = words.map(u32::from).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !u16::try_from(sum).unwrap_or_default() {
        0 => 0xffff,
        sum => sum,
    }
}

/// Parses a received packet, if it is about a probe.
pub(super) fn read(packet: &Packet<'_>) -> Option<ProbeEvent> {
    match packet.protocol {
        ICMP4 | ICMP6 => read_error(packet),
        TCP if *packet.body.get(FLAGS_AT)? & ACK != 0 => read_answer(packet),
        _ => arrived(packet).map(ProbeEvent::Arrived),
    }
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Recognizes a probe by its sign. A packet quoted in an error may end after TCP's sequence number.
fn known(packet: &Packet<'_>, is_quoted: bool) -> Option<ProbePacket> {
    let Packet { from, to, protocol, body } = *packet;
    let (transport, sign, number) = match protocol {
        TCP => (Transport::Tcp, 14, 4),
        UDP => (Transport::Udp, 8, 12),
        _ => return None,
    };
    let is_signed = body.get(sign..sign + 2) == Some(&SIGN);
    let probe = ProbePacket {
        number: word32(body, number)?,
        transport,
        from: SocketAddr::new(from, word16(body, 0)?),
        to: SocketAddr::new(to, word16(body, 2)?),
    };
    (is_signed || is_quoted).then_some(probe)
}

fn arrived(packet: &Packet<'_>) -> Option<ProbePacket> {
    known(packet, false)
}

/// A reply comes from the probe's destination and acknowledges its number.
fn read_answer(packet: &Packet<'_>) -> Option<ProbeEvent> {
    let body = packet.body;
    let reply = match *body.get(FLAGS_AT)? & (SYN | RST) {
        SYN => Reply::Accepted,
        RST => Reply::Refused,
        _ => return None,
    };
    let probe = ProbePacket {
        number: word32(body, 8)?.wrapping_sub(1),
        transport: Transport::Tcp,
        from: SocketAddr::new(packet.to, word16(body, 2)?),
        to: SocketAddr::new(packet.from, word16(body, 0)?),
    };
    Some(ProbeEvent::Answered(probe, reply))
}

/// An ICMP error quotes the packet that caused it.
fn read_error(packet: &Packet<'_>) -> Option<ProbeEvent> {
    let [kind, code, ..] = *packet.body else { return None };
    let reply = match (packet.protocol, kind, code) {
        (ICMP4, 3, 3) | (ICMP6, 1, 4) => Reply::Refused,
        (ICMP4, 3 | 11, _) | (ICMP6, 1 | 3, _) => Reply::Lost,
        _ => return None,
    };
    let quoted = packet.body.get(ICMP_BYTES..)?;
    let inner = if packet.protocol == ICMP4 { header4(quoted)? } else { header6(quoted)? };
    Some(ProbeEvent::Answered(known(&inner, true)?, reply))
}

/// Parses an IPv4 packet, beginning with its header.
pub(super) fn header4(bytes: &[u8]) -> Option<Packet<'_>> {
    let size = 4 * usize::from(*bytes.first()? & 0xf);
    let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?));
    let body = bytes.get(size.max(HEADER4_BYTES)..)?;
    Some(Packet { from: address(12)?, to: address(16)?, protocol: *bytes.get(9)?, body })
}

fn header6(bytes: &[u8]) -> Option<Packet<'_>> {
    let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?));
    let body = bytes.get(HEADER6_BYTES..)?;
    Some(Packet { from: address(8)?, to: address(24)?, protocol: *bytes.get(6)?, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(transport: Transport, from: &str, to: &str) -> ProbePacket {
        ProbePacket { number: 0x0102_0304, transport, from: from.parse().unwrap(), to: to.parse().unwrap() }
    }

    fn probes() -> Vec<ProbePacket> {
        let pairs = [("10.20.0.9:1024", "203.0.113.1:80"), ("[fd00:20::9]:1024", "[2001:db8::1]:80")];
        let both = [Transport::Tcp, Transport::Udp];
        both.into_iter().flat_map(|transport| pairs.map(|(from, to)| probe(transport, from, to))).collect()
    }

    fn packet_of(bytes: &[u8]) -> Packet<'_> {
        if bytes[0] >> 4 == 4 { header4(bytes).unwrap() } else { header6(bytes).unwrap() }
    }

    #[test]
    fn a_probe_is_recognized_by_its_sign() {
        for probe in probes() {
            assert_eq!(read(&packet_of(&probe.packet())), Some(ProbeEvent::Arrived(probe)));
        }
    }

    #[test]
    fn a_probes_checksum_verifies() {
        for probe in probes() {
            let body = probe.body();
            let pseudo =
                [octets(probe.from.ip()), octets(probe.to.ip()), vec![0, probe.transport.protocol()]];
            let all = [pseudo.concat().as_slice(), &length(&body), &body].concat();
            assert_eq!(checksum(&all), 0xffff, "{probe:?}");
        }
    }

    #[test]
    fn an_icmp_error_belongs_to_the_packet_that_it_quotes() {
        for probe in probes() {
            let four = probe.to.is_ipv4();
            let head = if four { [3, 3, 0, 0, 0, 0, 0, 0] } else { [1, 4, 0, 0, 0, 0, 0, 0] };
            let body = [&head[..], &probe.packet()].concat();
            let (from, to) = (probe.to.ip(), probe.from.ip());
            let error = Packet { from, to, protocol: if four { ICMP4 } else { ICMP6 }, body: &body };
            assert_eq!(read(&error), Some(ProbeEvent::Answered(probe, Reply::Refused)));
            let cut = Packet { body: &body[..12], ..error };
            assert_eq!(read(&cut), None, "half a header is quoted");
        }
    }

    #[test]
    fn a_reset_belongs_to_the_number_that_it_acknowledges() {
        let probe = probe(Transport::Tcp, "10.20.0.9:1024", "203.0.113.1:80");
        let body =
            [&[0, 80, 4, 0, 0, 0, 0, 0][..], &0x0102_0305_u32.to_be_bytes(), &[0x50, RST | ACK, 0, 0, 0, 0]];
        let (from, to) = (probe.to.ip(), probe.from.ip());
        let reset = Packet { from, to, protocol: TCP, body: &body.concat() };
        assert_eq!(read(&reset), Some(ProbeEvent::Answered(probe, Reply::Refused)));
    }
}
