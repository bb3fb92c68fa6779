//! System calls that need `unsafe` or more than `nix` offers.
//!
//! They make no decisions.

#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, setsockopt, sockopt};
use nix::sys::time::TimeVal;

/// Since Linux 5.14; libc defines it for some architectures only, and nix for none.
const SO_NETNS_COOKIE: i32 = 71;

/// A loopback connection succeeds at once, unless a firewall drops its packets. Without this limit the kernel would
/// retry for two minutes.
const CONNECT_MAX: TimeVal = TimeVal::new(2, 0);

/// The cookie of this thread's network namespace; `None` before Linux 5.14.
pub(crate) fn own_netns_cookie() -> Option<u64> {
    netns_cookie(UdpSocket::bind("127.0.0.1:0").ok()?.as_fd())
}

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

/// Subscribes a netlink socket to a multicast group.
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

/// Connects by TCP from a socket with that mark within [`CONNECT_MAX`], and closes it. It only makes system calls, so a
/// forked child may call it: nix adds no heap allocation and no lock.
pub(crate) fn connect(to: SocketAddrV4, mark: u32) -> io::Result<()> {
    // Foreign programs at these hooks may return any errno. nix reports unknown ones as 0.
    let last_error = |_| io::Error::last_os_error();
    let client = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let client = client.map_err(last_error)?;
    if mark != 0 {
        setsockopt(&client, sockopt::Mark, &mark)?;
    }
    setsockopt(&client, sockopt::SendTimeout, &CONNECT_MAX)?;
    socket::connect(client.as_raw_fd(), &SockaddrIn::from(to)).map_err(last_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpStream};

    #[test]
    fn a_connect_without_replies_ends_by_its_own_time_out() {
        let listener =
            socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        socket::bind(listener.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        socket::listen(&listener, socket::Backlog::new(0).unwrap()).unwrap();
        let bound: SockaddrIn = socket::getsockname(listener.as_raw_fd()).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, bound.port());
        // One connection waits to be accepted; the kernel drops further ones.
        let _waits = TcpStream::connect(to).unwrap();
        let error = connect(to, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS), "the kernel's own limit has another error");
    }
}
