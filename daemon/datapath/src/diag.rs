//! The kernel's list of UDP sockets, and ending one of them (sock_diag).
//!
//! Invariant: a socket is ended by its cookie, so never another one that took its place. It sees the network namespace of
//! the calling thread only. Deliberately absent: which sockets.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{FromRawFd, OwnedFd};

/// From `linux/sock_diag.h`, `linux/inet_diag.h` and `linux/netlink.h`.
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const HEADER: usize = 16;
const ALL_STATES: u32 = u32::MAX;

/// Of one answer. The kernel divides a dump into pieces of at most this size.
const BUFFER: usize = 1 << 16;

/// A socket that is connected to somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connected {
    family: u8,
    // As the kernel gave it: ports, addresses, interface, cookie.
    id: [u8; 48],
    pub(crate) peer: SocketAddr,
    pub(crate) cookie: u64,
}

/// The conversation with the kernel.
#[derive(Debug)]
pub(crate) struct Diag {
    socket: File,
}

impl Diag {
    pub(crate) fn open() -> io::Result<Self> {
        // SAFETY: only numbers are passed; what is returned is a new file descriptor or -1.
        let fd =
            unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: nobody else owns it.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(fd) }.into() })
    }

    /// Every connected UDP socket of both families.
    pub(crate) fn connected_udp(&mut self) -> io::Result<Vec<Connected>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let family = u8::try_from(family).unwrap_or_default();
            self.send(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, &[0; 48])?;
            self.receive(|message| found.extend(decode(message)))?;
        }
        Ok(found)
    }

    /// Ends a socket: its owner sees ECONNABORTED and has to connect again.
    pub(crate) fn end(&mut self, socket: &Connected) -> io::Result<()> {
        self.send(SOCK_DESTROY, NLM_F_ACK, socket.family, &socket.id)?;
        self.receive(|_| ())
    }

    fn send(&mut self, kind: u16, flags: u16, family: u8, id: &[u8; 48]) -> io::Result<()> {
        let udp = u8::try_from(libc::IPPROTO_UDP).unwrap_or_default();
        let mut message = Vec::with_capacity(HEADER + 56);
        message.extend(72_u32.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        message.extend([0; 8]);
        message.extend([family, udp, 0, 0]);
        message.extend(ALL_STATES.to_ne_bytes());
        message.extend(id);
        self.socket.write_all(&message)
    }

    /// Reads up to the end of an answer.
    fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = self.socket.read(&mut buffer)?;
            let mut rest = buffer.get(..length).unwrap_or_default();
            while let Some((kind, body, next)) = divide(rest) {
                match kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return told(body),
                    _ => each(body),
                }
                rest = next;
            }
        }
    }
}

/// The first message: its kind, its body, and what comes after it.
fn divide(messages: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(messages.first_chunk().copied()?)).ok()?;
    let kind = u16::from_ne_bytes(messages.get(4..6)?.try_into().ok()?);
    let body = messages.get(HEADER..length)?;
    Some((kind, body, messages.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// An error of 0 is consent.
fn told(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map(|errno| i32::from_ne_bytes(*errno)) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(-errno)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A `struct inet_diag_msg`; `None`: not connected.
fn decode(message: &[u8]) -> Option<Connected> {
    let family = *message.first()?;
    let id: [u8; 48] = message.get(4..52)?.try_into().ok()?;
    let port = u16::from_be_bytes(id.get(2..4)?.try_into().ok()?);
    let address = if i32::from(family) == libc::AF_INET {
        IpAddr::from(<[u8; 4]>::try_from(id.get(20..24)?).ok()?)
    } else {
        IpAddr::from(<[u8; 16]>::try_from(id.get(20..36)?).ok()?).to_canonical()
    };
    let cookie = u64::from_ne_bytes(id.get(40..48)?.try_into().ok()?);
    (port != 0).then_some(Connected { family, id, peer: SocketAddr::new(address, port), cookie })
}
