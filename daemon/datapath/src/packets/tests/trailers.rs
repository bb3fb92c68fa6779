//! Bytes that a frame has behind its packet are no part of the packet: a switch or a network card has left them there.

use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address};
use super::lives::found;
use super::node::Node;
use super::sctp::{ABORT, SCTP};
use super::wrapped::{FITS, WAYS, of_length, serve, taken_apart, test, wrapped};
use crate::kernel::bed::Port;
use crate::packets::DsrTransports;

/// One byte, the sum of a frame, and a long trailer of a switch.
const LENGTHS: [usize; 3] = [1, 4, 96];

/// So many bytes make a frame longer than the least that Ethernet has.
const DATA: usize = 40;

fn followed(frame: &[u8], by: &[u8]) -> Vec<u8> {
    [frame, by].concat()
}

#[test]
fn kernel_a_packet_goes_to_another_node_without_what_the_frame_has_behind_it() {
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

/// The way has room for the packet, and for the frame it would not.
#[test]
fn kernel_the_length_of_a_packet_counts_on_its_way_and_not_that_of_its_frame() {
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
fn kernel_a_packet_that_came_by_another_node_may_have_bytes_behind_it() {
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

/// By chance the sum of a frame looks as an ABORT.
#[test]
fn kernel_what_a_frame_has_behind_a_packet_of_sctp_is_no_chunk() {
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
