//! Segments of connections that another node has opened: if all nodes select alike, they go to the backend of that
//! selection, and nowhere else: see `bpf/dsr_decap.h`.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;

use holdfast_core::keys::Transport;
use holdfast_core::op::{FrontendType, WordFlags};

use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address, error};
use super::lives::{all, found, now};
use super::network;
use super::node::{NEXT, Node, SHOT};
use super::wrapped::{WAYS, Way, by, taken_apart, test};
use crate::abi::packets::types::packet_count;
use crate::devices::DeviceSide;
use crate::kernel::bed::Port;
use crate::packets::DsrTransports;

/// Clients of each family, by their ports.
const CLIENTS: std::ops::Range<u16> = 41_000..41_040;

fn maglev() -> WordFlags {
    WordFlags::default().with(WordFlags::MAGLEV, true)
}

/// Eight backends of another node in each family.
fn elsewhere(way: &Way) -> Vec<SocketAddr> {
    let there = address(way.there);
    (0..8).map(|at| SocketAddr::new(there.ip(), there.port() + at)).collect()
}

fn port<'a>(at: u32, frontends: &'a [&'a str], backends: &'a [SocketAddr]) -> Port<'a> {
    Port { index: at, base: 16 * at, frontends, backends, flags: maglev(), ..Port::TCP }
}

fn serve(node: &mut Node, changed: impl Fn(Port<'_>, &mut dyn FnMut(&Port<'_>))) {
    for (at, way) in (1..).zip(&WAYS) {
        let backends = elsewhere(way);
        changed(port(at, &[way.frontend], &backends), &mut |port| node.serve(port));
    }
}

/// The backends to which a node without these flows sends the clients' packets.
fn backends_by(flags: u8) -> Vec<SocketAddr> {
    let (told, chosen) = channel();
    test(DsrTransports::Tcp, move |node| {
        serve(node, |port, serve| serve(&port));
        for way in &WAYS {
            let host = address(way.client).ip();
            for from in CLIENTS {
                let client = SocketAddr::new(host, from).to_string();
                let frame = Sent::tcp(&client, way.frontend, flags).frame();
                let (_, backend, inner) = taken_apart(node.come(&frame));
                assert_eq!(inner, frame, "the inner packet is unchanged");
                told.send(backend).unwrap();
            }
        }
        let opens = flags & (SYN | RST) == 0;
        let joined = u64::try_from(if opens { WAYS.len() * CLIENTS.len() } else { 0 }).unwrap();
        assert_eq!(node.counted(packet_count::COUNT_ADOPTED), joined);
        assert_eq!(all(node).next().is_none(), flags & RST > 0, "a RST opens no flow");
    });
    chosen.iter().collect()
}

#[test]
fn kernel_another_nodes_segment_goes_to_the_backend_of_its_syn() {
    let let_in = backends_by(SYN);
    for flags in [ACK, FIN | ACK, RST, RST | ACK] {
        assert_eq!(backends_by(flags), let_in);
    }
}

/// A router's error about a frontend's reply.
fn about_answer(transport: u8, client: &str, frontend: &str) -> Vec<u8> {
    let router = if client.starts_with('[') { "2001:db8::3" } else { "192.0.2.3" };
    let told = if client.starts_with('[') { (2, 0) } else { (3, 4) };
    let answer = Sent::by(transport, frontend, client, ACK, &[7; 40]).packet();
    error(router, &address(frontend).ip().to_string(), told, &answer, 60)
}

/// Also serves the frontends over UDP.
fn serve_both(node: &mut Node) {
    serve(node, |port, serve| serve(&port));
    for (at, way) in (5..).zip(&WAYS) {
        let backends = elsewhere(way);
        node.serve(&Port { transport: Transport::Udp, ..port(at, &[way.frontend], &backends) });
    }
}

/// Routers distribute errors by other rules than packets, so this node has not seen the connection.
#[test]
fn kernel_an_error_about_another_nodes_reply_goes_to_the_clients_backend() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve_both(node);
        for way in &WAYS {
            let host = address(way.client).ip();
            // The table holds few flows.
            for (from, transport) in CLIENTS.take(10).flat_map(|from| [(from, TCP), (from, UDP)]) {
                let client = SocketAddr::new(host, from).to_string();
                let about = about_answer(transport, &client, way.frontend);
                let flows = all(node).count();
                let (_, backend, inner) = taken_apart(node.come(&about));
                assert_eq!(inner, about, "the error is unchanged");
                assert_eq!(all(node).count(), flows, "an error opens nothing");
                let asked = Sent::by(transport, &client, way.frontend, SYN, b"?").frame();
                assert_eq!(backend, taken_apart(node.come(&asked)).1, "{client}");
            }
        }
    });
}

/// Checks that an error about a reply of no flow passes unchanged.
#[track_caller]
fn errors_are_left(node: &Node, frontend: impl Fn(&Way) -> String) {
    for way in &WAYS {
        for transport in [TCP, UDP] {
            let about = about_answer(transport, way.client, &frontend(way));
            assert_eq!(node.come(&about), (NEXT, about.clone()), "{} by {transport}", way.client);
        }
    }
}

#[test]
fn kernel_an_error_that_concerns_no_other_node_is_left_to_the_stack() {
    let dialled = |way: &Way| way.frontend.to_owned();
    test(DsrTransports::TcpAndUdp, move |node| {
        serve_both(node);
        let own = WAYS.each_ref().map(|way| way.own.parse().ok());
        errors_are_left(node, |way| way.frontend.replace(":80", ":81"));
        node.tell_of_device(DeviceSide::Outer, own);
        errors_are_left(node, dialled);
        node.tell_of_policies(true);
        errors_are_left(node, dialled);
    });
    test(DsrTransports::TcpAndUdp, move |node| {
        serve_both(node);
        node.tell_drains(1);
        errors_are_left(node, dialled);
    });
    test(DsrTransports::Off, move |node| {
        serve_both(node);
        errors_are_left(node, dialled);
    });
    test(DsrTransports::TcpAndUdp, move |node| {
        serve(node, |port, serve| serve(&Port { flags: WordFlags::default(), ..port }));
        errors_are_left(node, dialled);
        let barred = maglev().with(WordFlags::SOURCES, true);
        serve(node, |port, serve| serve(&Port { flags: barred, kind: FrontendType::LoadBalancer, ..port }));
        errors_are_left(node, dialled);
        for (at, way) in (1..).zip(&WAYS) {
            node.serve(&port(at, &[way.frontend], &[address(way.here)]));
        }
        errors_are_left(node, dialled);
    });
}

/// The process has a connection at the frontend's address, which this node has.
#[test]
fn kernel_an_error_about_a_local_process_is_left_to_the_stack() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve_both(node);
        for way in &WAYS {
            let (dialled, host) = (address(way.frontend), address(way.client).ip());
            network::bear(&host.to_string(), &dialled.ip().to_string());
            let listens = TcpListener::bind(dialled).unwrap();
            let of_process = TcpStream::connect(dialled).unwrap();
            let client = of_process.local_addr().unwrap().to_string();
            network::bear_no_more(&host.to_string(), &dialled.ip().to_string());
            let about = about_answer(TCP, &client, way.frontend);
            assert_eq!(node.come(&about), (NEXT, about.clone()));
            taken_apart(node.come(&about_answer(TCP, way.client, way.frontend)));
            drop((listens, of_process));
        }
    });
}

/// The following packets go there too, although the table may change meanwhile.
#[test]
fn kernel_an_adopted_connection_keeps_its_backend() {
    test(DsrTransports::Tcp, |node| {
        serve(node, |port, serve| serve(&port));
        let of = |node: &Node, way: &Way| taken_apart(node.come(&by(TCP, way, ACK).frame())).1;
        let before = WAYS.each_ref().map(|way| of(node, way));
        serve(node, |port, serve| {
            let others: Vec<_> = port.backends.iter().rev().copied().collect();
            serve(&Port { backends: &others, ..port });
        });
        assert_eq!(WAYS.each_ref().map(|way| of(node, way)), before);
        assert_eq!(node.counted(packet_count::COUNT_ADOPTED), 2);
    });
}

/// Checks that a segment passes to the stack unchanged, and opens no flow.
#[track_caller]
fn is_left(node: &Node, frame: &[u8], client: &str) {
    let before = node.counted(packet_count::COUNT_MIDSTREAM);
    assert_eq!(node.come(frame), (NEXT, frame.to_vec()));
    assert_eq!(node.counted(packet_count::COUNT_MIDSTREAM), before + 1);
    assert!(found(node, client).is_none());
}

#[track_caller]
fn all_are_left(node: &Node) {
    for (way, flags) in WAYS.iter().flat_map(|way| [(way, ACK), (way, RST), (way, RST | ACK)]) {
        is_left(node, &by(TCP, way, flags).frame(), way.client);
    }
}

/// If another node may have selected otherwise, or the backend would not see the client, nothing is encapsulated.
#[test]
fn kernel_a_segment_is_left_to_the_stack_if_nodes_may_select_differently() {
    test(DsrTransports::TcpAndUdp, |node| {
        let affinity = maglev().with(WordFlags::AFFINITY, true);
        let barred = maglev().with(WordFlags::SOURCES, true);
        for flags in [WordFlags::default(), affinity] {
            serve(node, |port, serve| serve(&Port { flags, ..port }));
            all_are_left(node);
        }
        let kind = FrontendType::LoadBalancer;
        serve(node, |port, serve| serve(&Port { flags: barred, kind, ..port }));
        all_are_left(node);
        serve(node, |port, serve| serve(&Port { backends: &[], ..port }));
        all_are_left(node);
    });
    for wraps in [DsrTransports::Off, DsrTransports::Tcp] {
        test(wraps, move |node| {
            for (at, way) in (1..).zip(&WAYS) {
                let here = [address(way.here)];
                let backends = if wraps == DsrTransports::Tcp { here.to_vec() } else { elsewhere(way) };
                node.serve(&port(at, &[way.frontend], &backends));
            }
            all_are_left(node);
        });
    }
}

/// Such a segment may belong to a connection of another proxy of this node, which only the stack has.
#[test]
fn kernel_a_segment_that_may_be_of_another_proxys_connection_is_left_to_the_stack() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, |port, serve| serve(&port));
        node.tell_of_device(DeviceSide::Outer, WAYS.each_ref().map(|way| way.own.parse().ok()));
        all_are_left(node);
        for way in &WAYS {
            taken_apart(node.come(&by(TCP, way, SYN).frame()));
        }
    });
}

/// A process of this node may have a connection at the frontend's address, if this node has the address.
#[test]
fn kernel_a_segment_of_a_local_process_is_left_to_the_stack() {
    test(DsrTransports::Tcp, |node| {
        serve(node, |port, serve| serve(&port));
        for way in &WAYS {
            let (dialled, host) = (address(way.frontend), address(way.client).ip());
            network::bear(&host.to_string(), &dialled.ip().to_string());
            let listens = TcpListener::bind(dialled).unwrap();
            let of_process = TcpStream::connect(dialled).unwrap();
            let client = of_process.local_addr().unwrap();
            assert_eq!(client.ip(), host);
            network::bear_no_more(&host.to_string(), &dialled.ip().to_string());
            let sent = Sent::tcp(&client.to_string(), way.frontend, ACK);
            is_left(node, &sent.frame(), &client.to_string());
            taken_apart(node.come(&by(TCP, way, ACK).frame()));
            drop((listens, of_process));
        }
    });
}

/// Segments that no node can have opened pass, even while flows move to another table.
#[test]
fn kernel_while_flows_pause_adoptable_segments_are_dropped_and_others_pass() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, |port, serve| serve(&Port { flags: WordFlags::default(), ..port }));
        node.tell_drains(now() + 100);
        all_are_left(node);
        serve(node, |port, serve| serve(&port));
        for way in &WAYS {
            assert_eq!(node.come(&by(TCP, way, ACK).frame()).0, SHOT);
            assert!(found(node, way.client).is_none());
        }
    });
}

/// A node port has another address on each node, and no other node has this one's.
#[test]
fn kernel_a_segment_at_a_node_port_is_left_to_the_stack() {
    test(DsrTransports::Tcp, |node| {
        for (at, way) in (1..).zip(&WAYS) {
            let own = SocketAddr::new(way.own.parse().unwrap(), 30_080).to_string();
            let backends = elsewhere(way);
            node.serve(&Port { kind: FrontendType::NodePort, ..port(at, &[&own], &backends) });
            is_left(node, &Sent::tcp(way.client, &own, ACK).frame(), way.client);
        }
    });
}

/// A SYN-ACK needs no backend, and a packet from a node's address comes from no client.
#[test]
fn kernel_segments_of_no_clients_connection_are_left_to_the_stack() {
    test(DsrTransports::TcpAndUdp, |node| {
        serve(node, |port, serve| serve(&port));
        for way in &WAYS {
            for flags in [SYN | ACK, SYN | RST, FIN, 0] {
                is_left(node, &by(TCP, way, flags).frame(), way.client);
            }
            for node_address in [way.own, way.node] {
                let client = SocketAddr::new(node_address.parse().unwrap(), 40_001).to_string();
                is_left(node, &Sent::tcp(&client, way.frontend, ACK).frame(), &client);
            }
            assert_eq!(node.come(&by(UDP, way, 0).frame()).0, NEXT, "no service over UDP");
        }
        assert_eq!(node.counted(packet_count::COUNT_ADOPTED), 0);
    });
}
