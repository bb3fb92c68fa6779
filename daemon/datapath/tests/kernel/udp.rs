//! Conversations over UDP: a socket keeps its backend and sees the dialled address in all events. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::bed::{
    Port, ThreadBed, address, answer, ask, bed, check_errno, sweep, tells_what_sockets_keep, udp_backend,
    udp_client,
};
use holdfast_core::list::Scope;
use holdfast_core::maps::Maps;
use holdfast_core::op::{MapGrowth, WordFlags};
use holdfast_datapath::{KernelMaps, PrepareOutcome};
use nix::sys::resource::{Resource, setrlimit};

const UDP: Port<'_> = Port::UDP;
const DNS: &str = "10.96.0.10:53";

fn connected(to: SocketAddr) -> UdpSocket {
    let socket = udp_client("0.0.0.0:0");
    socket.connect(to).unwrap();
    socket
}

/// More than any reasonable table for one node could remember.
const SHORT_LIVED: u32 = 70_000;

fn ask_by_short_lived_sockets(vip: &str) {
    for _ in 0..SHORT_LIVED {
        UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"who", address(vip)).unwrap();
    }
}

#[test]
fn kernel_short_lived_udp_sockets_displace_no_others() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [udp_backend("127.0.0.2:0")];
        let port = Port { frontends: &[DNS], backends: &backends, ..UDP };
        port.serve(&mut maps);
        // A server that reads nothing, so that its clients are cheap.
        let silent = UdpSocket::bind("127.0.0.9:0").unwrap();
        let silent = [silent.local_addr().unwrap()];
        Port { index: 2, base: 8, frontends: &["10.96.0.11:53"], backends: &silent, ..UDP }.serve(&mut maps);

        let (idle, waiting) = (connected(address(DNS)), udp_client("0.0.0.0:0"));
        waiting.send_to(b"who", address(DNS)).unwrap();
        ask_by_short_lived_sockets("10.96.0.11:53");
        assert_eq!(idle.peer_addr().unwrap(), address(DNS), "getpeername");
        assert_eq!(answer(&waiting).1, address(DNS), "the awaited reply");
        idle.send(b"who").unwrap();
        assert_eq!(answer(&idle).1, address(DNS), "recvfrom");
        let before = sweep(&mut maps);
        Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
        assert_eq!(sweep(&mut maps), before + 1, "its backend has left, and its entry still exists");
    });
}

#[test]
fn kernel_an_added_backend_moves_no_udp_conversation() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..43).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        let port = Port { frontends: &[DNS], backends: &backends[..40], ..UDP };
        port.serve(&mut maps);
        let unconnected: Vec<_> = (0..200).map(|_| udp_client("0.0.0.0:0")).collect();
        let connected: Vec<_> = (0..200).map(|_| connected(address(DNS))).collect();
        let all = || unconnected.iter().chain(&connected);
        let before: Vec<_> = all().map(|socket| ask(socket, DNS)).collect();
        Port { backends: &backends, base: 64, ..port }.publish(&mut maps, Scope::Cluster);
        // A connected socket receives no replies to datagrams that went elsewhere.
        let after: Vec<_> = all().map(|socket| ask(socket, DNS)).collect();
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert_eq!(moved, 0, "of {}", before.len());
    });
}

#[test]
fn kernel_a_member_outside_the_list_keeps_its_sockets_and_conversations() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [udp_backend("127.0.0.2:0"), udp_backend("127.0.0.3:0")];
        let port = Port { frontends: &[DNS], backends: &backends[..1], ..UDP };
        port.serve(&mut maps);
        let (connected, conversing) = (connected(address(DNS)), udp_client("0.0.0.0:0"));
        let first = (backends[0], address(DNS));
        assert_eq!(ask(&conversing, DNS), first);
        let before = sweep(&mut maps);
        let elsewhere = Port { backends: &backends[1..], base: 64, ..port };
        let nobody_here = Port { backends: &[], flags: WordFlags::DROP, ..port };
        for (what, change) in [("the list is of others", elsewhere), ("the list is empty", nobody_here)] {
            change.publish_beside(&mut maps, Scope::Cluster, &backends[..1]);
            assert_eq!(sweep(&mut maps), before, "{what}");
            connected.send(b"who").unwrap();
            assert_eq!(answer(&connected), first, "{what}");
            assert_eq!(ask(&conversing, DNS), first, "{what}");
            assert_eq!(ask(&connected, DNS), first, "sendto on a connected socket; {what}");
        }
        Port { backends: &backends[1..], base: 128, ..port }.publish(&mut maps, Scope::Cluster);
        assert_eq!(sweep(&mut maps), before + 1, "it does not serve any more");
        check_errno(connected.recv(&mut [0; 8]), libc::ECONNABORTED, "the owner gets an error");
        assert_eq!(ask(&conversing, DNS), (backends[1], address(DNS)), "a datagram selects a backend anew");
    });
}

#[test]
fn kernel_a_udp_socket_connected_directly_to_a_backend_is_left_alone() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [udp_backend("127.0.0.2:0")];
        let port = Port { frontends: &[DNS], backends: &backends, ..UDP };
        port.serve(&mut maps);
        let socket = connected(address(DNS));
        assert_eq!(socket.peer_addr().unwrap(), address(DNS));
        socket.connect(backends[0]).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), backends[0]);
        let before = sweep(&mut maps);
        Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
        assert_eq!(sweep(&mut maps), before, "a direct connection stays");
        socket.send(b"who").unwrap();
        assert_eq!(answer(&socket), (backends[0], backends[0]));
    });
}

#[test]
fn kernel_two_services_with_one_backend_are_distinguished_by_the_dialled_address() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [udp_backend("127.0.0.2:0")];
        let other = "10.96.0.11:53";
        Port { frontends: &[DNS], backends: &backends, ..UDP }.serve(&mut maps);
        Port { index: 2, base: 8, frontends: &[other], backends: &backends, ..UDP }.serve(&mut maps);
        let socket = udp_client("0.0.0.0:0");
        for vip in [DNS, other, DNS, DNS, other] {
            assert_eq!(ask(&socket, vip), (backends[0], address(vip)));
        }
    });
}

#[test]
fn kernel_a_udp_sockets_peer_is_not_displaced_by_other_dials() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..14).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        let vips: Vec<_> = (0..12).map(|n| format!("10.96.0.{}:53", 10 + n)).collect();
        for (n, (vip, backend)) in (0..).zip(vips.iter().zip(&backends)) {
            let (frontends, backends) = ([vip.as_str()], [*backend]);
            Port { index: 1 + n, base: 8 * n, frontends: &frontends, backends: &backends, ..UDP }
                .serve(&mut maps);
        }
        let (connected, unconnected) = (connected(address(&vips[0])), udp_client("0.0.0.0:0"));
        for (vip, backend) in vips.iter().zip(&backends).cycle().take(40) {
            assert_eq!(ask(&unconnected, vip), (*backend, address(vip)), "one after the other");
            // A socket connected elsewhere does not receive the replies.
            connected.send_to(b"who", address(vip)).unwrap();
        }
        // All at once: as many as are remembered.
        vips[..7].iter().for_each(|vip| _ = unconnected.send_to(b"who", address(vip)).unwrap());
        let mut heard: Vec<_> = (0..7).map(|_| answer(&unconnected).1).collect();
        heard.sort();
        assert_eq!(heard, vips[..7].iter().map(|vip| address(vip)).collect::<Vec<_>>());
        assert_eq!(connected.peer_addr().unwrap(), address(&vips[0]));
        let before = sweep(&mut maps);
        Port { frontends: &[&vips[0]], backends: &[], ..UDP }.publish(&mut maps, Scope::Cluster);
        assert_eq!(sweep(&mut maps), before + 1, "its dialled address is still recorded");
    });
}

#[test]
fn kernel_growth_and_restart_move_no_udp_conversation() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..18).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        let port = Port { frontends: &[DNS], backends: &backends, ..UDP };
        port.serve(&mut maps);
        let sockets: Vec<_> = (0..32).map(|_| udp_client("0.0.0.0:0")).collect();
        let asked = || sockets.iter().map(|socket| ask(socket, DNS)).collect::<Vec<_>>();
        let connected = connected(address(DNS));
        let before = asked();
        maps.reserve_capacity(&MapGrowth { ports: 10_000, ..MapGrowth::default() }).unwrap();
        assert_eq!(maps.status().growths, 1);
        assert_eq!(asked(), before, "growth");
        drop(maps);
        assert_eq!(asked(), before, "no daemon");
        let mut maps = bed.start();
        assert_eq!(asked(), before, "another daemon");
        assert_eq!(sweep(&mut maps), 0);
        Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
        assert_eq!(sweep(&mut maps), 1, "the new daemon reads what the socket dialled");
        assert!(connected.peer_addr().is_err());
    });
}

/// Clients' sockets: a thousand take two thirds of a megabyte of map memory.
const CLIENTS: u64 = 4_000;

/// A cgroup at the root of the hierarchy that accounts memory. Dropping the value removes it.
struct Payer {
    folder: PathBuf,
    usage: &'static str,
}

impl Payer {
    fn new() -> Self {
        let first = Path::new("/sys/fs/cgroup/memory");
        let (top, usage) = if first.is_dir() {
            (first, "memory.usage_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.current")
        };
        let folder = top.join(format!("holdfast-payer-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Self { folder, usage }
    }

    fn enter(&self) {
        fs::write(self.folder.join("cgroup.procs"), "0").unwrap();
    }

    fn leave(&self) {
        fs::write(self.folder.with_file_name("cgroup.procs"), "0").unwrap();
    }

    fn pays(&self) -> u64 {
        fs::read_to_string(self.folder.join(self.usage)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Payer {
    fn drop(&mut self) {
        self.leave();
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The memory charged to the daemon's cgroup per socket of clients in another one.
fn paid_for_each_client(bed: &ThreadBed, prepares: bool) -> u64 {
    let payer = Payer::new();
    payer.enter();
    if prepares {
        let prepare = || holdfast_datapath::prepare_socket_maps(&bed.options().bpffs).unwrap();
        assert_eq!((prepare(), prepare()), (PrepareOutcome::Created, PrepareOutcome::Existing));
        payer.enter();
    }
    let mut maps = KernelMaps::start(&bed.options()).unwrap();
    Port { frontends: &[DNS], backends: &[udp_backend("127.0.0.2:0")], ..UDP }.serve(&mut maps);
    payer.leave();
    bed.join(&bed.cgroup);
    let before = payer.pays();
    let clients: Vec<_> = (0..CLIENTS).map(|_| connected(address(DNS))).collect();
    let paid = payer.pays().saturating_sub(before) / CLIENTS;
    assert!(clients.iter().all(|client| client.peer_addr().unwrap() == address(DNS)), "each is recorded");
    paid
}

/// Otherwise any pod could exhaust the daemon's memory limit by such a map.
#[test]
fn client_sockets_are_not_charged_to_the_daemon_with_a_prepared_map() {
    setrlimit(Resource::RLIMIT_NOFILE, 2 * CLIENTS, 2 * CLIENTS).unwrap();
    bed(|bed| assert!(paid_for_each_client(bed, false) > 300, "otherwise this test shows nothing"));
    bed(|bed| assert!(paid_for_each_client(bed, true) < 100));
}
