//! Paths between nodes that are narrower than their first link, and packets that do not fit behind the outer header.

use std::net::IpAddr;

use super::craft::{SYN, Sent, TCP, UDP, address, error, see};
use super::node::{NEXT, Node, REDIRECTED};
use super::wrapped::{FITS, WAYS, Way, by, goes_wrapped, is_told, of_length, serve, taken_apart, test};
use crate::devices::DeviceSide;
use crate::packets::DsrTransports;

/// The MTU that a crafted error reports.
const REPORTED: u32 = 1_400;

const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

const fn outer_header(at: usize) -> u32 {
    if at == 0 { 20 } else { 40 }
}

fn router(way: &Way) -> &'static str {
    if way.node.contains(':') { "2001:db8::3" } else { "192.0.2.3" }
}

/// An error about that encapsulated frame. The router quotes so many bytes behind the outer header.
fn about(way: &Way, at: usize, what: (u8, u8), frame: &[u8], inner: usize) -> Vec<u8> {
    error(router(way), way.own, what, &frame[14..], outer_header(at) as usize + inner)
}

/// A client's SYN, as this node encapsulates it.
fn encapsulated(node: &Node, way: &Way, transport: u8) -> Vec<u8> {
    let (verdict, frame) = node.come(&by(transport, way, SYN).frame());
    assert_eq!(verdict, REDIRECTED);
    frame
}

/// Checks that the client gets an error as if a router before this node had sent it.
#[track_caller]
fn reaches_client(node: &Node, way: &Way, error: &[u8], what: (u8, u8)) -> Vec<u8> {
    let (verdict, frame) = node.come(error);
    let seen = see(&frame, true);
    let (client, frontend) = (address(way.client), address(way.frontend));
    assert_eq!((verdict, seen.from.ip(), seen.to.ip()), (REDIRECTED, frontend.ip(), client.ip()));
    assert!(seen.is_valid, "{seen:?}");
    let (kind, code, quoted) = seen.error.unwrap();
    assert_eq!(((kind, code), quoted.from, quoted.to), (what, client, frontend));
    frame
}

#[test]
fn kernel_a_client_hears_of_a_narrow_path_between_nodes() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (at, way) in WAYS.iter().enumerate() {
            let frame = encapsulated(node, way, TCP);
            let fits = REPORTED - outer_header(at);
            let heard = reaches_client(node, way, &about(way, at, TOO_BIG[at], &frame, 100), TOO_BIG[at]);
            let mtu = 14 + outer_header(at) as usize + 4;
            assert_eq!(u32::from_be_bytes(heard[mtu..mtu + 4].try_into().unwrap()), fits);
            goes_wrapped(node, way, &of_length(way, fits));
            is_told(node, way, &of_length(way, fits + 1), fits);
        }
    });
}

/// Eight bytes behind the outer header name no client, so it hears with its next packet.
#[test]
fn kernel_a_short_quote_tells_the_mtu_of_the_backends_path() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (at, way) in WAYS.iter().enumerate() {
            let frame = encapsulated(node, way, TCP);
            goes_wrapped(node, way, &of_length(way, FITS[at]));
            let error = about(way, at, TOO_BIG[at], &frame, 8);
            assert_eq!(node.come(&error), (NEXT, error.clone()), "the stack gets it");
            is_told(node, way, &of_length(way, FITS[at]), REPORTED - outer_header(at));
        }
    });
}

#[test]
fn kernel_a_client_hears_that_the_backends_node_is_out_of_reach() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (at, way) in WAYS.iter().enumerate() {
            let (host, others) =
                if at == 0 { ((3, 1), [(3, 2), (11, 0)]) } else { ((1, 3), [(4, 1), (3, 0)]) };
            for transport in [TCP, UDP] {
                let frame = encapsulated(node, way, transport);
                reaches_client(node, way, &about(way, at, host, &frame, 100), host);
                for other in others {
                    reaches_client(node, way, &about(way, at, other, &frame, 100), host);
                }
                goes_wrapped(node, way, &of_length(way, FITS[at]));
            }
        }
    });
}

/// Errors about other tunnels of this node, about no packet of this node, and of its pods.
#[test]
fn kernel_an_error_about_no_encapsulated_packet_changes_nothing() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (at, way) in WAYS.iter().enumerate() {
            let frame = encapsulated(node, way, TCP);
            let place = if at == 0 { 14 + 12..14 + 20 } else { 14 + 8..14 + 40 };
            let octets = |text: &str| match text.parse().unwrap() {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            let backend = address(way.there).ip().to_string();
            for [from, to] in [[way.node, &backend], [way.own, way.node]] {
                let mut other = frame.clone();
                other[place.clone()].copy_from_slice(&[octets(from), octets(to)].concat());
                let error = about(way, at, TOO_BIG[at], &other, 100);
                assert_eq!(node.come(&error), (NEXT, error.clone()), "from {from} to {to}");
            }
            let error = about(way, at, TOO_BIG[at], &frame, 100);
            node.tell_of_pods(DeviceSide::Pod, false, false);
            assert_eq!(node.come_from_pod(&error), (NEXT, error.clone()));
            goes_wrapped(node, way, &of_length(way, FITS[at]));
        }
    });
}

/// A router cannot fragment an IPv6 packet, and its sender knows by the error which fragments fit.
#[test]
fn kernel_a_fragment_with_extension_headers_or_options_is_told_the_mtu() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        let way = &WAYS[1];
        for (offset, more) in [(0, true), (1_448, true)] {
            let fragment = Some((5, offset, more));
            let payload = vec![9; if offset == 0 { 1_440 } else { 1_448 }];
            let sent = Sent { fragment, ..Sent::udp(way.client, way.frontend, &payload) };
            let (verdict, frame) = node.come(&sent.frame());
            let seen = see(&frame, true);
            assert_eq!((verdict, seen.to.ip(), seen.is_valid), (REDIRECTED, address(way.client).ip(), true));
            let (kind, code, quoted) = seen.error.unwrap();
            assert_eq!(((kind, code), quoted.to.ip()), ((2, 0), address(way.frontend).ip()));
            assert_eq!(frame[58..62], 1_460_u32.to_be_bytes());
        }
        let way = &WAYS[0];
        let sent = Sent { options: vec![1; 8], ..Sent::udp(way.client, way.frontend, &[9; 1_464]) };
        is_told(node, way, &sent.frame(), FITS[0]);
    });
}

/// A router fragments what may be fragmented. The rest arrives once more, which another test sees.
#[test]
fn kernel_an_ipv4_packet_that_may_be_fragmented_is_split() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        let way = &WAYS[0];
        for (fragment, offset) in [(None, 0), (Some((5, 0, true)), 0), (Some((5, 1_480, false)), 1_480 / 8)] {
            let payload = vec![9; if offset == 0 { 1_472 } else { 1_480 }];
            let sent = Sent { fragment, ..Sent::udp(way.client, way.frontend, &payload) }.frame();
            let (from, to, inner) = taken_apart(node.come(&sent));
            assert_eq!((from, to), (way.own.parse().unwrap(), address(way.there)));
            assert_eq!(inner.len(), 14 + 20 + 1_456);
            assert_eq!(u16::from_be_bytes([inner[20], inner[21]]), 0x2000 | offset, "more follows");
            assert_eq!(inner[34..], sent[34..34 + 1_456]);
            assert!(see(&inner, true).is_valid);
        }
    });
}
