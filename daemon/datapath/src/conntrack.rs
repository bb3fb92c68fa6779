//! Writes entries into the kernel's conntrack table, and reads other proxies' connections from it
//! ([`foreign_connections`]). Entries for SNAT ports keep a masquerading proxy such as kube-proxy from giving a port to
//! another connection. Entries for whole flows let a firewall that is loaded later recognize them.
//!
//! Invariant: existing entries stay as they are, and none is deleted: each expires by itself. No packet uses the
//! entries: programs translate egress packets after conntrack and ingress packets before it. Only the network namespace
//! of the calling thread is visible.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use holdfast_core::keys::Transport;
use holdfast_status::datapath::Flow;

use crate::flows::FlowTable;
use crate::netlink::{
    HEADER_BYTES, NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkFamily, NetlinkSocket,
    encode_attribute, encode_message,
};

pub(crate) mod foreign_connections;

#[cfg(test)]
mod tests;

/// How many flows one system call enters. The kernel may queue a reply of a kilobyte for each, far less than a socket's
/// buffer holds.
const BATCH: usize = 32;
/// The bytes of one reply: at most a header and the message that it acknowledges.
const REPLY_BYTES_MAX: usize = 4096;
/// The longest timeout of an entry. A flow may last for a day, but ports of closed flows must soon be free again. A
/// handover to another proxy renews the entries anyway.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The shortest timeout of an entry: the kernel refuses zero.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// From `linux/netfilter/nfnetlink.h`: `NFNL_SUBSYS_CTNETLINK` in the upper byte, `IPCTNL_MSG_CT_NEW` in the lower.
const CT_NEW: u16 = 0x0100;

/// Attribute types and values, from `linux/netfilter/nfnetlink_conntrack.h`.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
/// Source and destination, per family.
const CTA_IP_V4: [u16; 2] = [1, 2];
const CTA_IP_V6: [u16; 2] = [3, 4];
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
/// `IP_CT_TCP_FLAG_BE_LIBERAL`, as value and as mask. Once the programs are gone, a backend's segment must get a RST.
/// Without the flag, conntrack would drop it because it has not tracked the sequence numbers.
const TCP_BE_LIBERAL: [u8; 2] = [8, 8];

/// `IPS_SEEN_REPLY`, `IPS_ASSURED` and `IPS_CONFIRMED`: the kernel accepts the last one only with the others.
const STATUS_REPLIED: u32 = 2 | 4 | 8;

/// How many flows were entered or refused.
#[derive(Debug, Default)]
pub struct ConntrackOutcome {
    /// Flows that now have an entry in conntrack.
    pub entered: u64,
    /// Flows that have none.
    pub refused: u64,
    /// The error of the first refused flow.
    pub error: Option<io::Error>,
}

/// Adds an entry for each of these flows that has a SNAT port, so that no other connection takes that port. If the
/// kernel refuses a whole batch, the rest is not sent.
pub(crate) fn add_port_entries(flows: impl Iterator<Item = Flow>) -> ConntrackOutcome {
    add_entries(flows.filter_map(|flow| ConntrackEntry::for_snat_port(&flow)))
}

impl FlowTable {
    /// Adds an entry for each flow as the stack sees it between client and backend, so that a stateful firewall
    /// recognizes the flow, whichever side sends first. Call it in the network namespace of the programs, before
    /// packets of the fast path go through the stack. Flows not entered by `until` are left out. Where conntrack is
    /// inactive, nothing is sent: the request alone would load it.
    pub fn add_conntrack_entries(&self, until: Instant) -> ConntrackOutcome {
        if !foreign_connections::is_conntrack_active() {
            return ConntrackOutcome::default();
        }
        add_entries(self.iter_established(until).filter_map(|flow| ConntrackEntry::for_translated(&flow)))
    }
}

fn add_entries(entries: impl Iterator<Item = ConntrackEntry>) -> ConntrackOutcome {
    let mut outcome = ConntrackOutcome::default();
    let mut entries = entries.peekable();
    if entries.peek().is_some() {
        let result =
            ConntrackSocket::open().and_then(|mut kernel| kernel.add_all(&mut entries, &mut outcome));
        outcome.error = outcome.error.or(result.err());
        outcome.refused += entries.count() as u64;
    }
    outcome
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConntrackEntry {
    transport: Transport,
    from: SocketAddr,
    to: SocketAddr,
    timeout: Duration,
    /// Both sides have sent.
    is_replied: bool,
}

impl ConntrackEntry {
    /// For a SNAT port. Its packets reach conntrack as those of the client.
    fn for_snat_port(flow: &Flow) -> Option<Self> {
        let left = flow.lifetime.saturating_sub(flow.idle);
        let timeout = left.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        Some(Self {
            transport: flow.transport,
            from: flow.nat?,
            to: flow.backend,
            timeout,
            is_replied: false,
        })
    }

    /// Between client and backend. `None` for SCTP: the kernel requires verification tags, which only packets carry.
    fn for_translated(flow: &Flow) -> Option<Self> {
        let timeout = flow.lifetime.saturating_sub(flow.idle).max(TIMEOUT_MIN);
        let from = SocketAddr::new(flow.client.ip(), flow.through_port);
        let entry = Self { transport: flow.transport, from, to: flow.backend, timeout, is_replied: true };
        (flow.transport != Transport::Sctp).then_some(entry)
    }

    fn encode(&self, sequence: u32, flags: u16) -> Vec<u8> {
        let family = if self.to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let seconds = u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX);
        let mut body = vec![u8::try_from(family).unwrap_or_default(), 0, 0, 0];
        body.extend(self.build_tuple(CTA_TUPLE_ORIG, self.from, self.to));
        body.extend(self.build_tuple(CTA_TUPLE_REPLY, self.to, self.from));
        body.extend(encode_attribute(CTA_TIMEOUT, &seconds.to_be_bytes()));
        if self.is_replied {
            body.extend(encode_attribute(CTA_STATUS, &STATUS_REPLIED.to_be_bytes()));
        }
        if self.transport == Transport::Tcp {
            body.extend(established_attribute());
        }
        encode_message(CT_NEW, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | flags, sequence, &body)
    }

    fn build_tuple(&self, kind: u16, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let ends = [address_attribute(from.ip(), 0), address_attribute(to.ip(), 1)];
        let ports = [
            encode_attribute(CTA_PROTO_NUM, &[self.transport.protocol_number()]),
            encode_attribute(CTA_PROTO_SRC_PORT, &from.port().to_be_bytes()),
            encode_attribute(CTA_PROTO_DST_PORT, &to.port().to_be_bytes()),
        ];
        nested_attribute(
            kind,
            &[nested_attribute(CTA_TUPLE_IP, &ends), nested_attribute(CTA_TUPLE_PROTO, &ports)],
        )
    }
}

/// Encodes an address attribute. `end`: 0 is the source, 1 is the destination.
fn address_attribute(address: IpAddr, end: usize) -> Vec<u8> {
    let kind = |kinds: [u16; 2]| kinds.get(end).copied().unwrap_or_default();
    match address {
        IpAddr::V4(it) => encode_attribute(kind(CTA_IP_V4), &it.octets()),
        IpAddr::V6(it) => encode_attribute(kind(CTA_IP_V6), &it.octets()),
    }
}

/// The state of a TCP connection. Without it the kernel would apply the timeout of a connection that is still opening.
fn established_attribute() -> Vec<u8> {
    let tcp = [
        encode_attribute(CTA_PROTOINFO_TCP_STATE, &[TCP_CONNTRACK_ESTABLISHED]),
        encode_attribute(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &TCP_BE_LIBERAL),
        encode_attribute(CTA_PROTOINFO_TCP_FLAGS_REPLY, &TCP_BE_LIBERAL),
    ];
    nested_attribute(CTA_PROTOINFO, &[nested_attribute(CTA_PROTOINFO_TCP, &tcp)])
}

fn nested_attribute(kind: u16, values: &[Vec<u8>]) -> Vec<u8> {
    encode_attribute(kind | NESTED, &values.concat())
}

#[derive(Debug)]
struct ConntrackSocket {
    kernel: NetlinkSocket,
}

impl ConntrackSocket {
    fn open() -> io::Result<Self> {
        Ok(Self { kernel: NetlinkSocket::open(NetlinkFamily::Netfilter)? })
    }

    /// Adds batch after batch. Returns an error once the kernel refuses a whole batch.
    fn add_all(
        &mut self,
        entries: &mut impl Iterator<Item = ConntrackEntry>,
        outcome: &mut ConntrackOutcome,
    ) -> io::Result<()> {
        loop {
            let batch: Vec<ConntrackEntry> = entries.take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            let refusals = self.add_batch(&batch);
            let count = refusals.as_ref().map_or(batch.len(), |it| it.count);
            outcome.refused += count as u64;
            outcome.entered += batch.len().saturating_sub(count) as u64;
            match refusals?.first {
                Some(error) if count == batch.len() => return Err(error),
                Some(error) => _ = outcome.error.get_or_insert(error),
                None => {}
            }
        }
    }

    /// Adds one batch. The kernel replies to each entry that it refuses, and always to the last one.
    fn add_batch(&mut self, batch: &[ConntrackEntry]) -> io::Result<BatchRefusals> {
        let numbered = (1_u32..).zip(batch);
        let flags = |number| if number as usize == batch.len() { NLM_F_ACK } else { 0 };
        let messages = numbered.flat_map(|(number, entry)| entry.encode(number, flags(number)));
        self.kernel.send_messages(&messages.collect::<Vec<u8>>())?;
        let mut refusals = BatchRefusals::default();
        for _ in batch {
            let answer = match self.read_reply() {
                Ok(answer) => answer,
                // Without the capability, the kernel refuses the whole batch with one reply.
                Err(error) => return Err(refusals.first.unwrap_or(error)),
            };
            refusals.record_errno(answer.errno);
            if answer.sequence as usize == batch.len() {
                break;
            }
        }
        Ok(refusals)
    }

    fn read_reply(&mut self) -> io::Result<AckMessage> {
        let mut buffer = [0; REPLY_BYTES_MAX];
        let length = self.kernel.read(&mut buffer)?;
        let answer = AckMessage::parse(buffer.get(..length).unwrap_or_default());
        answer.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Entries that the kernel refused. Existing entries are not counted.
#[derive(Debug, Default)]
struct BatchRefusals {
    count: usize,
    first: Option<io::Error>,
}

impl BatchRefusals {
    fn record_errno(&mut self, errno: i32) {
        if errno != 0 && errno != libc::EEXIST {
            self.count += 1;
            self.first.get_or_insert(io::Error::from_raw_os_error(errno));
        }
    }
}

/// The kernel's reply to one message. Errno 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AckMessage {
    sequence: u32,
    errno: i32,
}

impl AckMessage {
    /// Parses an `nlmsgerr` after its header; `None`: it is truncated.
    fn parse(message: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?));
        Some(Self { sequence: word(8)?, errno: word(HEADER_BYTES)?.cast_signed().saturating_neg() })
    }
}
