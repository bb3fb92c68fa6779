//! System calls that need a word of their own.
//!
//! They decide nothing.

#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, setsockopt, sockopt};
use nix::sys::time::TimeVal;

/// Linux 5.14; libc has it for some architectures only, and nix for none.
const SO_NETNS_COOKIE: i32 = 71;

/// A connection on the loopback is there at once, or a firewall drops its packets. Without a limit the kernel would try
/// for two minutes.
const CONNECT_MAX: TimeVal = TimeVal::new(2, 0);

/// The cookie of this thread's network namespace; `None` before Linux 5.14.
pub(crate) fn own_netns_cookie() -> Option<u64> {
    netns_cookie(UdpSocket::bind("127.0.0.1:0").ok()?.as_fd())
}

/// The cookie of the network namespace that a socket is in.
fn netns_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut length = u32::try_from(size_of::<u64>()).ok()?;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`.
    let returned = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (returned == 0).then_some(cookie)
}

/// Has a socket of netlink hear the notices of a group.
pub(crate) fn join_group(socket: BorrowedFd<'_>, group: u32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<u32>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes of `group`.
    let returned = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_ADD_MEMBERSHIP,
            (&raw const group).cast(),
            length,
        )
    };
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Connects over TCP from a socket with that mark, and closes it, within [`CONNECT_MAX`]. Makes system calls only, so a
/// child may do it after a fork: what nix does around them takes no memory from the heap and no lock.
pub(crate) fn connect(to: SocketAddrV4, mark: u32) -> io::Result<()> {
    // Other programs on these hooks may refuse with any number. nix gives one that it has no name for as 0.
    let told = |_| io::Error::last_os_error();
    let dialling = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let dialling = dialling.map_err(told)?;
    if mark != 0 {
        setsockopt(&dialling, sockopt::Mark, &mark)?;
    }
    setsockopt(&dialling, sockopt::SendTimeout, &CONNECT_MAX)?;
    socket::connect(dialling.as_raw_fd(), &SockaddrIn::from(to)).map_err(told)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_connection_of_which_the_packets_are_dropped_is_given_up_within_seconds() {
        let listener =
            socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        socket::bind(listener.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        socket::listen(&listener, socket::Backlog::new(0).unwrap()).unwrap();
        let bound: SockaddrIn = socket::getsockname(listener.as_raw_fd()).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, bound.port());
        // One connection waits to be accepted, and the kernel drops what would be the next ones.
        let _waits = TcpStream::connect(to).unwrap();
        let begun = Instant::now();
        let given_up = connect(to, 0).unwrap_err();
        assert_eq!(given_up.raw_os_error(), Some(libc::EINPROGRESS));
        assert!(begun.elapsed() < Duration::from_secs(20), "the kernel's own limit is two minutes");
    }
}
