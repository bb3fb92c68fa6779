//! Bytes behind the packet in a frame do not belong to the packet: a switch or network card added them.

use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address};
use super::lives::found;
use super::node::Node;
use super::sctp::{ABORT, SCTP};
use super::wrapped::{FITS, WAYS, of_length, serve, taken_apart, test, wrapped};
use crate::kernel::bed::Port;
use crate::packets::DsrTransports;

/// One byte, a frame check sequence, and a long trailer of a switch.
const LENGTHS: [usize; 3] = [1, 4, 96];

/// So many bytes that the frame exceeds the minimum of Ethernet.
const DATA: usize = 40;

fn followed(frame: &[u8], by: &[u8]) -> Vec<u8> {
    [frame, by].concat()
}

#[test]
fn kernel_a_frames_trailer_is_not_encapsulated() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for way in &WAYS {
            for transport in [TCP, UDP] {
                for flags in [SYN, ACK, FIN | ACK] {
                    let frame = Sent::by(transport, way.client, way.frontend, flags, &[7; DATA]).frame();
                    for length in LENGTHS {
                        let came = node.come(&followed(&frame, &vec![0xa5; length]));
                        assert_eq!(taken_apart(came).2, frame, "{length} bytes behind {}", way.client);
                    }
                }
            }
        }
    });
}

/// The route's MTU fits the packet, but not the frame.
#[test]
fn kernel_the_mtu_check_ignores_a_frames_trailer() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, false);
        for (way, fits) in WAYS.iter().zip(FITS) {
            taken_apart(node.come(&Sent::tcp(way.client, way.frontend, SYN).frame()));
            let frame = of_length(way, fits);
            assert_eq!(taken_apart(node.come(&followed(&frame, &[0xa5; 64]))).2, frame);
        }
    });
}

#[test]
fn kernel_an_encapsulated_packet_may_have_a_trailer() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, true);
        for way in &WAYS {
            for flags in [SYN, ACK] {
                let sent = Sent::by(TCP, way.client, way.frontend, flags, &[7; DATA]);
                let frame = followed(&wrapped(&sent.frame(), way.node, way.here), &[0xa5; 4]);
                let (_, left) = node.come(&frame);
                assert_eq!(super::craft::see(&left, true).to, address(way.here));
            }
        }
    });
}

/// A frame check sequence may look like an ABORT.
#[test]
fn kernel_a_trailer_of_an_sctp_packet_is_no_chunk() {
    Node::test(|node| {
        for (at, way) in (1..).zip(&WAYS) {
            node.serve(&Port {
                index: at,
                base: 8 * at,
                frontends: &[way.frontend],
                backends: &[address(way.here)],
                ..Port::SCTP
            });
            let heard = |node: &Node| found(node, way.client).unwrap().1.client_flags;
            for flags in [SYN, ACK] {
                let frame = Sent::by(SCTP, way.client, way.frontend, flags, b"").frame();
                node.come(&followed(&frame, &[ABORT, 0, 0, 4]));
                assert_eq!(heard(node) & RST, 0, "{flags}");
            }
            node.come(&Sent::by(SCTP, way.client, way.frontend, RST, b"").frame());
            assert_eq!(heard(node) & RST, RST, "a chunk of its own");
        }
    });
}
