//! Node ports for sockets: the addresses that serve them, and the loopbacks that do not. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::net::{TcpListener, TcpStream};

use crate::bed::{self, Port, address, bed, check_errno, dial, knows_its_netns, tcp_backend, udp_client};
use holdfast_core::keys::Transport;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, PortIndex};
use holdfast_datapath::PortCounts;

#[test]
fn kernel_node_ports_are_served_at_node_addresses_including_the_loopback() {
    bed(|bed| {
        let mut maps = bed.start();
        let v4 = [tcp_backend("127.0.0.2:0")];
        let v6 = [tcp_backend("[::1]:0")];
        let node_port = Port { kind: FrontendType::NodePort, ..Port::TCP };
        Port { frontends: &["0.0.0.0:30080"], backends: &v4, ..node_port }.serve(&mut maps);
        Port { index: 2, frontends: &["[::]:30080"], backends: &v6, ..node_port }.serve(&mut maps);
        for node in ["192.0.2.1", "2001:db8::1", "127.0.0.1", "::1"] {
            maps.execute(&Action::InsertNodeAddress(node.parse().unwrap())).unwrap();
        }
        for node in ["192.0.2.1:30080", "[2001:db8::1]:30080"] {
            assert_eq!(dial(node), address(node));
        }
        check_loopback(&["127.0.0.1:30080", "127.1.2.3:30080", "[::1]:30080", "[::ffff:127.0.0.1]:30080"]);
        let refused = TcpStream::connect(address("127.0.0.1:30081"));
        check_errno(refused, libc::ECONNREFUSED, "another port of the loopback has no listener");
        let unreachable = TcpStream::connect(address("192.0.2.2:30080"));
        check_errno(unreachable, libc::ENETUNREACH, "not an address of this node");
        maps.execute(&Action::RemoveFrontend(node_port.key("0.0.0.0:30080"))).unwrap();
        check_errno(TcpStream::connect(address("127.0.0.1:30080")), libc::ECONNREFUSED, "removed");
        assert_eq!(
            dial("[2001:db8::1]:30080"),
            address("[2001:db8::1]:30080"),
            "the other family keeps its bit"
        );
        check_loopback(&["[::1]:30080"]);
    });
}

/// Listens on the loopback, and checks that all dials by TCP and UDP arrive there.
#[track_caller]
fn check_loopback_is_own() {
    for (at, ways) in [
        ("127.0.0.1:30080", &["127.0.0.1:30080", "[::ffff:127.0.0.1]:30080"][..]),
        ("127.9.9.9:30080", &["127.9.9.9:30080"]),
        ("[::1]:30080", &["[::1]:30080"]),
    ] {
        let (tcp, udp) = (TcpListener::bind(address(at)).unwrap(), udp_client(at));
        tcp.set_nonblocking(true).unwrap();
        for to in ways.iter().copied().map(address) {
            TcpStream::connect(to).unwrap();
            tcp.accept().unwrap_or_else(|error| panic!("{to} went elsewhere: {error}"));
            let client = udp_client(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" });
            client.send_to(b"x", to).unwrap();
            assert_eq!(udp.recv(&mut [0; 8]).unwrap(), 1, "{to}");
            client.connect(to).unwrap();
            client.send(b"x").unwrap();
            assert_eq!(udp.recv(&mut [0; 8]).unwrap(), 1, "{to}, connected");
        }
    }
}

#[test]
fn kernel_a_loopback_listener_loses_no_client_to_a_node_port() {
    bed(|bed| {
        let mut maps = bed.start();
        let frontends = &["0.0.0.0:30080", "[::]:30080"];
        let node_port = Port { kind: FrontendType::NodePort, frontends, ..Port::TCP };
        node_port.serve(&mut maps);
        Port { index: 2, keeps_members: true, transport: Transport::Udp, ..node_port }.serve(&mut maps);
        for node in ["192.0.2.1", "2001:db8::1"] {
            maps.execute(&Action::InsertNodeAddress(node.parse().unwrap())).unwrap();
        }
        check_loopback_is_own();
        // With loopback node addresses, a pod's loopback is still its own.
        for node in ["127.0.0.1", "::1"] {
            maps.execute(&Action::InsertNodeAddress(node.parse().unwrap())).unwrap();
        }
        bed::in_pod(check_loopback_is_own);
        // Without them the host's loopback is its own again.
        for node in ["127.0.0.1", "::1"] {
            maps.execute(&Action::RemoveNodeAddress(node.parse().unwrap())).unwrap();
        }
        check_loopback_is_own();
        let counts = maps.live_maps().port_counts;
        assert_eq!([1, 2].map(|index| counts.read_port(PortIndex(index))), [PortCounts::default(); 2]);
    });
}

/// As for frontends of the host's processes by the configuration, or a virtual address of apiservers.
#[test]
fn kernel_a_frontend_at_the_hosts_loopback_is_not_served_in_pods() {
    bed(|bed| {
        let mut maps = bed.start();
        let frontends = &["127.0.0.1:30080", "[::1]:30080"];
        let at_loopback = Port { kind: FrontendType::Static, frontends, ..Port::TCP };
        at_loopback.serve(&mut maps);
        Port { index: 2, keeps_members: true, transport: Transport::Udp, ..at_loopback }.serve(&mut maps);
        let counts = || [1, 2].map(|index| maps.live_maps().port_counts.read_port(PortIndex(index)));
        // Without its network namespace's cookie, a daemon cannot tell the host's clients from a pod's.
        if knows_its_netns() {
            bed::in_pod(check_loopback_is_own);
            assert_eq!(counts(), [PortCounts::default(); 2]);
        }
        drop(TcpStream::connect(address(frontends[0])));
        assert_ne!(counts()[0], PortCounts::default(), "the host's client is served");
    });
}

/// Dials the unspecified address in all forms, which must reach this client's own listener.
#[track_caller]
fn check_unspecified_is_own() {
    let tcp = TcpListener::bind("[::]:30080").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let udp = udp_client("[::]:30080");
    for (any, to) in
        [("0.0.0.0:0", "0.0.0.0:30080"), ("[::]:0", "[::]:30080"), ("[::]:0", "[::ffff:0.0.0.0]:30080")]
    {
        TcpStream::connect(address(to)).unwrap();
        tcp.accept().unwrap();
        let client = udp_client(any);
        client.send_to(b"x", address(to)).unwrap();
        assert_eq!(udp.recv(&mut [0; 8]).unwrap(), 1, "{to}");
        client.connect(address(to)).unwrap();
        client.send(b"x").unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(udp.recv(&mut [0; 8]).unwrap(), 1, "{to}, connected");
    }
}

#[test]
fn kernel_the_unspecified_address_reaches_the_own_listener_and_no_node_port() {
    bed(|bed| {
        let mut maps = bed.start();
        let node_port =
            Port { kind: FrontendType::NodePort, frontends: &["0.0.0.0:30080", "[::]:30080"], ..Port::TCP };
        node_port.serve(&mut maps);
        Port { index: 2, keeps_members: true, transport: Transport::Udp, ..node_port }.serve(&mut maps);
        // Frontends of the same address blocks, so that programs look.
        let near = ["0.0.1.1:80", "[2001:db8:2001:db8::1]:80"];
        Port { index: 3, frontends: &near, ..Port::TCP }.serve(&mut maps);
        check_unspecified_is_own();
        bed::in_pod(check_unspecified_is_own);
        let counts = maps.live_maps().port_counts;
        assert_eq!([1, 2].map(|index| counts.read_port(PortIndex(index))), [PortCounts::default(); 2]);
    });
}

/// Node ports on the loopback of this bed, whose network is not the machine's first.
#[track_caller]
fn check_loopback(node_ports: &[&str]) {
    for node in node_ports {
        if knows_its_netns() {
            assert_eq!(dial(node), address(node));
        } else {
            check_errno(TcpStream::connect(address(node)), libc::ECONNREFUSED, "as if it were a pod's");
        }
    }
}
