//! Node ports for sockets: at which addresses they answer, and which loopback stays its own. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::net::{TcpListener, TcpStream};

use crate::bed::{self, Port, address, bed, check_errno, dial, knows_its_netns, tcp_backend, udp_client};
use holdfast_core::keys::Transport;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, PortIndex};
use holdfast_datapath::PortCounts;

#[test]
fn kernel_node_ports_answer_on_node_addresses_and_the_loopback_where_it_is_one() {
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

/// Listens at the loopback, and has each way to dial it by TCP and UDP come there.
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
            tcp.accept().unwrap_or_else(|error| panic!("{to} came elsewhere: {error}"));
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
fn kernel_who_listens_at_the_loopback_loses_no_client_to_a_node_port() {
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
        // With the word a pod's loopback stays its own all the same.
        for node in ["127.0.0.1", "::1"] {
            maps.execute(&Action::InsertNodeAddress(node.parse().unwrap())).unwrap();
        }
        bed::in_pod(check_loopback_is_own);
        // And without it again the host's is.
        for node in ["127.0.0.1", "::1"] {
            maps.execute(&Action::RemoveNodeAddress(node.parse().unwrap())).unwrap();
        }
        check_loopback_is_own();
        let counts = maps.live_maps().port_counts;
        assert_eq!([1, 2].map(|index| counts.read_port(PortIndex(index))), [PortCounts::default(); 2]);
    });
}

/// As a block of the configuration has it for processes of the host, or the virtual address of apiservers.
#[test]
fn kernel_a_frontend_at_the_hosts_loopback_is_not_at_that_of_a_pod() {
    bed(|bed| {
        let mut maps = bed.start();
        let frontends = &["127.0.0.1:30080", "[::1]:30080"];
        let at_loopback = Port { kind: FrontendType::Static, frontends, ..Port::TCP };
        at_loopback.serve(&mut maps);
        Port { index: 2, keeps_members: true, transport: Transport::Udp, ..at_loopback }.serve(&mut maps);
        let counts = || [1, 2].map(|index| maps.live_maps().port_counts.read_port(PortIndex(index)));
        // A daemon that does not know its network cannot tell the host's clients from a pod's.
        if knows_its_netns() {
            bed::in_pod(check_loopback_is_own);
            assert_eq!(counts(), [PortCounts::default(); 2]);
        }
        drop(TcpStream::connect(address(frontends[0])));
        assert_ne!(counts()[0], PortCounts::default(), "the host's is served");
    });
}

/// Every way to dial the unspecified address reaches this very client's listener.
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
fn kernel_who_dials_the_unspecified_address_means_itself_and_no_node_port() {
    bed(|bed| {
        let mut maps = bed.start();
        let node_port =
            Port { kind: FrontendType::NodePort, frontends: &["0.0.0.0:30080", "[::]:30080"], ..Port::TCP };
        node_port.serve(&mut maps);
        Port { index: 2, keeps_members: true, transport: Transport::Udp, ..node_port }.serve(&mut maps);
        // Frontends of the same blocks of addresses, which have programs look.
        let near = ["0.0.1.1:80", "[2001:db8:2001:db8::1]:80"];
        Port { index: 3, frontends: &near, ..Port::TCP }.serve(&mut maps);
        check_unspecified_is_own();
        bed::in_pod(check_unspecified_is_own);
        let counts = maps.live_maps().port_counts;
        assert_eq!([1, 2].map(|index| counts.read_port(PortIndex(index))), [PortCounts::default(); 2]);
    });
}

/// Node ports on the loopback of this bed, which is not in the machine's first network.
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
