//! Reads other proxies' connections from conntrack: those that reach a backend from an address and port of the node, as
//! kube-proxy's do.
//!
//! Invariant: it only reads, bounded in bytes and time. Where conntrack is inactive, nothing is sent: the request alone
//! would load it.

use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_core::keys::Transport;

use super::{
    CT_NEW, CTA_IP_V4, CTA_IP_V6, CTA_PROTO_DST_PORT, CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_TUPLE_IP,
    CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, CTA_TUPLE_REPLY,
};
use crate::abi::transport_from_number;
use crate::netlink::{NLM_F_DUMP, NetlinkFamily, NetlinkSocket, attribute, ip, read_until_done};

/// The kernel's count of tracked connections; absent where conntrack is not loaded.
const COUNT_FILE: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// How long a list may take before it is abandoned: a million connections take about a second.
const LIST_TIME_MAX: Duration = Duration::from_secs(2);
/// How many connections are kept: usually a few percent of another proxy's connections. Each takes an entry in our
/// maps.
const CONNECTIONS_MAX: usize = 8_192;

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_GET`.
const CT_GET: u16 = 0x0101;
/// The bytes of an `nfgenmsg`; all zeros request both families.
const NFGENMSG_BYTES: usize = 4;

/// A connection that the backend sees as coming from an address and a port of this node, not from its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TranslatedConnection {
    pub(crate) transport: Transport,
    pub(crate) backend: SocketAddr,
    pub(crate) node: SocketAddr,
}

#[derive(Debug, Default)]
pub(crate) struct ConnectionList {
    pub(crate) all: Vec<TranslatedConnection>,
    pub(crate) is_complete: bool,
}

/// Whether conntrack is loaded on this machine.
pub(super) fn is_conntrack_active() -> bool {
    Path::new(COUNT_FILE).exists()
}

/// Lists connections that reach their backend from a wanted port of the node.
pub(crate) fn list_connections(is_wanted: impl Fn(u16) -> bool) -> io::Result<ConnectionList> {
    let count = fs::read_to_string(COUNT_FILE).unwrap_or_default();
    if matches!(count.trim(), "" | "0") {
        return Ok(ConnectionList { is_complete: true, ..ConnectionList::default() });
    }
    let mut kernel = NetlinkSocket::open(NetlinkFamily::Netfilter)?;
    kernel.request(CT_GET, NLM_F_DUMP, &[0; NFGENMSG_BYTES])?;
    read_connections(&mut kernel, Instant::now() + LIST_TIME_MAX, is_wanted)
}

fn read_connections(
    answer: &mut impl Read,
    until: Instant,
    is_wanted: impl Fn(u16) -> bool,
) -> io::Result<ConnectionList> {
    let mut all = Vec::new();
    let ended = read_until_done(
        answer,
        |_| Instant::now() < until,
        |message| {
            if message.kind == CT_NEW && all.len() < CONNECTIONS_MAX {
                all.extend(parse_connection(message.body).filter(|it| is_wanted(it.node.port())));
            }
        },
    )?;
    Ok(ConnectionList { is_complete: ended.is_some() && all.len() < CONNECTIONS_MAX, all })
}

struct ConntrackTuple {
    transport: Transport,
    source: SocketAddr,
    destination: SocketAddr,
}

fn parse_tuple(message: &[u8], direction: u16) -> Option<ConntrackTuple> {
    let tuple = attribute(message, direction)?;
    let addresses = attribute(tuple, CTA_TUPLE_IP)?;
    let protocol = attribute(tuple, CTA_TUPLE_PROTO)?;
    let endpoint = |at: usize, port: u16| {
        let find = |kinds: [u16; 2]| attribute(addresses, *kinds.get(at)?);
        let address = find(CTA_IP_V4).or_else(|| find(CTA_IP_V6)).and_then(ip)?;
        let port = u16::from_be_bytes(*attribute(protocol, port)?.first_chunk()?);
        Some(SocketAddr::new(address, port))
    };
    Some(ConntrackTuple {
        transport: transport_from_number(*attribute(protocol, CTA_PROTO_NUM)?.first()?)?,
        source: endpoint(0, CTA_PROTO_SRC_PORT)?,
        destination: endpoint(1, CTA_PROTO_DST_PORT)?,
    })
}

/// Parses the connection of a message. `None`: not both ends are translated. A pod's connection out of the cluster
/// keeps its destination; without SNAT the source stays.
fn parse_connection(body: &[u8]) -> Option<TranslatedConnection> {
    let message = body.get(NFGENMSG_BYTES..)?;
    let original = parse_tuple(message, CTA_TUPLE_ORIG)?;
    let reply = parse_tuple(message, CTA_TUPLE_REPLY)?;
    let is_both = original.destination != reply.source && original.source != reply.destination;
    is_both.then_some(TranslatedConnection {
        transport: reply.transport,
        backend: reply.source,
        node: reply.destination,
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use holdfast_fixtures::clock;

    use super::*;
    use crate::netlink::{HEADER_BYTES, NESTED, NLMSG_DONE, NLMSG_ERROR, encode_attribute, encode_message};

    fn octets(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    }

    fn tuple(direction: u16, protocol: u8, source: &str, destination: &str) -> Vec<u8> {
        let [source, destination] = [source, destination].map(|it| it.parse::<SocketAddr>().unwrap());
        let [source_kind, destination_kind] = if source.is_ipv4() { CTA_IP_V4 } else { CTA_IP_V6 };
        let ip = [
            encode_attribute(source_kind, &octets(source.ip())),
            encode_attribute(destination_kind, &octets(destination.ip())),
        ];
        let port = |kind, port: u16| encode_attribute(kind, &port.to_be_bytes());
        let protocol = [
            encode_attribute(CTA_PROTO_NUM, &[protocol]),
            port(CTA_PROTO_SRC_PORT, source.port()),
            port(CTA_PROTO_DST_PORT, destination.port()),
        ];
        // The kernel marks nested attributes this way.
        let nested = |kind: u16, parts: &[u8]| encode_attribute(kind | NESTED, parts);
        nested(
            direction,
            &[nested(CTA_TUPLE_IP, &ip.concat()), nested(CTA_TUPLE_PROTO, &protocol.concat())].concat(),
        )
    }

    /// A connection with the original tuple and the reply tuple.
    fn connection(protocol: u8, there: [&str; 2], back: [&str; 2]) -> Vec<u8> {
        let there = tuple(CTA_TUPLE_ORIG, protocol, there[0], there[1]);
        let back = tuple(CTA_TUPLE_REPLY, protocol, back[0], back[1]);
        encode_message(CT_NEW, 0, 0, &[&[0; NFGENMSG_BYTES][..], &there, &back].concat())
    }

    struct Answer(Vec<Vec<u8>>);

    impl Read for Answer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(datagram) = self.0.pop() else { return Ok(0) };
            buffer[..datagram.len()].copy_from_slice(&datagram);
            Ok(datagram.len())
        }
    }

    fn until() -> Instant {
        clock::now() + Duration::from_secs(3_600)
    }

    fn found(messages: &[Vec<u8>]) -> ConnectionList {
        let done = encode_message(NLMSG_DONE, 0, 0, &0_u32.to_ne_bytes());
        let datagrams = std::iter::once(done).chain(messages.iter().rev().cloned()).collect();
        read_connections(&mut Answer(datagrams), until(), |port| port >= 61_000).unwrap()
    }

    const CLIENT: &str = "203.0.113.9:40000";
    const FRONTEND: &str = "192.0.2.1:30080";
    const BACKEND: &str = "10.244.2.7:8080";
    const NODE: &str = "192.0.2.1:61234";

    #[test]
    fn kube_proxys_connections_to_another_node_are_found() {
        let both = found(&[
            connection(6, [CLIENT, FRONTEND], [BACKEND, NODE]),
            connection(
                17,
                ["[2001:db8::9]:1024", "[2001:db8:1::1]:53"],
                ["[fd00::7]:53", "[2001:db8:1::1]:65535"],
            ),
        ]);
        let shown = both.all.iter().map(|it| format!("{} {} {}", it.transport, it.backend, it.node));
        let expected = ["TCP 10.244.2.7:8080 192.0.2.1:61234", "UDP [fd00::7]:53 [2001:db8:1::1]:65535"];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert!(both.is_complete);
    }

    #[test]
    fn connections_without_both_translations_or_a_wanted_port_are_left_out() {
        for (case, protocol, there, back) in [
            ("a pod's connection out of the cluster", 6, [CLIENT, BACKEND], [BACKEND, NODE]),
            ("a backend of this node", 6, [CLIENT, FRONTEND], [BACKEND, CLIENT]),
            ("no translation", 6, [CLIENT, BACKEND], [BACKEND, CLIENT]),
            ("a port that is not ours", 6, [CLIENT, FRONTEND], [BACKEND, "192.0.2.1:60999"]),
            ("another protocol", 33, [CLIENT, FRONTEND], [BACKEND, NODE]),
        ] {
            assert_eq!(found(&[connection(protocol, there, back)]).all, [], "{case}");
        }
    }

    #[test]
    fn a_truncated_message_yields_no_connection() {
        let whole = connection(6, [CLIENT, FRONTEND], [BACKEND, NODE]);
        for length in 0..whole.len() {
            assert!(
                found(&[encode_message(CT_NEW, 0, 0, &whole[HEADER_BYTES..length.max(HEADER_BYTES)])])
                    .all
                    .is_empty()
            );
        }
    }

    #[test]
    fn an_endless_list_is_abandoned_as_incomplete() {
        let endless = vec![connection(6, [CLIENT, FRONTEND], [BACKEND, NODE]); CONNECTIONS_MAX + 1];
        for until in [clock::now(), until()] {
            assert!(!read_connections(&mut Answer(endless.clone()), until, |_| true).unwrap().is_complete);
        }
        let crowded = found(&endless);
        assert_eq!((crowded.all.len(), crowded.is_complete), (CONNECTIONS_MAX, false));
    }

    #[test]
    fn a_kernel_that_refuses_is_an_error() {
        let refused = encode_message(NLMSG_ERROR, 0, 0, &(-libc::EPERM).to_ne_bytes());
        let error = read_connections(&mut Answer(vec![refused]), until(), |_| true).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
