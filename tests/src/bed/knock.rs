//! A first packet that has a number, and how it is known again: where it comes up, and in whatever answers it.
//!
//! Invariant: the number stands where no translation writes: it is a SYN's sequence number, and the text of a datagram.
//! A router that leads in circles loses the packet soon.

use std::net::{IpAddr, SocketAddr};

use super::ask::Transport;

/// Enough for the longest way of a fabric: router, node, other node.
const HOPS: u8 = 8;

/// A window that no kernel offers, and how a datagram begins.
const SIGN: [u8; 2] = [0x4b, 0x6e];

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP4: u8 = 1;
const ICMP6: u8 = 58;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Where TCP's flags stand.
const FLAGS_AT: usize = 13;

/// What an ICMP error says before it quotes.
const ICMP_BYTES: usize = 8;

const HEADER4_BYTES: usize = 20;
const HEADER6_BYTES: usize = 40;

/// One first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Knock {
    pub(super) number: u32,
    pub(super) transport: Transport,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
}

/// How a client hears of its packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    #[default]
    Nothing,
    /// A socket listens there.
    Accepted,
    /// A reset, or an error that says that no socket listens.
    Refused,
    /// An error that says that there is no way, or one in circles.
    Lost,
    /// An answer from another address than the one that was asked.
    Stray,
}

/// What a packet says of the knock with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The knock itself, with the addresses that it has by then.
    Arrived(Knock),
    /// An answer to the knock, with the addresses as the answering side has them.
    Answered(Knock, Reply),
}

/// What a socket gives: a packet's addresses, its protocol, and what follows its header.
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

impl Knock {
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

    /// The transport's header and what it carries, with their checksum.
    pub(super) fn body(&self) -> Vec<u8> {
        let ports = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        let number = self.number.to_be_bytes();
        let (mut body, at) = match self.transport {
            // Nothing acknowledged, five words, no checksum yet, nothing urgent.
            Transport::Tcp => {
                ([&ports[..], &number, &[0, 0, 0, 0, 0x50, SYN], &SIGN, &[0, 0, 0, 0]].concat(), 16)
            }
            // Eight bytes of a header, eight of text, no checksum yet.
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

/// The checksum of an even number of bytes. A sum of 0 is written as its other form, because 0 in a datagram means that
/// there is none.
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

/// What a packet that came says, if it is about a knock.
pub(super) fn read(packet: &Packet<'_>) -> Option<Word> {
    match packet.protocol {
        ICMP4 | ICMP6 => read_error(packet),
        TCP if *packet.body.get(FLAGS_AT)? & ACK != 0 => read_answer(packet),
        _ => arrived(packet).map(Word::Arrived),
    }
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A knock by its sign. A quotation in an error may leave out what is behind TCP's number.
fn known(packet: &Packet<'_>, is_quoted: bool) -> Option<Knock> {
    let Packet { from, to, protocol, body } = *packet;
    let (transport, sign, number) = match protocol {
        TCP => (Transport::Tcp, 14, 4),
        UDP => (Transport::Udp, 8, 12),
        _ => return None,
    };
    let is_signed = body.get(sign..sign + 2) == Some(&SIGN);
    let knock = Knock {
        number: word32(body, number)?,
        transport,
        from: SocketAddr::new(from, word16(body, 0)?),
        to: SocketAddr::new(to, word16(body, 2)?),
    };
    (is_signed || is_quoted).then_some(knock)
}

fn arrived(packet: &Packet<'_>) -> Option<Knock> {
    known(packet, false)
}

/// An answer comes from the place that the knock went to, and acknowledges its number.
fn read_answer(packet: &Packet<'_>) -> Option<Word> {
    let body = packet.body;
    let reply = match *body.get(FLAGS_AT)? & (SYN | RST) {
        SYN => Reply::Accepted,
        RST => Reply::Refused,
        _ => return None,
    };
    let knock = Knock {
        number: word32(body, 8)?.wrapping_sub(1),
        transport: Transport::Tcp,
        from: SocketAddr::new(packet.to, word16(body, 2)?),
        to: SocketAddr::new(packet.from, word16(body, 0)?),
    };
    Some(Word::Answered(knock, reply))
}

/// An error quotes the packet that it is about.
fn read_error(packet: &Packet<'_>) -> Option<Word> {
    let [kind, code, ..] = *packet.body else { return None };
    let reply = match (packet.protocol, kind, code) {
        (ICMP4, 3, 3) | (ICMP6, 1, 4) => Reply::Refused,
        (ICMP4, 3 | 11, _) | (ICMP6, 1 | 3, _) => Reply::Lost,
        _ => return None,
    };
    let quoted = packet.body.get(ICMP_BYTES..)?;
    let inner = if packet.protocol == ICMP4 { header4(quoted)? } else { header6(quoted)? };
    Some(Word::Answered(known(&inner, true)?, reply))
}

/// A packet of IPv4, from its header on.
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

    fn knock(transport: Transport, from: &str, to: &str) -> Knock {
        Knock { number: 0x0102_0304, transport, from: from.parse().unwrap(), to: to.parse().unwrap() }
    }

    fn knocks() -> Vec<Knock> {
        let pairs = [("10.20.0.9:1024", "203.0.113.1:80"), ("[fd00:20::9]:1024", "[2001:db8::1]:80")];
        let both = [Transport::Tcp, Transport::Udp];
        both.into_iter().flat_map(|transport| pairs.map(|(from, to)| knock(transport, from, to))).collect()
    }

    fn packet_of(bytes: &[u8]) -> Packet<'_> {
        if bytes[0] >> 4 == 4 { header4(bytes).unwrap() } else { header6(bytes).unwrap() }
    }

    #[test]
    fn a_knock_is_known_again() {
        for knock in knocks() {
            assert_eq!(read(&packet_of(&knock.packet())), Some(Word::Arrived(knock)));
        }
    }

    #[test]
    fn a_knock_has_a_checksum_that_sums_up_to_nothing() {
        for knock in knocks() {
            let body = knock.body();
            let pseudo =
                [octets(knock.from.ip()), octets(knock.to.ip()), vec![0, knock.transport.protocol()]];
            let all = [pseudo.concat().as_slice(), &length(&body), &body].concat();
            assert_eq!(checksum(&all), 0xffff, "{knock:?}");
        }
    }

    #[test]
    fn an_error_is_about_the_packet_that_it_quotes() {
        for knock in knocks() {
            let four = knock.to.is_ipv4();
            let head = if four { [3, 3, 0, 0, 0, 0, 0, 0] } else { [1, 4, 0, 0, 0, 0, 0, 0] };
            let body = [&head[..], &knock.packet()].concat();
            let (from, to) = (knock.to.ip(), knock.from.ip());
            let error = Packet { from, to, protocol: if four { ICMP4 } else { ICMP6 }, body: &body };
            assert_eq!(read(&error), Some(Word::Answered(knock, Reply::Refused)));
            let cut = Packet { body: &body[..12], ..error };
            assert_eq!(read(&cut), None, "half a header is quoted");
        }
    }

    #[test]
    fn a_reset_is_about_the_number_that_it_acknowledges() {
        let knock = knock(Transport::Tcp, "10.20.0.9:1024", "203.0.113.1:80");
        let body =
            [&[0, 80, 4, 0, 0, 0, 0, 0][..], &0x0102_0305_u32.to_be_bytes(), &[0x50, RST | ACK, 0, 0, 0, 0]];
        let (from, to) = (knock.to.ip(), knock.from.ip());
        let reset = Packet { from, to, protocol: TCP, body: &body.concat() };
        assert_eq!(read(&reset), Some(Word::Answered(knock, Reply::Refused)));
    }
}
