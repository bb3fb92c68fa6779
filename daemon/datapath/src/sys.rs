//! The few system calls that have no safe wrapper here.
//!
//! Deliberately absent: anything that decides.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The type of a cgroup v2 file system.
pub(crate) const CGROUP2: i64 = 0x6367_7270;

/// The type of a BPF file system.
pub(crate) const BPFFS: i64 = 0xcafe_4a11;

/// Linux 5.14; libc has it for some architectures only.
const SO_NETNS_COOKIE: i32 = 71;

// Small constants that libc gives other types.
#[allow(clippy::cast_possible_truncation)]
const INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[allow(clippy::cast_possible_truncation)]
const NAME_LENGTH: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

/// The type of the file system that a file is on.
pub(crate) fn file_system(file: &File) -> io::Result<i64> {
    let mut answer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the struct if it returns 0.
    let answer = unsafe {
        if libc::fstatfs(file.as_raw_fd(), answer.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        answer.assume_init()
    };
    Ok(answer.f_type)
}

/// Locks a file or folder until it is closed. `false`: somebody else has it.
pub(crate) fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: only numbers are passed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

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
/// fork.
pub(crate) fn connect(to: SocketAddrV4, mark: u32) -> io::Result<()> {
    // SAFETY: only numbers are passed; what is returned is a new file descriptor or -1.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if mark != 0 {
        set_mark(socket.as_fd(), mark)?;
    }
    let name = libc::sockaddr_in {
        sin_family: INET,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: the name is a whole socket address and outlives the call.
    let returned = unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), NAME_LENGTH) };
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Marks a socket.
fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    // SAFETY: the kernel reads the 4 bytes of `mark`.
    let returned = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MARK, (&raw const mark).cast(), 4)
    };
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
