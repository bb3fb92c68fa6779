//! Which refused connects of sockets the daemon sees. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::bed::{
    Port, ThreadBed, address, bed, check_errno, closed_port, in_pod, pinned, reset_when_closed,
    socket_cookie, tcp_backend,
};
use holdfast_core::keys::Transport;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, QuotaId};
use holdfast_datapath::{BackendRefusal, KernelMaps};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use socket2::{Domain, Socket, Type};

const VIP: &str = "10.96.0.10:80";
const VIP6: &str = "[fd00::10]:80";

fn check_refused(to: &str) {
    check_errno(TcpStream::connect(address(to)), libc::ECONNREFUSED, to);
}

/// What the daemon has seen so far.
fn seen(maps: &mut KernelMaps) -> BTreeSet<BackendRefusal> {
    maps.collect_refused_connects();
    let seen = maps.status().refused_connects;
    assert_eq!(seen.failure, None);
    seen.refusals.into_keys().collect()
}

fn refusal(frontend: &str, backend: SocketAddr) -> BackendRefusal {
    let quota = Port::TCP.share;
    BackendRefusal { quota, frontend: address(frontend), transport: Transport::Tcp, backend }
}

#[test]
fn kernel_a_refused_connect_names_frontend_and_backend_of_both_families() {
    bed(|bed| {
        let mut maps = bed.start();
        let (v4, v6) = (closed_port("127.0.0.2:0"), closed_port("[::1]:0"));
        Port { frontends: &[VIP], backends: &[v4], ..Port::TCP }.serve(&mut maps);
        Port { index: 2, frontends: &[VIP6], backends: &[v6], ..Port::TCP }.serve(&mut maps);
        assert_eq!(seen(&mut maps), [].into());
        for (to, expected) in [
            (VIP, vec![refusal(VIP, v4)]),
            (VIP6, vec![refusal(VIP, v4), refusal(VIP6, v6)]),
            ("[::ffff:10.96.0.10]:80", vec![refusal(VIP, v4), refusal(VIP6, v6)]),
        ] {
            check_refused(to);
            assert_eq!(seen(&mut maps), expected.into_iter().collect(), "{to}");
        }
    });
}

/// Each kind of client alone, so that no other one hides that it is not seen.
#[test]
fn kernel_a_refused_connect_is_seen_of_each_kind_of_client() {
    let mapped = || check_refused("[::ffff:10.96.0.10]:80");
    let bound = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&address("127.0.0.1:0").into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        check_errno(socket.connect(&address(VIP).into()), libc::EINPROGRESS, "it does not wait");
        let error = socket.take_error().unwrap().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    };
    let in_a_pod = || in_pod(|| check_refused(VIP));
    let clients: [(&str, fn()); 3] =
        [("mapped", mapped), ("bound, without waiting", bound), ("in a pod", in_a_pod)];
    for (name, connect) in clients {
        bed(move |bed| {
            let mut maps = bed.start();
            let backend = closed_port("127.0.0.2:0");
            Port { frontends: &[VIP], backends: &[backend], ..Port::TCP }.serve(&mut maps);
            connect();
            assert_eq!(seen(&mut maps), [refusal(VIP, backend)].into(), "{name}");
        });
    }
}

#[test]
fn kernel_a_refused_connect_to_a_node_port_counts_for_its_service() {
    bed(|bed| {
        let mut maps = bed.start();
        let node = "192.0.2.1";
        maps.execute(&Action::InsertNodeAddress(node.parse().unwrap())).unwrap();
        let backend = closed_port("127.0.0.2:0");
        let share = QuotaId(7);
        let kind = FrontendType::NodePort;
        let port = Port { frontends: &["0.0.0.0:30080"], backends: &[backend], kind, share, ..Port::TCP };
        port.serve(&mut maps);
        check_refused("192.0.2.1:30080");
        let expected = BackendRefusal { quota: share, ..refusal("192.0.2.1:30080", backend) };
        assert_eq!(seen(&mut maps), [expected].into());
    });
}

#[test]
fn kernel_other_connects_are_not_refusals_of_a_service() {
    bed(|bed| {
        let mut maps = bed.start();
        let (backend, open) = (closed_port("127.0.0.2:0"), tcp_backend("127.0.0.3:0"));
        Port { frontends: &[VIP], backends: &[backend], ..Port::TCP }.serve(&mut maps);
        Port { index: 2, frontends: &["10.96.0.11:80"], backends: &[open], base: 8, ..Port::TCP }
            .serve(&mut maps);
        check_refused(&backend.to_string());
        drop(TcpStream::connect(address("10.96.0.11:80")).unwrap());
        bed.join(&bed.other_cgroup("other"));
        check_refused(&backend.to_string());
        assert_eq!(seen(&mut maps), [].into());
    });
}

#[test]
fn kernel_a_reset_of_an_open_connection_is_no_refusal() {
    bed(|bed| {
        let mut maps = bed.start();
        let backend = TcpListener::bind("127.0.0.2:0").unwrap();
        let at = backend.local_addr().unwrap();
        Port { frontends: &[VIP], backends: &[at], ..Port::TCP }.serve(&mut maps);
        let mut client = TcpStream::connect(address(VIP)).unwrap();
        let (served, _) = backend.accept().unwrap();
        reset_when_closed(&served).unwrap();
        drop(served);
        check_errno(client.read(&mut [0]), libc::ECONNRESET, "the backend resets");
        assert_eq!(seen(&mut maps), [].into());
    });
}

/// Writes what the map says a socket dialled.
fn write_dialled(bed: &ThreadBed, cookie: u64, frontend: SocketAddr, check: u32) {
    let reverse = MapHandle::from_pinned_path(bed.options().bpffs.join(pinned("shared/reverse"))).unwrap();
    let SocketAddr::V4(frontend) = frontend else { unreachable!("IPv4") };
    let mut entry = cookie.to_ne_bytes().to_vec();
    entry.extend([0; 10]);
    entry.extend([0xff, 0xff]);
    entry.extend(frontend.ip().octets());
    entry.extend(frontend.port().to_be_bytes());
    entry.extend([0; 2]);
    entry.extend(check.to_ne_bytes());
    let index = u32::try_from(cookie % u64::from(reverse.max_entries())).unwrap();
    reverse.update(&index.to_ne_bytes(), &entry, MapFlags::ANY).unwrap();
}

fn read_check(bed: &ThreadBed, cookie: u64) -> u32 {
    let reverse = MapHandle::from_pinned_path(bed.options().bpffs.join(pinned("shared/reverse"))).unwrap();
    let index = u32::try_from(cookie % u64::from(reverse.max_entries())).unwrap();
    let entry = reverse.lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    u32::from_ne_bytes(entry[28..].try_into().unwrap())
}

#[test]
fn kernel_an_entry_of_another_socket_or_backend_is_not_believed() {
    bed(|bed| {
        let mut maps = bed.start();
        let backend = closed_port("127.0.0.2:0");
        Port { frontends: &[VIP], backends: &[backend], ..Port::TCP }.serve(&mut maps);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let cookie = socket_cookie(&socket);
        assert!(socket.connect(&address(VIP).into()).is_err());
        let check = read_check(bed, cookie);
        assert_eq!(seen(&mut maps), [refusal(VIP, backend)].into());
        // The entry names another frontend of this service from here on.
        let other = "10.96.0.12:80";
        Port { index: 3, frontends: &[other], backends: &[backend], base: 8, ..Port::TCP }.serve(&mut maps);
        bed.join(&bed.other_cgroup("other"));
        let dial = |cookie_shift: u64, check| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let cookie = socket_cookie(&socket);
            write_dialled(bed, cookie + (cookie_shift << 17), address(other), check);
            assert!(socket.connect(&backend.into()).is_err());
        };
        dial(0, check);
        dial(1, check);
        assert_eq!(seen(&mut maps), [refusal(VIP, backend)].into());
    });
}

/// A tenant with many refusing backends leaves room for another one's.
#[test]
fn kernel_many_refusing_backends_of_one_service_hide_no_other() {
    bed(|bed| {
        let mut maps = bed.start();
        let many: Vec<_> = (1..=1_000).map(|port| address(&format!("127.0.0.2:{port}"))).collect();
        let one = closed_port("127.0.0.3:0");
        let share = QuotaId(2);
        Port { frontends: &[VIP], backends: &many, ..Port::TCP }.serve(&mut maps);
        Port { index: 2, frontends: &[VIP6], backends: &[closed_port("[::1]:0")], share, ..Port::TCP }
            .serve(&mut maps);
        let other = "10.96.0.11:80";
        Port { index: 3, frontends: &[other], backends: &[one], base: 1_024, share, ..Port::TCP }
            .serve(&mut maps);
        check_refused(other);
        for _ in 0..3_000 {
            assert!(TcpStream::connect(address(VIP)).is_err());
        }
        check_refused(VIP6);
        let counts = |maps: &mut KernelMaps| {
            let seen = seen(maps);
            [QuotaId(1), share].map(|quota| seen.iter().filter(|it| it.quota == quota).count())
        };
        let [busy, quiet] = counts(&mut maps);
        assert!((1..=8).contains(&busy), "{busy}: one frontend has so many entries");
        // Two frontends share entries by a chance of 1 in 512.
        assert!(quiet >= 1, "{quiet}");
    });
}

#[test]
fn kernel_refusals_end_with_the_daemon() {
    bed(|bed| {
        let mut maps = bed.start();
        let backend = closed_port("127.0.0.2:0");
        Port { frontends: &[VIP], backends: &[backend], ..Port::TCP }.serve(&mut maps);
        check_refused(VIP);
        assert_eq!(seen(&mut maps).len(), 1);
        drop(maps);
        let mut maps = bed.start();
        assert_eq!(seen(&mut maps), [].into());
        check_refused(VIP);
        assert_eq!(seen(&mut maps), [refusal(VIP, backend)].into());
        maps.execute(&Action::RemoveFrontend(Port::TCP.key(VIP))).unwrap();
        assert_eq!(seen(&mut maps).len(), 1, "it is kept for a while");
    });
}
