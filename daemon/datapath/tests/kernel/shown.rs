//! What a translated client sees of its translation, and where the kernel shows the backend. Needs root.
//!
//! Invariant: `docs/kernels.md` describes each case tested here.

// Everything here is a test.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::bed::{Port, address, answer, bed, check_errno, tcp_backend, udp_backend, udp_client};

const VIP: &str = "10.96.0.10:80";
const OTHER_VIP: &str = "10.96.0.11:80";
const UDP: Port<'_> = Port::UDP;

/// The remote addresses of this network's TCP sockets, as `ss` and `netstat` show them. The other side may have closed
/// already.
fn remote_ends() -> Vec<SocketAddr> {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let end = |line: &str| {
        let (ip, port) = line.split_whitespace().nth(2).unwrap().split_once(':').unwrap();
        let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).unwrap().to_ne_bytes());
        SocketAddr::from((ip, u16::from_str_radix(port, 16).unwrap()))
    };
    table.lines().skip(1).map(end).collect()
}

#[test]
fn kernel_getpeername_shows_the_service_and_ss_the_backend() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [tcp_backend("127.0.0.2:0")];
        Port { frontends: &[VIP], backends: &backends, ..Port::TCP }.serve(&mut maps);
        let client = TcpStream::connect(address(VIP)).unwrap();
        assert_eq!(client.peer_addr().unwrap(), address(VIP));
        let remote = remote_ends();
        assert!(remote.contains(&backends[0]) && !remote.contains(&address(VIP)), "{remote:?}");
    });
}

/// The address in the error queue: the destination of the datagram that caused the error.
fn name_in_error_queue(socket: &UdpSocket) -> SocketAddr {
    // SAFETY: zeros are a valid address and a valid message; the kernel writes into the message's buffers during the
    // call.
    unsafe {
        let mut name: libc::sockaddr_in = std::mem::zeroed();
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = u32::try_from(size_of_val(&name)).unwrap();
        let got = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE);
        assert!(got >= 0, "{}", io::Error::last_os_error());
        let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
        SocketAddr::from((ip, u16::from_be(name.sin_port)))
    }
}

fn set(socket: i32, level: i32, option: i32) {
    let on = 1_i32;
    // SAFETY: the kernel reads the four bytes of the number.
    let returned = unsafe { libc::setsockopt(socket, level, option, (&raw const on).cast(), 4) };
    assert_eq!(returned, 0, "{}", io::Error::last_os_error());
}

#[test]
fn kernel_the_error_queue_names_the_backend() {
    bed(|bed| {
        let mut maps = bed.start();
        // Nothing listens there, so an error returns.
        let closed = address("127.0.0.2:9");
        Port { frontends: &[VIP], backends: &[closed], ..UDP }.serve(&mut maps);
        let (connected, unconnected) = (udp_client("0.0.0.0:0"), udp_client("0.0.0.0:0"));
        connected.connect(address(VIP)).unwrap();
        for socket in [&connected, &unconnected] {
            set(socket.as_raw_fd(), libc::SOL_IP, libc::IP_RECVERR);
        }
        connected.send(b"x").unwrap();
        unconnected.send_to(b"x", address(VIP)).unwrap();
        for socket in [connected, unconnected] {
            assert_eq!(name_in_error_queue(&socket), closed);
        }
    });
}

#[test]
fn kernel_two_services_with_one_backend_show_a_datagram_socket_one_source() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [udp_backend("127.0.0.2:0")];
        Port { frontends: &[VIP], backends: &backends, ..UDP }.serve(&mut maps);
        Port { index: 2, frontends: &[OTHER_VIP], backends: &backends, base: 4, ..UDP }.serve(&mut maps);
        let socket = udp_client("0.0.0.0:0");
        for vip in [VIP, OTHER_VIP] {
            socket.send_to(b"who", address(vip)).unwrap();
        }
        let shown = [answer(&socket).1, answer(&socket).1];
        assert_eq!(shown[0], shown[1], "the replies come from one address");
        assert!([VIP, OTHER_VIP].map(address).contains(&shown[0]), "{shown:?}");
    });
}

/// Connects from exactly that address and port.
fn connect_from(from: SocketAddrV4, to: &str) -> io::Result<OwnedFd> {
    let name = |of: SocketAddrV4| libc::sockaddr_in {
        sin_family: u16::try_from(libc::AF_INET).unwrap(),
        sin_port: of.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(of.ip().octets()) },
        sin_zero: [0; 8],
    };
    let SocketAddr::V4(to) = address(to) else { panic!("IPv4 only") };
    let (from, to) = (name(from), name(to));
    let length = u32::try_from(size_of_val(&from)).unwrap();
    // SAFETY: a new socket, owned at once; the names are whole socket addresses and outlive the calls.
    unsafe {
        let socket =
            OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0));
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR);
        assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const from).cast(), length), 0);
        match libc::connect(socket.as_raw_fd(), (&raw const to).cast(), length) {
            0 => Ok(socket),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[test]
fn kernel_a_fixed_source_port_reaches_a_backend_once() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [tcp_backend("127.0.0.2:0")];
        Port { frontends: &[VIP, OTHER_VIP], backends: &backends, ..Port::TCP }.serve(&mut maps);
        let from = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 5353);
        let first = connect_from(from, VIP).unwrap();
        check_errno(connect_from(from, OTHER_VIP), libc::EADDRNOTAVAIL, "the same tuple again");
        drop(first);
    });
}
