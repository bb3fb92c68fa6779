//! Encapsulated packets to and from other nodes: see `bpf/dsr_encap.h` and `bpf/dsr_decap.h`.

use std::net::{IpAddr, SocketAddr};

use holdfast_core::op::FrontendType;
use holdfast_core::source_ranges::SourceRange;

use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address, error, folded, see, unfragmentable};
use super::early::set_answers;
use super::lives::found;
use super::network;
use super::node::{NEXT, Node, REDIRECTED, SHOT};
use crate::abi::packets::types::packet_count;
use crate::devices::DeviceSide;
use crate::kernel::bed::Port;
use crate::packets::{DsrTransports, PacketSwitches};

/// A client, its frontend, a remote and a local backend, the other node, and this one.
pub(super) struct Way {
    pub(super) client: &'static str,
    pub(super) frontend: &'static str,
    pub(super) there: &'static str,
    pub(super) here: &'static str,
    pub(super) node: &'static str,
    pub(super) own: &'static str,
}

pub(super) const WAYS: [Way; 2] = [
    Way {
        client: "198.51.100.7:40000",
        frontend: "203.0.113.10:80",
        there: "10.2.0.5:8080",
        here: "10.1.0.5:8080",
        node: "192.0.2.2",
        own: "192.0.2.1",
    },
    Way {
        client: "[2001:db8:1::7]:40000",
        frontend: "[2001:db8:f::10]:80",
        there: "[fd02::5]:8080",
        here: "[fd01::5]:8080",
        node: "2001:db8::2",
        own: "2001:db8::1",
    },
];

pub(super) fn switches(wraps: DsrTransports) -> PacketSwitches {
    let nodes = ["192.0.2.0/24", "2001:db8::/64"].iter().filter_map(|it| SourceRange::parse(it)).collect();
    PacketSwitches { dsr_transports: wraps, dsr_from: nodes, ..PacketSwitches::default() }
}

pub(super) fn test(wraps: DsrTransports, test: impl FnOnce(&mut Node) + Send + 'static) {
    Node::test_as(64, switches(wraps), |node| {
        network::know_routers();
        test(node);
    });
}

/// Serves the frontends with remote or local backends.
pub(super) fn serve(node: &mut Node, is_here: bool) {
    for (at, way) in (1..).zip(&WAYS) {
        let backend = address(if is_here { way.here } else { way.there });
        for (of, port) in [(0, Port::TCP), (2, Port::UDP)] {
            node.serve(&Port {
                index: at + of,
                base: 8 * (at + of),
                frontends: &[way.frontend],
                backends: &[backend],
                ..port
            });
        }
    }
}

pub(super) fn by(transport: u8, way: &Way, flags: u8) -> Sent {
    Sent::by(transport, way.client, way.frontend, flags, b"?")
}

/// The frame encapsulated by another node.
pub(super) fn wrapped(frame: &[u8], from: &str, to: &str) -> Vec<u8> {
    let (from, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), address(to));
    let (link, inner) = frame.split_at(14);
    let length = u16::try_from(inner.len()).unwrap();
    let outer = match (from, to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to_address)) => {
            let mut outer = vec![0x45, 0];
            outer.extend((length + 20).to_be_bytes());
            outer.extend(to.port().to_be_bytes());
            outer.extend([0x40, 0, 64, 4, 0, 0]);
            outer.extend(from.octets());
            outer.extend(to_address.octets());
            let sum = !folded(0, &outer);
            outer[10..12].copy_from_slice(&sum.to_be_bytes());
            outer
        }
        (IpAddr::V6(from), IpAddr::V6(to_address)) => {
            let mut outer = vec![0x60, 0];
            outer.extend(to.port().to_be_bytes());
            outer.extend(length.to_be_bytes());
            outer.extend([41, 64]);
            outer.extend(from.octets());
            outer.extend(to_address.octets());
            outer
        }
        _ => panic!("one family"),
    };
    [link, &outer, inner].concat()
}

/// The outer header of an encapsulated frame: node, backend, and the inner frame.
#[track_caller]
pub(super) fn taken_apart((verdict, frame): (i32, Vec<u8>)) -> (IpAddr, SocketAddr, Vec<u8>) {
    assert_eq!(verdict, REDIRECTED);
    let (link, outer) = frame.split_at(14);
    let at = if outer[0] == 0x45 { 20 } else { 40 };
    let inner = [link, &outer[at..]].concat();
    if at == 20 {
        assert_eq!((outer[9], folded(0, &outer[..20])), (4, 0xffff));
        let [from, to] = [12, 16].map(|at| IpAddr::from(<[u8; 4]>::try_from(&outer[at..at + 4]).unwrap()));
        return (from, SocketAddr::new(to, u16::from_be_bytes([outer[4], outer[5]])), inner);
    }
    assert_eq!((outer[0] >> 4, outer[6]), (6, 41));
    let [from, to] = [8, 24].map(|at| IpAddr::from(<[u8; 16]>::try_from(&outer[at..at + 16]).unwrap()));
    (from, SocketAddr::new(to, u16::from_be_bytes([outer[2], outer[3]])), inner)
}

/// Checks that a packet leaves unchanged, encapsulated by this node.
#[track_caller]
pub(super) fn goes_wrapped(node: &Node, way: &Way, frame: &[u8]) {
    let (from, to, inner) = taken_apart(node.come(frame));
    assert_eq!((from, to), (way.own.parse().unwrap(), address(way.there)));
    assert_eq!(inner, frame, "the inner packet is unchanged");
}

/// Checks that an encapsulated packet goes to the backend with the client's address.
#[track_caller]
pub(super) fn comes_out(node: &Node, way: &Way, sent: &Sent) {
    let (verdict, frame) = node.come(&wrapped(&sent.frame(), way.node, way.here));
    let seen = see(&frame, true);
    assert_eq!((verdict, seen.from, seen.to), (NEXT, address(way.client), address(way.here)));
    assert!(seen.is_valid, "{seen:?}");
}

/// Checks that an encapsulated packet is dropped.
#[track_caller]
pub(super) fn is_dropped(node: &Node, frame: &[u8], counted: packet_count) {
    let before = node.counted(counted);
    assert_eq!(node.come(frame).0, SHOT);
    assert_eq!(node.counted(counted), before + 1);
}

#[test]
fn kernel_a_clients_packets_are_encapsulated_unchanged() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for way in &WAYS {
            for transport in [TCP, UDP] {
                for flags in [SYN, ACK, ACK, FIN | ACK] {
                    goes_wrapped(node, way, &by(transport, way, flags).frame());
                }
            }
        }
        assert_eq!(node.counted(packet_count::COUNT_ENCAP), 16);
    });
}

#[test]
fn kernel_only_configured_transports_are_encapsulated() {
    test(DsrTransports::Tcp, |node| {
        serve(node, false);
        for way in &WAYS {
            goes_wrapped(node, way, &by(TCP, way, SYN).frame());
            let seen = node.comes(&by(UDP, way, 0));
            assert_eq!((seen.from.ip(), seen.to), (address(way.client).ip(), address(way.there)), "by SNAT");
        }
    });
    test(DsrTransports::Off, |node| {
        serve(node, false);
        for way in &WAYS {
            assert_eq!(node.comes(&by(TCP, way, SYN)).to, address(way.there));
        }
    });
}

#[test]
fn kernel_decapsulated_packets_show_the_client_and_replies_the_frontend() {
    test(DsrTransports::Off, |node| {
        serve(node, true);
        for way in &WAYS {
            for transport in [TCP, UDP] {
                comes_out(node, way, &by(transport, way, SYN));
                let answer = Sent::by(transport, way.here, way.client, SYN | ACK, b"!");
                let seen = node.leaves(&answer);
                assert_eq!(
                    (seen.from, seen.to, seen.is_valid),
                    (address(way.frontend), address(way.client), true)
                );
                comes_out(node, way, &by(transport, way, ACK));
            }
        }
        assert_eq!(node.counted(packet_count::COUNT_DECAP), 8);
    });
}

/// Packets that no node sent, or that come from no client, stay unchanged.
#[test]
fn kernel_packets_that_no_node_encapsulated_pass_unchanged() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        for way in &WAYS {
            let stranger = if way.node.contains(':') { "2001:db8:1::9" } else { "198.51.100.9" };
            let other = if way.node.contains(':') { "[2001:db8:f::99]:80" } else { "203.0.113.99:80" };
            let syn = by(TCP, way, SYN).frame();
            let to_node = SocketAddr::new(way.own.parse().unwrap(), 8080).to_string();
            let twice = wrapped(&syn, way.node, way.here);
            for frame in [
                wrapped(&syn, stranger, way.here),
                wrapped(&syn, way.own, way.here),
                wrapped(&syn, way.node, &to_node),
                wrapped(&Sent::tcp(way.client, other, SYN).frame(), way.node, way.here),
                wrapped(
                    &Sent::tcp(way.client, &way.frontend.replace(":80", ":81"), SYN).frame(),
                    way.node,
                    way.here,
                ),
                wrapped(&twice, way.node, way.here),
                wrapped(
                    &Sent { fragment: Some((9, 0, true)), ..by(UDP, way, 0) }.frame(),
                    stranger,
                    way.here,
                ),
            ] {
                assert_eq!(node.come(&frame), (NEXT, frame.clone()), "{}", way.client);
            }
            if way.node.contains('.') {
                let mut wrong = wrapped(&syn, way.node, way.here);
                wrong[24] ^= 1;
                assert_eq!(node.come(&wrong), (NEXT, wrong.clone()), "a wrong checksum of the outer header");
                let mut part = wrapped(&syn, way.node, way.here);
                part[20] = 0x20;
                assert_eq!(node.come(&part), (NEXT, part.clone()), "a fragment");
            }
        }
        assert_eq!(node.counted(packet_count::COUNT_DECAP), 0);
    });
}

/// Without networks of nodes nothing is decapsulated.
#[test]
fn kernel_without_node_networks_nothing_is_decapsulated() {
    Node::test(|node| {
        serve(node, true);
        for way in &WAYS {
            let frame = wrapped(&by(TCP, way, SYN).frame(), way.node, way.here);
            assert_eq!(node.come(&frame), (NEXT, frame.clone()));
        }
    });
}

#[test]
fn kernel_nothing_is_decapsulated_at_a_pods_device() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        node.tell_of_pods(DeviceSide::Pod, false, false);
        for way in &WAYS {
            let frame = wrapped(&by(TCP, way, SYN).frame(), way.node, way.here);
            assert_eq!(node.come_from_pod(&frame), (NEXT, frame.clone()));
        }
    });
}

/// The backend named by the node must be selectable for a client here, otherwise the packet is dropped.
#[test]
fn kernel_a_named_backend_that_is_not_the_frontends_is_refused() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        for (at, way) in (20..).zip(&WAYS) {
            let others = if way.node.contains(':') { "[fd01::6]:9090" } else { "10.1.0.6:9090" };
            let frontend = way.frontend.replace(":80", ":9000");
            node.serve(&Port {
                index: at,
                base: 8 * at,
                frontends: &[&frontend],
                backends: &[address(others)],
                ..Port::TCP
            });
            for transport in [TCP, UDP] {
                let frame = by(transport, way, SYN).frame();
                for to in [others, &way.here.replace(":8080", ":8081"), &others.replace(":9090", ":8080")] {
                    is_dropped(node, &wrapped(&frame, way.node, to), packet_count::COUNT_NOT_LISTED);
                }
            }
            assert!(found(node, way.client).is_none());
        }
    });
}

/// While a list is written its slots may be empty, which says nothing about a named backend.
#[test]
fn kernel_an_empty_slot_matches_no_named_backend() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        let way = &WAYS[0];
        node.put(crate::map::Map::Backends4, &8_u32.to_ne_bytes(), &[0; 8]);
        is_dropped(
            node,
            &wrapped(&by(TCP, way, SYN).frame(), way.node, way.here),
            packet_count::COUNT_NOT_LISTED,
        );
    });
}

#[test]
fn kernel_decapsulated_packets_go_to_no_third_node() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for way in &WAYS {
            for transport in [TCP, UDP] {
                let frame = wrapped(&by(transport, way, SYN).frame(), way.node, way.there);
                is_dropped(node, &frame, packet_count::COUNT_NOT_LOCAL);
                // Its client has also dialled this node, which sends it to another one.
                goes_wrapped(node, way, &by(transport, way, SYN).frame());
                is_dropped(node, &frame, packet_count::COUNT_NOT_LOCAL);
                let segment = wrapped(&by(transport, way, ACK).frame(), way.node, way.there);
                if transport == UDP {
                    is_dropped(node, &segment, packet_count::COUNT_NOT_LOCAL);
                } else {
                    assert_eq!(see(&node.come(&segment).1, true).flags, RST, "of no flow here");
                }
            }
        }
    });
}

/// The client's packets keep their backend from when they arrived at this node, before the frontend moved.
#[track_caller]
fn goes_on(node: &Node, way: &Way, flags: u8, wraps: DsrTransports) {
    let frame = by(TCP, way, flags).frame();
    match wraps {
        DsrTransports::Off => assert_eq!(node.comes(&by(TCP, way, flags)).to, address(way.there)),
        _ => goes_wrapped(node, way, &frame),
    }
}

/// A client that reconnects through another node reuses a port that it used through this one.
#[test]
fn kernel_an_encapsulated_flow_does_not_affect_decapsulated_ones() {
    for wraps in [DsrTransports::TcpAndUdp, DsrTransports::Off] {
        test(wraps, move |node| {
            serve(node, false);
            for way in &WAYS {
                [SYN, ACK, FIN | ACK].iter().for_each(|flags| goes_on(node, way, *flags, wraps));
            }
            serve(node, true);
            for way in &WAYS {
                for _ in 0..2 {
                    for (flags, answer) in [(SYN, SYN | ACK), (ACK, ACK), (ACK, RST | ACK)] {
                        comes_out(node, way, &by(TCP, way, flags));
                        let answered = node.leaves(&Sent::tcp(way.here, way.client, answer));
                        assert_eq!(answered.from, address(way.frontend));
                        goes_on(node, way, ACK, wraps);
                    }
                }
            }
            assert_eq!(node.counted(packet_count::COUNT_FLOWS), 6, "the former flow, and two in sequence");
        });
    }
}

/// The kernel segments a packet merged by GRO behind the outer header, and increments the datagrams' ids.
#[test]
fn kernel_each_gso_segment_finds_its_decapsulated_flow() {
    test(DsrTransports::TcpAndUdp, |node| {
        let (way, here) = (&WAYS[0], address(WAYS[0].here));
        serve(node, false);
        [SYN, ACK, FIN | ACK].iter().for_each(|flags| goes_on(node, way, *flags, DsrTransports::TcpAndUdp));
        serve(node, true);
        [SYN, ACK].iter().for_each(|flags| comes_out(node, way, &by(TCP, way, *flags)));
        for segment in [0, 1, 44] {
            let numbered = SocketAddr::new(here.ip(), here.port() + segment).to_string();
            let (verdict, frame) = node.come(&wrapped(&by(TCP, way, ACK).frame(), way.node, &numbered));
            assert_eq!((verdict, see(&frame, true).to), (NEXT, here), "segment {segment}");
        }
        for other in [here.port() - 1, here.port() + 64] {
            let other = SocketAddr::new(here.ip(), other).to_string();
            let (_, frame) = node.come(&wrapped(&by(TCP, way, ACK).frame(), way.node, &other));
            assert_eq!(see(&frame, true).flags, RST, "that is of another backend: {other}");
        }
    });
}

/// The policy applies to packets from the stack, which does not see encapsulated packets.
#[test]
fn kernel_nothing_is_encapsulated_past_an_ipsec_policy() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for way in &WAYS {
            goes_wrapped(node, way, &by(UDP, way, 0).frame());
            node.tell_of_policies(true);
            let (client, frontend) = (address(way.client).ip(), address(way.frontend).ip());
            let about = Sent::udp(way.frontend, way.client, b"!").packet();
            let closed = if client.is_ipv4() { (3, 3) } else { (1, 4) };
            let error = error(&client.to_string(), &frontend.to_string(), closed, &about, 60);
            assert_eq!(node.come(&error).0, SHOT, "nor does an error about a reply");
            for (transport, flags) in [(UDP, 0), (TCP, SYN)] {
                let (verdict, frame) = node.come(&by(transport, way, flags).frame());
                assert_eq!((verdict, see(&frame, true).to), (NEXT, address(way.there)));
                let (verdict, frame) = node.leave(&frame);
                assert_eq!((verdict, see(&frame, true).from.ip().to_string()), (NEXT, way.own.to_owned()));
            }
            node.tell_of_policies(false);
        }
    });
}

#[test]
fn kernel_encapsulated_packets_under_an_ipsec_policy_go_to_the_stack() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        node.tell_of_policies(true);
        for way in &WAYS {
            let frame = wrapped(&by(TCP, way, SYN).frame(), way.node, way.here);
            assert_eq!(node.come(&frame), (NEXT, frame.clone()));
        }
        node.tell_of_policies(false);
        WAYS.iter().for_each(|way| comes_out(node, way, &by(TCP, way, SYN)));
    });
}

#[test]
fn kernel_a_decapsulated_packet_from_a_nodes_address_is_dropped() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        for way in &WAYS {
            for from in [way.own, way.node] {
                let client = SocketAddr::new(from.parse().unwrap(), 40_000).to_string();
                let frame = Sent::tcp(&client, way.frontend, SYN).frame();
                is_dropped(node, &wrapped(&frame, way.node, way.here), packet_count::COUNT_DECAP_UNKNOWN);
            }
        }
    });
}

/// Every IPv6 path takes 1,280 bytes, and no sender makes shorter packets when told to.
#[test]
fn kernel_a_route_with_a_too_small_mtu_for_encapsulation_uses_snat() {
    for (mtu, is_wrapped) in [(1_319, false), (1_320, true)] {
        test(DsrTransports::TcpAndUdp, move |node| {
            network::narrow(mtu);
            serve(node, false);
            let [way4, way6] = &WAYS;
            goes_wrapped(node, way4, &by(TCP, way4, SYN).frame());
            if is_wrapped {
                goes_wrapped(node, way6, &by(TCP, way6, SYN).frame());
            } else {
                assert_eq!(node.comes(&by(TCP, way6, SYN)).to, address(way6.there));
            }
        });
    }
}

/// A segment of an unknown connection gets a RST, as from any host.
#[test]
fn kernel_an_encapsulated_segment_without_a_flow_is_rejected_or_dropped() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        for way in &WAYS {
            for (data, filled_up) in [(0, 0), (0, 6), (33, 0), (33, 6)] {
                let sent = Sent { payload: vec![7; data], ..by(TCP, way, ACK) }.frame();
                let came = [wrapped(&sent, way.node, way.here), vec![0; filled_up]].concat();
                let (verdict, frame) = node.come(&came);
                let seen = see(&frame, true);
                assert_eq!(
                    (verdict, seen.from, seen.to),
                    (REDIRECTED, address(way.frontend), address(way.client))
                );
                assert_eq!((seen.flags, seen.is_valid), (RST, true), "{data} and {filled_up}");
            }
            for flags in [RST, RST | ACK, FIN, 0] {
                is_dropped(
                    node,
                    &wrapped(&by(TCP, way, flags).frame(), way.node, way.here),
                    packet_count::COUNT_DECAP_UNKNOWN,
                );
            }
            assert!(found(node, way.client).is_none());
        }
    });
}

#[test]
fn kernel_fragments_are_encapsulated_and_decapsulated() {
    let parts = |way: &Way| {
        let whole = Sent::udp(way.client, way.frontend, &[7; 40]);
        let first = Sent { fragment: Some((5, 0, true)), payload: vec![7; 24], ..whole.clone() };
        let later = Sent { fragment: Some((5, 32, false)), payload: vec![7; 16], ..whole };
        [first.frame(), later.frame()]
    };
    test(DsrTransports::TcpAndUdp, move |node| {
        serve(node, false);
        for way in &WAYS {
            parts(way).iter().for_each(|frame| goes_wrapped(node, way, frame));
        }
    });
    test(DsrTransports::TcpAndUdp, move |node| {
        serve(node, true);
        for way in &WAYS {
            for frame in parts(way) {
                let (verdict, frame) = node.come(&wrapped(&frame, way.node, way.here));
                assert_eq!((verdict, see(&frame, true).to.ip()), (NEXT, address(way.here).ip()));
            }
            let [_, later] = parts(way);
            let mut unknown = later;
            let at = if way.node.contains('.') { 18 } else { 14 + 40 + 7 };
            unknown[at] ^= 0x55;
            assert_eq!(
                node.come(&wrapped(&unknown, way.node, way.here)).0,
                SHOT,
                "its first fragment was not seen"
            );
        }
    });
}

/// The sender of a packet that does not fit with the outer header gets an error with the MTU.
#[test]
fn kernel_too_long_packets_for_encapsulation_get_an_error_with_the_mtu() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (way, fits) in WAYS.iter().zip(FITS) {
            goes_wrapped(node, way, &by(TCP, way, SYN).frame());
            goes_wrapped(node, way, &of_length(way, fits));
            // A kernel that reports no length is probed for the usual ones, however long the packet is.
            for too_long in [fits + 1, 2 * fits] {
                is_told(node, way, &of_length(way, too_long), fits);
            }
        }
    });
}

#[test]
fn kernel_the_error_about_a_datagram_without_checksum_quotes_none() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        let (way, fits) = (&WAYS[0], FITS[0]);
        goes_wrapped(node, way, &by(UDP, way, 0).frame());
        let sent =
            unfragmentable(Sent { no_sum: true, ..Sent::udp(way.client, way.frontend, &[9; 1_460]) }.frame());
        is_told(node, way, &sent, fits);
        let (_, frame) = node.come(&sent);
        let quoted = 14 + 20 + 8 + 20;
        assert_eq!(frame[quoted + 6..quoted + 8], [0, 0]);
    });
}

/// The longest packet that can be encapsulated, in each family.
pub(super) const FITS: [u32; 2] = [1_480, 1_460];

/// A client's segment in a packet of so many bytes.
pub(super) fn of_length(way: &Way, length: u32) -> Vec<u8> {
    let header = if address(way.client).is_ipv4() { 40 } else { 60 };
    let payload = vec![9; (length - header) as usize];
    unfragmentable(Sent { payload, ..Sent::tcp(way.client, way.frontend, ACK) }.frame())
}

/// A client whose packets vanish silently loses its connection, so rejects must not use up these errors.
#[test]
fn kernel_mtu_errors_are_sent_despite_many_rejects() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (way, fits) in WAYS.iter().zip(FITS) {
            goes_wrapped(node, way, &by(TCP, way, SYN).frame());
            let sent = of_length(way, fits + 1);
            set_answers(node, [1_000, 999]);
            is_told(node, way, &sent, fits);
            let is_silent = |_| {
                set_answers(node, [0, 1_000]);
                node.come(&sent).0 == SHOT
            };
            assert!((0..3).any(is_silent), "at most a thousand errors per second on each CPU");
        }
    });
}

/// Checks that the client gets an error with the MTU, from the dialled address.
#[track_caller]
pub(super) fn is_told(node: &Node, way: &Way, sent: &[u8], fits: u32) {
    let (verdict, frame) = node.come(sent);
    let seen = see(&frame, true);
    let (from, to) = (address(way.frontend), address(way.client));
    assert_eq!((verdict, seen.from.ip(), seen.to.ip()), (REDIRECTED, from.ip(), to.ip()));
    assert!(seen.is_valid, "{seen:?}");
    let (kind, code, quoted) = seen.error.unwrap();
    let (told, ip) = if from.is_ipv4() { ((3, 4), 20) } else { ((2, 0), 40) };
    assert_eq!(((kind, code), quoted.from, quoted.to), (told, to, from));
    let at = 14 + ip + 4;
    assert_eq!(u32::from_be_bytes(frame[at..at + 4].try_into().unwrap()), fits);
}

/// A SYN or SYN-ACK with a maximum segment size.
fn with_longest(mut frame: Vec<u8>, transport: usize, longest: u16) -> Vec<u8> {
    let ip = 14;
    frame[transport + 12] = 0x70;
    frame.extend([2, 4]);
    frame.extend(longest.to_be_bytes());
    frame.extend([1, 1, 4, 2]);
    if frame[ip] >> 4 == 4 {
        frame[ip + 3] += 8;
        frame[ip + 10..ip + 12].fill(0);
        let sum = !folded(0, &frame[ip..ip + 20]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[ip + 5] += 8;
    }
    frame[transport + 16..transport + 18].fill(0);
    let seen = see(&frame, true);
    let sum = super::craft::sum_of_segment(seen.from.ip(), seen.to.ip(), TCP, &frame[transport..]);
    frame[transport + 16..transport + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Routers and links that balance by the flow label would send all packets between a node and a backend the same way.
#[test]
fn kernel_outer_flow_labels_differ_by_client_and_not_by_packet() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        let (way, mut labels) = (&WAYS[1], std::collections::BTreeSet::new());
        for port in 40_000..40_040 {
            let client = way.client.replace("40000", &port.to_string());
            let label = |flags| {
                let (verdict, frame) = node.come(&Sent::tcp(&client, way.frontend, flags).frame());
                assert_eq!(verdict, REDIRECTED);
                assert_eq!(taken_apart((verdict, frame.clone())).1, address(way.there));
                frame[15] & 15
            };
            let first = label(SYN);
            assert_eq!(label(ACK), first);
            labels.insert(first);
        }
        assert!(labels.len() > 8, "{labels:?}");
    });
}

/// The client gets a smaller MSS than the backend's, so that segments fit behind the outer header.
#[test]
fn kernel_the_mss_of_encapsulated_clients_fits_the_outer_header() {
    test(DsrTransports::Off, |node| {
        serve(node, true);
        for (way, transport, less) in [(&WAYS[0], 34, 20), (&WAYS[1], 54, 40)] {
            let longest =
                |frame: &[u8]| u16::from_be_bytes(frame[transport + 22..transport + 24].try_into().unwrap());
            let answer = with_longest(Sent::tcp(way.here, way.client, SYN | ACK).frame(), transport, 1_460);
            comes_out(node, way, &by(TCP, way, SYN));
            let (verdict, frame) = node.leave(&answer);
            assert_eq!((verdict, longest(&frame), see(&frame, true).is_valid), (NEXT, 1_460 - less, true));
        }
    });
    test(DsrTransports::Off, |node| {
        for (at, way) in (1..).zip(&WAYS) {
            node.serve_local(&Port {
                index: at,
                base: 8 * at,
                frontends: &[way.frontend],
                backends: &[address(way.here)],
                ..Port::TCP
            });
        }
        for (way, transport) in [(&WAYS[0], 34), (&WAYS[1], 54)] {
            node.comes(&by(TCP, way, SYN));
            let answer = with_longest(Sent::tcp(way.here, way.client, SYN | ACK).frame(), transport, 1_460);
            let frame = node.leave(&answer).1;
            assert_eq!(
                frame[transport + 22..transport + 24],
                1_460_u16.to_be_bytes(),
                "direct clients get the full MSS"
            );
        }
    });
}

/// An error about a reply arrives at the node with the frontend, and takes the path of the client's packets.
#[test]
fn kernel_errors_about_replies_reach_the_backend() {
    let of = |way: &Way| {
        let router = if way.node.contains(':') { "2001:db8::3" } else { "192.0.2.3" };
        let answer = Sent::tcp(way.frontend, way.client, ACK).packet();
        let what = if way.node.contains(':') { (2, 0) } else { (3, 4) };
        error(router, &address(way.frontend).ip().to_string(), what, &answer, 60)
    };
    test(DsrTransports::TcpAndUdp, move |node| {
        serve(node, false);
        for way in &WAYS {
            assert_ne!(node.come(&of(way)).0, REDIRECTED, "no flow yet");
            goes_wrapped(node, way, &by(TCP, way, SYN).frame());
            goes_wrapped(node, way, &of(way));
        }
    });
    test(DsrTransports::TcpAndUdp, move |node| {
        serve(node, true);
        for way in &WAYS {
            assert_eq!(node.come(&wrapped(&of(way), way.node, way.here)).0, SHOT, "no flow yet");
            comes_out(node, way, &by(TCP, way, SYN));
            let (verdict, frame) = node.come(&wrapped(&of(way), way.node, way.here));
            let seen = see(&frame, true);
            assert_eq!((verdict, seen.to.ip(), seen.is_valid), (NEXT, address(way.here).ip(), true));
            let (_, _, quoted) = seen.error.unwrap();
            assert_eq!((quoted.from, quoted.to), (address(way.here), address(way.client)));
        }
    });
}

/// No error is sent about an error.
#[test]
fn kernel_an_error_too_long_for_encapsulation_is_dropped_silently() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (way, fits) in WAYS.iter().zip(FITS) {
            goes_wrapped(node, way, &by(TCP, way, SYN).frame());
            let quoted = fits as usize - if way.node.contains(':') { 48 } else { 28 };
            let answer =
                Sent { payload: vec![9; 1_460], ..Sent::tcp(way.frontend, way.client, ACK) }.packet();
            for (more, is_there) in [(0, true), (1, false)] {
                let (client, frontend) = (address(way.client).ip(), address(way.frontend).ip());
                let told = if client.is_ipv4() { (3, 4) } else { (2, 0) };
                let about = error(&client.to_string(), &frontend.to_string(), told, &answer, quoted + more);
                if is_there {
                    goes_wrapped(node, way, &about);
                } else {
                    is_dropped(node, &about, packet_count::COUNT_NO_ROUTE);
                }
            }
        }
    });
}

/// Cases that the other node could not judge, or whose replies would not return, still use SNAT.
#[test]
fn kernel_cases_that_dsr_cannot_serve_use_snat() {
    use holdfast_core::op::WordFlags;
    test(DsrTransports::TcpAndUdp, |node| {
        for (at, way) in (1..).zip(&WAYS) {
            let backends = [address(way.there)];
            let port = Port {
                index: at,
                base: 8 * at,
                frontends: &[way.frontend],
                backends: &backends,
                ..Port::TCP
            };
            node.serve(&Port { flags: WordFlags::default().with(WordFlags::AFFINITY, true), ..port });
            let own = SocketAddr::new(way.own.parse().unwrap(), 30_080).to_string();
            node.serve(&Port {
                index: at + 8,
                base: 8 * (at + 8),
                kind: FrontendType::NodePort,
                frontends: &[&own],
                ..port
            });
            for frontend in [way.frontend, &own] {
                assert_eq!(
                    node.comes(&Sent::tcp(way.client, frontend, SYN)).to,
                    address(way.there),
                    "{frontend}"
                );
            }
            node.serve(&Port { flags: WordFlags::OFF_CLUSTER, ..port });
            let elsewhere = Sent::tcp(&way.client.replace("40000", "40002"), way.frontend, SYN);
            assert_eq!(node.comes(&elsewhere).to, address(way.there), "a backend may be on no node");
            node.serve(&port);
            let other_node = SocketAddr::new(way.node.parse().unwrap(), 40_001).to_string();
            assert_eq!(node.comes(&Sent::tcp(&other_node, way.frontend, SYN)).to, address(way.there));
        }
    });
}

/// Direct packets between the two do not belong to the flow, if the backend bypasses this node.
#[test]
fn kernel_replies_to_direct_clients_pass_unchanged() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for way in &WAYS {
            goes_wrapped(node, way, &by(TCP, way, SYN).frame());
            goes_wrapped(node, way, &by(TCP, way, ACK).frame());
            let answer = Sent::tcp(way.there, way.client, ACK).frame();
            assert_eq!(node.leave(&answer), (NEXT, answer.clone()));
        }
    });
}
