//! System calls that need a word of their own.
//!
//! They decide nothing.

#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, setsockopt, sockopt};

/// Linux 5.14; libc has it for some architectures only, and nix for none.
const SO_NETNS_COOKIE: i32 = 71;

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

/// Connects over TCP from a socket with that mark, and closes it. Makes system calls only, so a child may do it after a
/// fork: what nix does around them takes no memory from the heap and no lock.
pub(crate) fn connect(to: SocketAddrV4, mark: u32) -> io::Result<()> {
    // Other programs on these hooks may refuse with any number. nix gives one that it has no name for as 0.
    let told = |_| io::Error::last_os_error();
    let dialling = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let dialling = dialling.map_err(told)?;
    if mark != 0 {
        setsockopt(&dialling, sockopt::Mark, &mark)?;
    }
    socket::connect(dialling.as_raw_fd(), &SockaddrIn::from(to)).map_err(told)
}
