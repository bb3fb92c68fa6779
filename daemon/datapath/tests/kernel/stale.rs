//! Which sockets end when their backend leaves, and where. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use crate::bed::{
    CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, Port, ThreadBed, address, answer,
    bed, check_errno, in_pod, sweep, sweep_while, swept, tells_what_sockets_keep, udp_backend, udp_client,
    with_capabilities,
};
use holdfast_core::list::Scope;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, Op, Owner};
use holdfast_datapath::{KernelMaps, Namespaces, StaleSockets, StartOptions};

const UDP: Port<'_> = Port::UDP;
const DNS: &str = "10.96.0.10:53";
/// After so many sweeps the thread rests, unless something changes.
const SWEEPS_UNTIL_REST: usize = 2;

/// A daemon outside that ends these sockets, with this thread as its client.
fn start(bed: &ThreadBed, udp: bool, tcp: bool, namespaces: Namespaces) -> KernelMaps {
    let options = StartOptions { stale_sockets: StaleSockets { udp, tcp, namespaces }, ..bed.options() };
    let maps = KernelMaps::start(&options).unwrap();
    bed.join(&bed.cgroup);
    maps
}

fn connected(to: SocketAddr) -> UdpSocket {
    let socket = udp_client(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" });
    socket.connect(to).unwrap();
    socket
}

#[test]
fn kernel_only_connected_udp_sockets_whose_backend_left_are_ended() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut maps = bed.start();
        for (index, vip, backends) in [
            (1, DNS, [udp_backend("127.0.0.2:0"), udp_backend("127.0.0.3:0")]),
            (2, "[fd00::10]:53", [udp_backend("[::1]:0"), udp_backend("[::1]:0")]),
        ] {
            let port = Port { index, frontends: &[vip], backends: &backends[..1], ..UDP };
            port.serve(&mut maps);
            let (translated, direct) = (connected(address(vip)), connected(backends[0]));
            let before = swept(&maps).ended;
            assert_eq!(sweep(&mut maps), before, "its backend is in the list");
            Port { backends: &backends[1..], base: 64, ..port }.publish(&mut maps, Scope::Cluster);
            assert_eq!(sweep(&mut maps), before + 1, "its backend has left");
            check_errno(translated.recv(&mut [0; 8]), libc::ECONNABORTED, "the owner gets an error");
            assert_eq!(sweep(&mut maps), before + 1, "the next sweep ends none");
            direct.send(b"who").unwrap();
            assert_eq!(answer(&direct).0, backends[0], "a direct client keeps its backend");
            translated.connect(address(vip)).unwrap();
            translated.send(b"who").unwrap();
            assert_eq!(answer(&translated), (backends[1], address(vip)), "connecting again helps");
        }
        assert_eq!(swept(&maps).failure, None);
    });
}

#[test]
fn kernel_sockets_of_frontends_removed_in_a_batch_are_ended() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [udp_backend("127.0.0.2:0")];
        let port = Port { index: 1, frontends: &[DNS], backends: &backends, ..UDP };
        port.serve(&mut maps);
        let socket = connected(address(DNS));
        (0..SWEEPS_UNTIL_REST).for_each(|_| assert_eq!(sweep(&mut maps), 0, "its frontend exists"));
        let gone = Action::RemoveFrontend(port.key(DNS));
        assert_eq!(maps.execute_batch(&[Op { owner: Owner::Nobody, action: gone }]), Ok(1));
        assert_eq!(sweep(&mut maps), 1);
        check_errno(socket.recv(&mut [0; 8]), libc::ECONNABORTED, "the owner gets an error");
    });
}

/// Listeners that accept nothing: their clients are connected nevertheless.
fn listeners() -> [TcpListener; 2] {
    ["127.0.0.2:0", "[::1]:0"].map(|at| TcpListener::bind(at).unwrap())
}

#[track_caller]
fn check_tcp(tcp: bool) {
    bed(move |bed| {
        let mut maps = start(bed, true, tcp, Namespaces::Host);
        let listeners = listeners();
        let [v4, v6] = [0, 1].map(|at| [listeners[at].local_addr().unwrap()]);
        let ports = [
            Port { frontends: &["10.96.0.10:80"], backends: &v4, keeps_members: true, ..Port::TCP },
            Port { index: 2, frontends: &["[fd00::10]:80"], backends: &v6, keeps_members: true, ..Port::TCP },
        ];
        ports.iter().for_each(|port| port.serve(&mut maps));
        let dial = |to: SocketAddr| TcpStream::connect(to).unwrap();
        let translated =
            ["10.96.0.10:80", "[fd00::10]:80", "[::ffff:10.96.0.10]:80"].map(|vip| dial(address(vip)));
        let direct = [dial(v4[0]), dial(v6[0])];
        assert_eq!(sweep(&mut maps), 0, "their backends are in the lists");
        for port in ports {
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
        }
        assert_eq!(sweep(&mut maps), if tcp { 3 } else { 0 });
        for mut stream in translated {
            assert_eq!(stream.peer_addr().is_err(), tcp);
            if tcp {
                check_errno(stream.read(&mut [0; 8]), libc::ECONNABORTED, "the owner gets an error");
            }
        }
        assert!(direct.iter().all(|stream| stream.peer_addr().is_ok()), "direct connections stay");
    });
}

#[test]
fn kernel_only_tcp_connections_whose_backend_left_are_ended() {
    check_tcp(true);
}

#[test]
fn kernel_tcp_connections_stay_unless_the_configuration_ends_them() {
    check_tcp(false);
}

/// Opens a pod's sockets, one of which dialled a frontend that loses its backend, and returns how many are ended.
fn ended_in_pod(maps: &mut KernelMaps) -> u64 {
    in_pod(|| {
        let backends = [address("127.0.0.2:5353")];
        let port = Port { frontends: &[DNS], backends: &backends, ..UDP };
        port.serve(maps);
        let (translated, direct) = (connected(address(DNS)), connected(backends[0]));
        assert_eq!(sweep(maps), 0, "its backend is in the list");
        Port { backends: &[], ..port }.publish(maps, Scope::Cluster);
        let ended = sweep(maps);
        assert_eq!(translated.peer_addr().is_err(), ended > 0);
        assert!(direct.peer_addr().is_ok(), "a direct client keeps its backend");
        ended
    })
}

/// A start may not have written the dialled frontend yet.
#[test]
fn kernel_sockets_of_a_missing_frontend_stay_until_the_maps_are_complete() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [udp_backend("127.0.0.2:0")];
        let port = Port { index: 1, frontends: &[DNS], backends: &backends, ..UDP };
        port.serve(&mut maps);
        let socket = connected(address(DNS));
        let gone = Action::RemoveFrontend(port.key(DNS));
        assert_eq!(maps.execute_batch(&[Op { owner: Owner::Nobody, action: gone }]), Ok(1));
        (0..SWEEPS_UNTIL_REST).for_each(|_| assert_eq!(sweep_while(&mut maps, false), 0));
        socket.send(b"who").unwrap();
        assert_eq!(sweep(&mut maps), 1, "no service has that frontend");
        check_errno(socket.recv(&mut [0; 8]), libc::ECONNABORTED, "the owner gets an error");
    });
}

#[test]
fn kernel_sockets_of_pods_are_ended_only_if_configured() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| assert_eq!(ended_in_pod(&mut start(bed, true, false, Namespaces::Host)), 0));
    bed(|bed| {
        let mut maps = start(bed, true, true, Namespaces::All);
        assert_eq!(ended_in_pod(&mut maps), 1);
        assert_eq!(swept(&maps).failure, None);
    });
}

#[test]
fn kernel_ending_sockets_of_pods_reports_a_missing_capability() {
    if !tells_what_sockets_keep() {
        return;
    }
    const DAEMONS: u64 = CAP_BPF | CAP_NET_ADMIN | CAP_PERFMON;
    for (more, missing) in [
        (0, Some("seeing other processes' namespaces needs CAP_SYS_PTRACE")),
        (CAP_SYS_PTRACE, Some("entering other network namespaces needs CAP_SYS_ADMIN")),
        (CAP_SYS_PTRACE | CAP_SYS_ADMIN, None),
    ] {
        bed(move |bed| {
            let mut maps = with_capabilities(DAEMONS | more, || start(bed, true, false, Namespaces::All));
            assert_eq!(ended_in_pod(&mut maps), u64::from(missing.is_none()));
            assert_eq!(swept(&maps).failure.as_deref(), missing);
        });
    }
}

#[test]
fn kernel_without_sockets_to_end_no_thread_runs() {
    bed(|bed| {
        let mut maps = start(bed, false, false, Namespaces::All);
        maps.end_stale_sockets(true).unwrap();
        assert_eq!(maps.status().stale_sockets, None);
    });
}
