//! Checks whether the programs may have changed a packet as they did.
//!
//! Invariant: nothing here is read from the maps. The judge learns only from packets what clients dialled and which
//! backends they got. It computes each checksum over all covered bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::craft::{ACK, RST, SYN, TCP, UDP, folded, see};
use super::node::{NEXT, NODE, REDIRECTED, SHOT, SNAT_COUNT, SNAT_FIRST, THROUGH};
use super::sctp::{self, SCTP};

pub(super) const NODE6: &str = "2001:db8::1";
const ETHERNET: usize = 14;
/// The IPv6 extension headers that may precede another header.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

/// The program that handles a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Later,
}

/// Source and destination of a packet at one place.
type Pair = (SocketAddr, SocketAddr);

/// An IP packet in a frame, parsed from its bytes alone.
#[derive(Clone, Copy, Debug)]
struct Read {
    v4: bool,
    ip: usize,
    transport: usize,
    protocol: u8,
    from: IpAddr,
    to: IpAddr,
    part: Part,
    id: u32,
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at + N)?.try_into().ok()
}

fn u16_at(frame: &[u8], at: usize) -> Option<u16> {
    bytes(frame, at).map(u16::from_be_bytes)
}

impl Read {
    fn frame(frame: &[u8]) -> Option<Self> {
        match u16_at(frame, 12)? {
            0x0800 => Self::v4(frame, ETHERNET),
            0x86dd => Self::v6(frame, ETHERNET),
            _ => None,
        }
    }

    fn v4(frame: &[u8], ip: usize) -> Option<Self> {
        let header: [u8; 20] = bytes(frame, ip)?;
        let length = usize::from(header[0] & 15) * 4;
        let place = u16::from_be_bytes([header[6], header[7]]);
        let part = match (place & 0x1fff, place & 0x2000) {
            (0, 0) => Part::Whole,
            (0, _) => Part::First,
            _ => Part::Later,
        };
        (header[0] >> 4 == 4 && length >= 20).then(|| Self {
            v4: true,
            ip,
            transport: ip + length,
            protocol: header[9],
            from: IpAddr::from([header[12], header[13], header[14], header[15]]),
            to: IpAddr::from([header[16], header[17], header[18], header[19]]),
            part,
            id: u32::from(u16::from_be_bytes([header[4], header[5]])),
        })
    }

    fn v6(frame: &[u8], ip: usize) -> Option<Self> {
        let header: [u8; 40] = bytes(frame, ip)?;
        let address = |at| bytes::<16>(&header, at).map(IpAddr::from);
        let mut read = Self {
            v4: false,
            ip,
            transport: ip + 40,
            protocol: header[6],
            from: address(8)?,
            to: address(24)?,
            part: Part::Whole,
            id: 0,
        };
        while read.part != Part::Later && EXTENSIONS.contains(&read.protocol) {
            read.step(bytes(frame, read.transport)?);
        }
        (header[0] >> 4 == 6).then_some(read)
    }

    /// Skips an extension header.
    fn step(&mut self, header: [u8; 8]) {
        let length = usize::from(header[1]);
        self.transport += match self.protocol {
            44 => 8,
            51 => (length + 2) * 4,
            _ => (length + 1) * 8,
        };
        if self.protocol == 44 {
            let place = u16::from_be_bytes([header[2], header[3]]);
            let is_first = place & 1 != 0;
            self.id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            self.part = match place & 0xfff8 {
                0 if is_first => Part::First,
                0 => self.part,
                _ => Part::Later,
            };
        }
        self.protocol = header[0];
    }

    /// The packet quoted by an ICMP error.
    fn quoted(&self, frame: &[u8]) -> Option<Self> {
        let kind = *frame.get(self.transport)?;
        let is_error = match (self.v4, self.protocol) {
            (true, 1) => [3, 11, 12].contains(&kind),
            (false, 58) => kind != 0 && kind < 128,
            _ => false,
        };
        let at = self.transport + 8;
        let quoted = if self.v4 { Self::v4(frame, at)? } else { Self::v6(frame, at)? };
        let is_known = self.part == Part::Whole && quoted.part != Part::Later && quoted.is_transport();
        (is_error && is_known).then_some(quoted)
    }

    /// Whether a later fragment names only an extension header as the next one.
    fn hides_transport(&self) -> bool {
        self.part == Part::Later && EXTENSIONS.contains(&self.protocol)
    }

    fn is_transport(&self) -> bool {
        [TCP, UDP, SCTP].contains(&self.protocol)
    }

    fn pair(&self, ports: (u16, u16)) -> Pair {
        (SocketAddr::new(self.from, ports.0), SocketAddr::new(self.to, ports.1))
    }

    fn ports(&self, frame: &[u8]) -> Option<(u16, u16)> {
        Some((u16_at(frame, self.transport)?, u16_at(frame, self.transport + 2)?))
    }

    fn flags(&self, frame: &[u8]) -> u8 {
        if self.protocol == SCTP {
            // Bytes behind the packet are no chunk. A chunk length of 0 ends the parsing.
            let headers = self.ip + if self.v4 { 0 } else { 40 };
            let end = self.end(frame).filter(|end| *end > headers).unwrap_or(frame.len()).min(frame.len());
            return sctp::flags_of(frame.get(self.transport + sctp::HEADER..end).unwrap_or_default());
        }
        frame.get(self.transport + 13).copied().unwrap_or(0)
    }

    fn sum_at(&self) -> std::ops::Range<usize> {
        let (at, size) = match self.protocol {
            TCP => (16, 2),
            SCTP => (sctp::SUM, 4),
            _ => (6, 2),
        };
        self.transport + at..self.transport + at + size
    }

    /// The end of the packet by its IP header.
    fn end(&self, frame: &[u8]) -> Option<usize> {
        let (before, at) = if self.v4 { (0, 2) } else { (40, 4) };
        Some(self.ip + before + usize::from(u16_at(frame, self.ip + at)?))
    }

    /// Whether the SCTP checksum is right; `None`: covered bytes are missing.
    fn is_sum_right(&self, frame: &[u8]) -> Option<bool> {
        let segment = frame.get(self.transport..self.end(frame)?).filter(|it| it.len() >= sctp::HEADER);
        segment.filter(|_| self.part == Part::Whole).map(sctp::is_right)
    }

    /// Whether covered bytes of this SCTP packet are missing, so that its checksum cannot be recomputed.
    fn is_unwritable(&self, frame: &[u8]) -> bool {
        let least = self.transport + sctp::HEADER;
        let is_short = frame.len() < least || self.end(frame).is_none_or(|end| end < least);
        self.protocol == SCTP && (self.part == Part::First || is_short)
    }

    fn addresses(&self) -> std::ops::Range<usize> {
        if self.v4 { self.ip + 12..self.ip + 20 } else { self.ip + 8..self.ip + 40 }
    }

    /// The error of the IPv4 header's checksum; 0: it is right.
    fn header_sum(&self, frame: &[u8]) -> u16 {
        let header = frame.get(self.ip..self.transport.min(frame.len())).unwrap_or_default();
        if self.v4 { folded(0, header) % 0xffff } else { 0 }
    }

    /// The sum of the addresses and the segment; the rest of the pseudo header never changes.
    fn segment_sum(&self, frame: &[u8]) -> u16 {
        let segment = frame.get(self.transport..).unwrap_or_default();
        let addresses = folded(0, frame.get(self.addresses()).unwrap_or_default());
        folded(u32::from(addresses), segment) % 0xffff
    }

    fn has_no_sum(&self, frame: &[u8]) -> bool {
        self.protocol == UDP && u16_at(frame, self.sum_at().start) == Some(0)
    }
}

fn wipe(frame: &mut [u8], range: std::ops::Range<usize>) {
    let end = range.end.min(frame.len());
    frame.get_mut(range.start.min(end)..end).unwrap_or_default().fill(0);
}

/// A frame without the bytes that translation may change.
fn rest(frame: &[u8], read: &Read) -> Vec<u8> {
    let mut rest = frame.to_vec();
    wipe(&mut rest, read.addresses());
    if read.v4 {
        wipe(&mut rest, read.ip + 10..read.ip + 12);
    }
    if let Some(quoted) = read.quoted(frame) {
        wipe(&mut rest, read.transport + 2..read.transport + 4);
        wipe(&mut rest, quoted.addresses());
        wipe(&mut rest, quoted.transport..quoted.transport + 4);
        if quoted.v4 {
            wipe(&mut rest, quoted.ip + 10..quoted.ip + 12);
        }
    } else if read.part != Part::Later {
        wipe(&mut rest, read.transport..read.transport + 4);
        wipe(&mut rest, read.sum_at());
    }
    rest
}

/// A frontend and its backends.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) transport: u8,
    pub(super) frontend: SocketAddr,
    pub(super) backends: Vec<SocketAddr>,
    /// Its backends are on another node.
    pub(super) is_remote: bool,
    /// Without backends, its clients are dropped silently.
    pub(super) is_silent: bool,
}

impl Service {
    fn is_at(&self, transport: u8, to: SocketAddr) -> bool {
        let is_there = match self.frontend.ip() {
            address if address.is_unspecified() => to.ip() == IpAddr::from(NODE),
            address => address == to.ip(),
        };
        self.transport == transport && is_there && self.frontend.port() == to.port()
    }
}

/// A client with its backend, as packets have shown it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) transport: u8,
    pub(super) client: SocketAddr,
    pub(super) frontend: SocketAddr,
    pub(super) backend: SocketAddr,
    /// The client as the stack sees it.
    pub(super) through: SocketAddr,
    /// The client as a remote backend sees it, once seen.
    pub(super) nat: Option<SocketAddr>,
    is_remote: bool,
}

/// Positions in `Judge::known`, by transport, source and destination.
type Index = BTreeMap<(u8, SocketAddr, SocketAddr), Vec<usize>>;

/// A fragmented datagram: direction, source, destination, id and transport.
type Parted = (Way, IpAddr, IpAddr, u32, u8);

/// Remembers what clients dialled, and which backends they got.
#[derive(Debug, Default)]
pub(super) struct Judge {
    pub(super) services: Vec<Service>,
    pub(super) known: Vec<Known>,
    by_client: Index,
    by_backend: Index,
    /// The ports in the first fragments of datagrams.
    parts: BTreeMap<Parted, BTreeSet<(u16, u16)>>,
    /// Clients that sent a packet which may open a flow, and what they dialled.
    pub(super) dialled: BTreeSet<(u8, SocketAddr, SocketAddr)>,
    pub(super) changed: u64,
}

fn is_given(address: SocketAddr, v4: bool) -> bool {
    let own: IpAddr = if v4 { NODE.into() } else { NODE6.parse().unwrap() };
    address.ip() == own && (SNAT_FIRST..SNAT_FIRST + SNAT_COUNT).contains(&address.port())
}

fn turned((from, to): Pair) -> Pair {
    (to, from)
}

impl Judge {
    fn service(&self, transport: u8, to: SocketAddr) -> Option<&Service> {
        self.services.iter().find(|service| service.is_at(transport, to))
    }

    fn of(&self, index: &Index, key: (u8, SocketAddr, SocketAddr)) -> Vec<usize> {
        index.get(&key).cloned().unwrap_or_default()
    }

    /// Whether a known flow turns the packet's pair into `made`.
    fn follows(&mut self, way: Way, transport: u8, (from, to): Pair, made: Pair) -> bool {
        match way {
            Way::In => {
                let client_flags = self.of(&self.by_client, (transport, from, to));
                client_flags.iter().any(|at| (self.known[*at].through, self.known[*at].backend) == made)
                    || self.answers_to_nat(transport, (from, to), made)
            }
            Way::Out => {
                let answers = self.of(&self.by_backend, (transport, from, to));
                answers.iter().any(|at| (self.known[*at].frontend, self.known[*at].client) == made)
                    || self.leaves_as_nat(transport, (from, to), made)
            }
        }
    }

    fn answers_to_nat(&mut self, transport: u8, (from, to): Pair, made: Pair) -> bool {
        let candidates = self.of(&self.by_backend, (transport, from, made.1));
        made.0 == from && candidates.iter().any(|at| self.shows_nat(*at, to))
    }

    fn leaves_as_nat(&mut self, transport: u8, (from, to): Pair, made: Pair) -> bool {
        let candidates = self.of(&self.by_backend, (transport, to, from));
        made.1 == to && candidates.iter().any(|at| self.shows_nat(*at, made.0))
    }

    /// Whether a backend sees the client as `shown`. The first packet decides: it may show any SNAT port.
    fn shows_nat(&mut self, at: usize, shown: SocketAddr) -> bool {
        let known = &mut self.known[at];
        let may_be = known.is_remote && is_given(shown, known.client.is_ipv4());
        may_be && *known.nat.get_or_insert(shown) == shown
    }

    /// Whether this packet opens a flow, which is known from then on.
    fn begins(&mut self, transport: u8, (client, frontend): Pair, (through, backend): Pair) -> bool {
        let Some(service) = self.service(transport, frontend) else { return false };
        let has_port = through.port() == client.port() || THROUGH.contains(&through.port());
        if !service.backends.contains(&backend) || through.ip() != client.ip() || !has_port {
            return false;
        }
        let is_remote = service.is_remote;
        let at = self.known.len();
        self.by_client.entry((transport, client, frontend)).or_default().push(at);
        self.by_backend.entry((transport, backend, through)).or_default().push(at);
        self.known.push(Known { transport, client, frontend, backend, through, nat: None, is_remote });
        true
    }

    /// All pairs of ports that a packet may have.
    fn ports(&mut self, way: Way, frame: &[u8], read: &Read) -> Vec<(u16, u16)> {
        let key = (way, read.from, read.to, read.id, read.protocol);
        let own = read.ports(frame);
        match read.part {
            Part::Later => self.parts.get(&key).into_iter().flatten().copied().collect(),
            part => {
                if part == Part::First {
                    self.parts.entry(key).or_default().extend(own);
                }
                own.into_iter().collect()
            }
        }
    }

    /// Judges a program's result for a frame; an error says what is wrong.
    pub(super) fn judge(
        &mut self,
        way: Way,
        sent: &[u8],
        (verdict, got): &(i32, Vec<u8>),
    ) -> Result<(), &'static str> {
        let read = Read::frame(sent);
        if let Some(read) = read.filter(|it| way == Way::In && it.is_transport()) {
            self.note_dialled(sent, &read);
        }
        let ports = read.map(|read| self.ports(way, sent, &read)).unwrap_or_default();
        match (*verdict, read) {
            (NEXT, _) if sent == got => Ok(()),
            (NEXT, Some(read)) if read.hides_transport() => self.judge_hidden(way, sent, got, &read),
            (NEXT, Some(read)) => self.judge_changed(way, sent, got, &read, &ports),
            (SHOT, Some(read)) if read.is_unwritable(sent) => Ok(()),
            (SHOT, Some(read)) if way == Way::In => self.judge_dropped(sent, &read),
            (REDIRECTED, Some(read)) if way == Way::In => self.judge_answer(sent, got, &read),
            _ => Err("an unknown verdict"),
        }
    }

    fn may_begin(&self, way: Way, sent: &[u8], read: &Read) -> bool {
        let opens = read.protocol == UDP || read.flags(sent) & (SYN | ACK | RST) == SYN;
        way == Way::In && read.part != Part::Later && opens
    }

    /// Forgets a client's SNAT port: a closed flow may have reopened with another port.
    fn forget_nat(&mut self, client: (u8, SocketAddr, SocketAddr)) {
        for at in self.of(&self.by_client, client) {
            self.known[at].nat = None;
        }
    }

    fn note_dialled(&mut self, sent: &[u8], read: &Read) {
        if let Some(ports) = read.ports(sent).filter(|_| self.may_begin(Way::In, sent, read)) {
            let (client, frontend) = read.pair(ports);
            self.dialled.insert((read.protocol, client, frontend));
        }
    }

    /// A later fragment follows the first one with its id, over any transport.
    fn judge_hidden(&mut self, way: Way, sent: &[u8], got: &[u8], read: &Read) -> Result<(), &'static str> {
        let mut judged = Err("it follows no first fragment");
        for protocol in [UDP, TCP, SCTP] {
            let read = Read { protocol, ..*read };
            let ports = self.ports(way, sent, &read);
            judged = judged.or_else(|_| self.judge_changed(way, sent, got, &read, &ports));
        }
        judged
    }

    fn judge_changed(
        &mut self,
        way: Way,
        sent: &[u8],
        got: &[u8],
        read: &Read,
        ports: &[(u16, u16)],
    ) -> Result<(), &'static str> {
        self.changed += 1;
        if sent.len() != got.len() {
            return Err("it is longer or shorter");
        }
        let made = Read::frame(got).ok_or("it is not a packet any more")?;
        if rest(sent, read) != rest(got, &made) {
            return Err("other bytes than addresses, ports and checksums changed");
        }
        if read.header_sum(sent) != made.header_sum(got) {
            return Err("the error of its header's checksum changed");
        }
        match (read.quoted(sent), made.quoted(got)) {
            (Some(about), Some(shown)) => self.judge_error(way, (sent, read, &about), (got, &made, &shown)),
            (None, None) if read.is_transport() => self.judge_packet(way, sent, got, read, &made, ports),
            _ => Err("it has no flow and is no error about one"),
        }
    }

    fn judge_packet(
        &mut self,
        way: Way,
        sent: &[u8],
        got: &[u8],
        read: &Read,
        made: &Read,
        ports: &[(u16, u16)],
    ) -> Result<(), &'static str> {
        if read.part == Part::Later {
            return self.judge_later(way, read, made, ports);
        }
        if read.has_no_sum(sent) != made.has_no_sum(got) {
            return Err("a datagram gained or lost its checksum");
        }
        let is_sctp = read.protocol == SCTP;
        if is_sctp && read.is_sum_right(sent) != made.is_sum_right(got) {
            return Err("its checksum became wrong or right");
        }
        if !is_sctp && !read.has_no_sum(sent) && read.segment_sum(sent) != made.segment_sum(got) {
            return Err("the error of its checksum changed");
        }
        let Some((before, after)) = ports.first().zip(made.ports(got)) else { return Err("it has no ports") };
        let (pair, made) = (read.pair(*before), made.pair(after));
        if self.follows(way, read.protocol, pair, made) {
            if self.may_begin(way, sent, read) {
                self.forget_nat((read.protocol, pair.0, pair.1));
            }
            return Ok(());
        }
        let begins = self.may_begin(way, sent, read) && self.begins(read.protocol, pair, made);
        if begins { Ok(()) } else { Err("no flow and no frontend allows it") }
    }

    /// A later fragment has the ports of the first one, before and after translation.
    fn judge_later(
        &mut self,
        way: Way,
        read: &Read,
        made: &Read,
        ports: &[(u16, u16)],
    ) -> Result<(), &'static str> {
        let is_so = |known: &Known, pair: Pair| {
            let (from, to) = match way {
                Way::In if pair == (known.client, known.frontend) => (known.through, known.backend),
                Way::In if pair.0 == known.backend && Some(pair.1) == known.nat => (pair.0, known.through),
                Way::Out if pair == (known.backend, known.through) => (known.frontend, known.client),
                Way::Out if pair == (known.through, known.backend) => match known.nat {
                    Some(nat) => (nat, pair.1),
                    None => return known.is_remote,
                },
                _ => return false,
            };
            (from.ip(), to.ip()) == (made.from, made.to)
        };
        let of_transport = |known: &&Known| known.transport == read.protocol;
        let found = ports.iter().map(|ports| read.pair(*ports)).any(|pair| {
            // A reply to an SNAT port may belong to a flow that no packet has shown with that port yet.
            let is_hidden = way == Way::In && is_given(pair.1, read.v4);
            is_hidden || self.known.iter().filter(of_transport).any(|known| is_so(known, pair))
        });
        if found { Ok(()) } else { Err("no flow allows it for a fragment") }
    }

    fn judge_error(
        &mut self,
        way: Way,
        (sent, read, about): (&[u8], &Read, &Read),
        (got, made, shown): (&[u8], &Read, &Read),
    ) -> Result<(), &'static str> {
        if about.header_sum(sent) != shown.header_sum(got) {
            return Err("the error of the quoted header's checksum changed");
        }
        let of_control = |read: &Read, frame: &[u8]| match read.v4 {
            true => folded(0, frame.get(read.transport..).unwrap_or_default()) % 0xffff,
            false => read.segment_sum(frame),
        };
        if of_control(read, sent) != of_control(made, got) {
            return Err("the error of the ICMP checksum changed");
        }
        let Some((before, after)) = about.ports(sent).zip(shown.ports(got)) else {
            return Err("what it quotes has no ports");
        };
        let (before, after) = (turned(about.pair(before)), turned(shown.pair(after)));
        if !self.follows(way, about.protocol, before, after) {
            return Err("it quotes nothing of a flow");
        }
        // An egress error comes from the frontend or the node, as all packets do, whichever router sent it.
        let by = if way == Way::Out { after.0.ip() } else { read.from };
        // It goes to the sender of the quoted packet.
        if (made.from, made.to) == (by, after.1.ip()) { Ok(()) } else { Err("it goes to the wrong host") }
    }

    fn judge_dropped(&self, sent: &[u8], read: &Read) -> Result<(), &'static str> {
        let dialled = self.dialled_service(sent, read).ok_or("it is dropped, but dials no frontend")?;
        let of_transport = self.services.iter().filter(|it| it.transport == dialled.transport);
        let beside = of_transport.filter(|it| it.frontend != dialled.frontend).flat_map(|it| &it.backends);
        // A client of one backend by two frontends needs one of the few SNAT ports.
        let needs_port = dialled.is_remote || beside.into_iter().any(|it| dialled.backends.contains(it));
        let may_drop = dialled.backends.is_empty() || needs_port;
        if may_drop { Ok(()) } else { Err("it is dropped, but there are backends") }
    }

    fn dialled_service(&self, sent: &[u8], read: &Read) -> Option<&Service> {
        let (client, frontend) = read.pair(read.ports(sent)?);
        let is_dialled = self.dialled.contains(&(read.protocol, client, frontend));
        self.service(read.protocol, frontend).filter(|_| is_dialled && read.is_transport())
    }

    fn judge_answer(&self, sent: &[u8], got: &[u8], read: &Read) -> Result<(), &'static str> {
        let service = self.dialled_service(sent, read).ok_or("it gets a reply, but dials no frontend")?;
        if !service.backends.is_empty() || service.is_silent || read.part != Part::Whole {
            return Err("it gets a reply, but should not");
        }
        let made = Read::frame(got).ok_or("the reply is not a packet")?;
        if (made.from, made.to) != (read.to, read.from) || got[..6] != sent[6..12] || got[6..12] != sent[..6]
        {
            return Err("the reply goes elsewhere");
        }
        match read.protocol {
            TCP => judge_reset(sent, got, read, &made),
            _ if is_right(sent, read) && !see(got, true).is_valid => Err("the reply's checksums are wrong"),
            _ => Ok(()),
        }
    }
}

fn judge_reset(sent: &[u8], got: &[u8], read: &Read, made: &Read) -> Result<(), &'static str> {
    let turned = read.ports(sent).map(|(from, to)| (to, from));
    if sent.len() != got.len() || made.ports(got) != turned || made.flags(got) != RST | ACK {
        return Err("the RST does not match the segment");
    }
    let sums = |read: &Read, frame: &[u8]| (read.header_sum(frame), read.segment_sum(frame));
    if sums(read, sent) == sums(made, got) { Ok(()) } else { Err("the error of the RST's checksums differs") }
}

/// Whether a datagram has its header's length, and right checksums.
fn is_right(sent: &[u8], read: &Read) -> bool {
    let size = if read.v4 {
        u16_at(sent, read.ip + 2).map(|total| usize::from(total) + read.ip)
    } else {
        u16_at(sent, read.ip + 4).map(|payload| usize::from(payload) + read.ip + 40)
    };
    let is_whole = size.is_some_and(|end| end <= sent.len() && end >= read.transport + 8);
    let length = u16_at(sent, read.transport + 4).map(usize::from);
    if read.protocol == SCTP {
        return read.is_sum_right(sent) == Some(true) && see(sent, true).is_valid;
    }
    is_whole && length == size.map(|end| end.saturating_sub(read.transport)) && see(sent, true).is_valid
}
