//! Clients denied at the driver: exactly those that the TC program denies.

use std::net::{SocketAddr, UdpSocket};

use holdfast_core::keys::Transport;
use holdfast_core::op::{FrontendType, WordFlags};
use libbpf_rs::{MapCore, MapFlags};

use super::answers::told;
use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address};
use super::frames::{PASSED, WAYS, test};
use super::lives::now;
use super::network::OUTER;
use super::node::{Node, REDIRECTED, SHOT, next_second};
use super::sctp::{self, SCTP};
use crate::abi;
use crate::abi::packets::types::{self, packet_count};
use crate::abi::types::port;
use crate::devices::DeviceSide;
use crate::kernel::bed::Port;
use crate::map::{self, Map};
use crate::refusals::{Arrival, Cause, Denial, Refusal};

/// The XDP verdict of a dropped frame.
const DROPPED: i32 = 1;

/// A client inside the ranges, one outside, and their frontend.
const BARRED: [[&str; 3]; 2] = [
    ["198.51.100.9:40000", "198.18.0.9:40000", "203.0.113.20:80"],
    ["[2001:db8:1::9]:40000", "[2001:db8:9::9]:40000", "[2001:db8:f::20]:80"],
];
const BACKENDS: [&str; 2] = ["10.2.0.5:8080", "[fd02::5]:8080"];

/// A client and its frontend without backends: dropped silently, and rejected.
const SILENT: [[&str; 2]; 2] =
    [["198.51.100.9:40000", "203.0.113.21:80"], ["[2001:db8:1::9]:40000", "[2001:db8:f::21]:80"]];
const REFUSING: [[&str; 2]; 2] =
    [["198.51.100.9:40000", "203.0.113.22:80"], ["[2001:db8:1::9]:40000", "[2001:db8:f::22]:80"]];
/// A node port without backends, and clients that dial it.
const OF_NODE: [[&str; 2]; 2] =
    [["198.51.100.9:40000", "192.0.2.1:30080"], ["[2001:db8:1::9]:40000", "[2001:db8::1]:30080"]];

const TRANSPORTS: [(Transport, u8); 3] =
    [(Transport::Tcp, TCP), (Transport::Udp, UDP), (Transport::Sctp, SCTP)];

/// The port indices at [`BARRED`]: one for each family and transport.
const FIRST: u32 = 30;

fn sources() -> WordFlags {
    WordFlags::default().with(WordFlags::SOURCES, true)
}

/// Serves all of the above over all transports.
fn serve(node: &mut Node) {
    let mut index = FIRST;
    let balancer = FrontendType::LoadBalancer;
    let any = ["0.0.0.0:30080", "[::]:30080"];
    for family in [0, 1] {
        for (transport, _) in TRANSPORTS {
            let backends = [address(BACKENDS[family])];
            let rows: [(&str, FrontendType, &[SocketAddr], WordFlags); 4] = [
                (BARRED[family][2], balancer, &backends, sources()),
                (SILENT[family][1], balancer, &[], WordFlags::DROP),
                (REFUSING[family][1], balancer, &[], WordFlags::default()),
                (any[family], FrontendType::NodePort, &[], WordFlags::DROP),
            ];
            for (frontend, kind, backends, flags) in rows {
                let base = index;
                node.serve(&Port {
                    index,
                    kind,
                    transport,
                    frontends: &[frontend],
                    backends,
                    flags,
                    base,
                    ..Port::TCP
                });
                index += 1;
            }
        }
    }
    (FIRST..index).for_each(|port| allow(node, port));
}

/// Makes the clients' own networks the ranges of a port.
fn allow(node: &Node, port_index: u32) {
    let allowed = [198, 51, 100, 0];
    let key = types::source4_key { prefix: 32 + 24, port_index, address: u32::from_ne_bytes(allowed) };
    node.put(Map::SourceRanges4, abi::as_bytes(&key), &1_u32.to_ne_bytes());
    let mut address = [0; 4];
    address[0] = u32::from_ne_bytes([0x20, 0x01, 0x0d, 0xb8]);
    address[1] = u32::from_ne_bytes([0, 1, 0, 0]);
    let key = types::source6_key { prefix: 32 + 48, port_index, address };
    node.put(Map::SourceRanges6, abi::as_bytes(&key), &1_u32.to_ne_bytes());
}

/// A first packet over each transport.
fn firsts(client: &str, frontend: &str) -> [Sent; 3] {
    TRANSPORTS.map(|(_, transport)| Sent::by(transport, client, frontend, SYN, b"x"))
}

/// All denied packets: from outside the ranges, and to silent frontends without backends.
fn turned_away() -> Vec<Sent> {
    let barred = BARRED.iter().flat_map(|[_, client, frontend]| firsts(client, frontend));
    let silent = SILENT.iter().chain(&OF_NODE).flat_map(|[client, frontend]| firsts(client, frontend));
    barred.chain(silent).collect()
}

/// All counts of denied clients, except where they were denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    source: u64,
    unanswerable: u64,
    answers: u64,
    midway: u64,
    own: u64,
    dropped: u64,
    refused: u64,
}

fn counts(node: &Node) -> Counts {
    let ports = map::find_handle(&node.handles, Map::Ports).unwrap();
    let of_ports = (FIRST..FIRST + 24).map(|at| {
        let found = ports.lookup(&at.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        let port: port = abi::from_bytes(&found).unwrap();
        (port.dropped, port.refused)
    });
    let (dropped, refused) = of_ports.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let counted = |which| node.counted(which);
    Counts {
        source: counted(packet_count::COUNT_SOURCE),
        unanswerable: counted(packet_count::COUNT_UNANSWERABLE),
        answers: counted(packet_count::COUNT_REJECTS),
        midway: counted(packet_count::COUNT_MIDSTREAM),
        own: counted(packet_count::COUNT_NODE_REPLIES),
        dropped,
        refused,
    }
}

/// The counts that an action changes.
fn counted(node: &Node, act: impl FnOnce()) -> [u64; 7] {
    let before = counts(node);
    act();
    let after = counts(node);
    [
        after.source - before.source,
        after.unanswerable - before.unanswerable,
        after.answers - before.answers,
        after.midway - before.midway,
        after.own - before.own,
        after.dropped - before.dropped,
        after.refused - before.refused,
    ]
}

fn at_driver(node: &Node) -> u64 {
    node.counted(packet_count::COUNT_XDP_DROPS)
}

/// The result for a frame at the driver right after the TC program has denied a client. Occasionally a second ends in
/// between.
fn arrive_after(node: &Node, frame: &[u8]) -> (i32, Vec<u8>) {
    let [client, frontend] = SILENT[0];
    let known = Sent::tcp(client, frontend, SYN).frame();
    let mut arrived = (PASSED, Vec::new());
    for _ in 0..3 {
        assert_eq!(node.come(&known).0, SHOT);
        arrived = node.arrive(frame);
        if arrived.0 != PASSED {
            break;
        }
    }
    arrived
}

/// Checks that a frame passes to the kernel unchanged and uncounted.
#[track_caller]
fn check_left(node: &Node, frame: &[u8], what: &str) {
    let [client, frontend] = SILENT[0];
    let known = Sent::tcp(client, frontend, SYN).frame();
    for _ in 0..2 {
        node.come(&known);
        let before = at_driver(node);
        let counted = counted(node, || assert_eq!(node.arrive(frame), (PASSED, frame.to_vec()), "{what}"));
        assert_eq!((counted, at_driver(node)), ([0; 7], before), "{what}");
    }
}

/// Makes one host the range of a port.
fn allow_host(node: &Node, port_index: u32, host: SocketAddr) {
    match host {
        SocketAddr::V4(host) => {
            let address = u32::from_ne_bytes(host.ip().octets());
            let key = types::source4_key { prefix: 32 + 32, port_index, address };
            node.put(Map::SourceRanges4, abi::as_bytes(&key), &1_u32.to_ne_bytes());
        }
        SocketAddr::V6(host) => {
            let octets = host.ip().octets();
            let word = |at: usize| u32::from_ne_bytes(octets[4 * at..4 * at + 4].try_into().unwrap());
            let key = types::source6_key { prefix: 32 + 128, port_index, address: [0, 1, 2, 3].map(word) };
            node.put(Map::SourceRanges6, abi::as_bytes(&key), &1_u32.to_ne_bytes());
        }
    }
}

/// No range is longer than a single host.
#[test]
fn kernel_a_range_of_one_host_admits_it_and_not_its_neighbour() {
    test(|node| {
        for (index, [host, neighbour, frontend], backend) in [
            (FIRST, ["198.51.100.9:40000", "198.51.100.8:40000", BARRED[0][2]], BACKENDS[0]),
            (FIRST + 1, ["[2001:db8:1::9]:40000", "[2001:db8:1::8]:40000", BARRED[1][2]], BACKENDS[1]),
        ] {
            node.serve(&Port {
                index,
                kind: FrontendType::LoadBalancer,
                frontends: &[frontend],
                backends: &[address(backend)],
                flags: sources(),
                base: index,
                ..Port::TCP
            });
            allow_host(node, index, address(host));
            let comes = |client| node.come(&Sent::tcp(client, frontend, SYN).frame()).0;
            assert_eq!(comes(neighbour), SHOT, "{frontend}");
            assert_ne!(comes(host), SHOT, "{frontend}");
        }
    });
}

#[test]
fn kernel_denied_clients_are_dropped_at_the_driver_with_the_same_counts() {
    test(|node| {
        serve(node);
        for sent in turned_away() {
            let frame = sent.frame();
            let behind = counted(node, || assert_eq!(node.come(&frame).0, SHOT, "{sent:?}"));
            assert_eq!(behind.iter().sum::<u64>(), 1 + behind[0], "{sent:?}");
            let before = at_driver(node);
            let mut early = [0; 7];
            for _ in 0..3 {
                node.come(&frame);
                early = counted(node, || drop(node.arrive(&frame)));
                if at_driver(node) > before {
                    break;
                }
            }
            assert_eq!((early, at_driver(node)), (behind, before + 1), "{sent:?}");
        }
    });
}

#[test]
fn kernel_clients_denied_at_the_driver_are_reported_as_behind_it() {
    test(|node| {
        serve(node);
        let barred = BARRED.map(|[_, client, frontend]| (client, frontend, Cause::Source));
        let silent = SILENT.map(|[client, frontend]| (client, frontend, Cause::NoBackend));
        let ended = |(client, frontend, _): &(&str, &str, Cause)| {
            assert_eq!(arrive_after(node, &Sent::udp(client, frontend, b"x").frame()).0, DROPPED);
        };
        barred.iter().chain(&silent).for_each(ended);
        let told = told(node);
        for (client, frontend, cause) in barred.into_iter().chain(silent) {
            let (client, frontend) = (address(client), address(frontend));
            let is_of = |transport| {
                move |it: &&Refusal| {
                    (it.frontend.address, it.frontend.transport) == (frontend.ip(), transport)
                }
            };
            let client_flags = told.iter().rfind(is_of(Transport::Udp)).unwrap();
            assert_eq!((client_flags.cause, client_flags.denial), (cause, Denial::Dropped));
            assert_eq!(client_flags.arrival, Some(Arrival { source: client, device: OUTER }));
            assert_eq!(client_flags.process, 0);
        }
    });
}

/// The driver drops nothing before the TC program has denied a client in that second.
#[test]
fn kernel_the_first_denied_client_of_each_second_passes_the_driver() {
    test(|node| {
        serve(node);
        let frames: Vec<_> = turned_away().iter().map(Sent::frame).collect();
        let left = |frame: &Vec<u8>| assert_eq!(node.arrive(frame), (PASSED, frame.clone()));
        frames.iter().for_each(left);
        assert_eq!(arrive_after(node, &frames[0]).0, DROPPED);
        next_second();
        frames.iter().for_each(left);
    });
}

#[test]
fn kernel_rejected_clients_get_replies_within_the_rate_limit() {
    test(|node| {
        serve(node);
        for [client, frontend] in REFUSING {
            for sent in firsts(client, frontend) {
                let frame = sent.frame();
                set_answers(node, [0, 0]);
                assert_eq!(node.come(&frame).0, REDIRECTED);
                check_left(node, &frame, "a reply may leave");
                let early = |_| {
                    set_answers(node, [1_000, 0]);
                    let behind = counted(node, || drop(node.come(&frame)));
                    let before = at_driver(node);
                    let early = counted(node, || drop(node.arrive(&frame)));
                    (at_driver(node) == before + 1).then_some((early, behind))
                };
                let (early, behind) = (0..3).find_map(early).expect("dropped at the driver");
                assert_eq!(early, behind, "{sent:?}");
                assert_eq!(early, [0, 1, 0, 0, 0, 0, 1], "unanswerable and refused");
            }
        }
    });
}

/// Sets how many replies each CPU has sent in this second: rejects, and ICMP errors about long packets.
pub(super) fn set_answers(node: &Node, [refused, too_long]: [u16; 2]) {
    // A `struct pace`.
    let pace = [&now().to_ne_bytes()[..], &refused.to_ne_bytes(), &too_long.to_ne_bytes()].concat();
    let paces = map::find_handle(&node.handles, Map::PacketPace).unwrap();
    let each = vec![pace; libbpf_rs::num_possible_cpus().unwrap()];
    paces.update_percpu(&0_u32.to_ne_bytes(), &each, MapFlags::ANY).unwrap();
}

#[test]
fn kernel_served_clients_are_not_dropped_at_the_driver() {
    test(|node| {
        serve(node);
        for [client, _, frontend] in BARRED {
            for sent in firsts(client, frontend) {
                check_left(node, &sent.frame(), "inside the ranges");
            }
        }
        for (client, frontend, _) in WAYS {
            for transport in [TCP, UDP] {
                check_left(node, &Sent::by(transport, client, frontend, SYN, b"x").frame(), "served");
            }
        }
        for (from, to) in
            [("198.18.0.9:40000", "203.0.113.99:80"), ("[2001:db8:9::9]:1", "[2001:db8:f::99]:80")]
        {
            for sent in firsts(from, to) {
                check_left(node, &sent.frame(), "to no frontend");
            }
        }
    });
}

/// New ranges and lost backends affect only new clients.
#[test]
fn kernel_live_flows_are_not_dropped_at_the_driver() {
    test(|node| {
        serve(node);
        for (family, [client, _, frontend]) in BARRED.into_iter().enumerate() {
            for (at, sent) in firsts(client, frontend).into_iter().enumerate() {
                node.come(&sent.frame());
                let port = FIRST + 12 * u32::try_from(family).unwrap() + 4 * u32::try_from(at).unwrap();
                let flags = sources().with(WordFlags::DROP, true);
                let transport = TRANSPORTS[at].0;
                let gone = Port { index: port, transport, frontends: &[frontend], flags, ..Port::TCP };
                gone.publish(&mut node.maps, holdfast_core::list::Scope::Cluster);
                check_left(node, &sent.frame(), "of a flow");
                let other = Sent { from: SocketAddr::new(sent.from.ip(), 40_001), ..sent.clone() };
                assert_eq!(arrive_after(node, &other.frame()).0, DROPPED, "a new client is denied");
            }
        }
    });
}

#[test]
fn kernel_other_than_plain_first_packets_are_not_dropped_at_the_driver() {
    test(|node| {
        serve(node);
        for [_, client, frontend] in BARRED {
            for flags in [ACK, RST, RST | ACK, SYN | ACK, FIN | ACK, 0] {
                check_left(node, &Sent::tcp(client, frontend, flags).frame(), "not a first packet");
            }
            for chunks in [
                sctp::chunk_of(ACK, b"x"),
                sctp::chunk_of(SYN | ACK, b"x"),
                sctp::chunk_of(RST, b"x"),
                [sctp::chunk_of(SYN, b""), sctp::chunk_of(ACK, b"x")].concat(),
            ] {
                check_left(node, &Sent::chunks(client, frontend, chunks).frame(), "no INIT alone");
            }
            for sent in firsts(client, frontend) {
                let edits: [(&str, usize, u8); 4] = [
                    ("for other hardware", 5, 9),
                    ("for all hardware", 0, 0xff),
                    ("of a VLAN", 12, 0x81),
                    ("of another version", 14, 0x55),
                ];
                for (what, at, byte) in edits {
                    let mut frame = sent.frame();
                    frame[at] = byte;
                    check_left(node, &frame, what);
                }
                let cut = if sent.from.is_ipv4() { 14 + 20 + 6 } else { 14 + 40 + 6 };
                check_left(node, &sent.frame()[..cut], "truncated");
                check_left(
                    node,
                    &Sent { fragment: Some((7, 0, true)), ..sent.clone() }.frame(),
                    "a fragment",
                );
            }
        }
    });
}

/// Packets from the node's own address, replies to its own requests, and packets while it drains.
#[test]
fn kernel_packets_for_the_stack_are_not_dropped_at_the_driver() {
    test(|node| {
        serve(node);
        for (own, [_, frontend]) in ["192.0.2.1:40000", "[2001:db8::1]:40000"].iter().zip(SILENT) {
            for sent in firsts(own, frontend) {
                check_left(node, &sent.frame(), "from this node's address");
            }
        }
        let asks = UdpSocket::bind("192.0.2.1:30080").unwrap();
        asks.connect("198.51.100.9:53").unwrap();
        check_left(node, &Sent::udp("198.51.100.9:53", OF_NODE[0][1], b"x").frame(), "a reply to a socket");
        assert_eq!(
            node.leave(&Sent::udp(OF_NODE[1][1], "[2001:db8:1::9]:53", b"?").frame()).0,
            super::node::NEXT
        );
        check_left(
            node,
            &Sent::udp("[2001:db8:1::9]:53", OF_NODE[1][1], b"x").frame(),
            "a reply to the node",
        );
        let frame = Sent::udp(BARRED[0][1], BARRED[0][2], b"x").frame();
        assert_eq!(arrive_after(node, &frame).0, DROPPED);
        node.tell_drains(1);
        let left = counted(node, || assert_eq!(node.arrive(&frame), (PASSED, frame.clone())));
        assert_eq!(left, [0; 7]);
        node.tell_drains(0);
        node.tell_of_device(DeviceSide::Backends, [None; 2]);
        assert_eq!(node.arrive(&frame), (PASSED, frame.clone()));
    });
}

/// Without the XDP flag in the entry, the TC program records nothing for the driver.
#[test]
fn kernel_without_the_xdp_flag_clients_are_denied_behind_the_driver() {
    test(|node| {
        serve(node);
        let frame = Sent::udp(BARRED[0][1], BARRED[0][2], b"x").frame();
        for (shortcut, frames, expected) in [
            (true, false, PASSED),
            (false, false, PASSED),
            // A firewall that must see forwarded packets does not see dropped ones.
            (false, true, DROPPED),
        ] {
            node.tell_of_frames(OUTER, shortcut, frames);
            next_second();
            assert_eq!(arrive_after(node, &frame).0, expected, "{shortcut} {frames}");
        }
    });
}

const SPOILERS: [u8; 8] = [0, 1, 6, 17, 0x45, 0x60, 0x84, 0xff];

/// With each header byte corrupted: every frame dropped at the driver would be dropped behind it, with the same counts.
#[test]
fn kernel_frames_dropped_at_the_driver_would_be_dropped_behind_it() {
    test(|node| {
        serve(node);
        let mut ended = 0;
        for sent in BARRED.iter().flat_map(|[_, client, frontend]| firsts(client, frontend)) {
            let frame = sent.frame();
            for at in 0..frame.len() {
                for value in SPOILERS {
                    let mut spoilt = frame.clone();
                    spoilt[at] = value;
                    let known = Sent::udp(SILENT[0][0], SILENT[0][1], b"x").frame();
                    node.come(&known);
                    let early = counted(node, || {
                        let arrived = node.try_arrive(&spoilt).map_or(PASSED, |it| it.0);
                        ended += u32::from(arrived == DROPPED);
                    });
                    if early != [0; 7] {
                        let behind = counted(node, || assert_eq!(node.come(&spoilt).0, SHOT, "{at} {value}"));
                        assert_eq!(early, behind, "{at} {value}: {sent:?}");
                    }
                }
            }
        }
        assert!(ended > 500, "{ended}");
    });
}
