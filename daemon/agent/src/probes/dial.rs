//! Dials one probe, and classifies the answer of the backend or of the network before it.
//!
//! Invariant: only the backend's own host can refuse, or a router that reports that no host has the address. A filter
//! in between, such as iptables' REJECT, and a failure of this node prove nothing about the backend.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use holdfast_core::hold::ProbeAnswer;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use tokio::net::TcpSocket;
use tokio::time::{Instant, timeout};

use holdfast_host::error_origin::ErrorOrigin;
use holdfast_host::exempt;

/// How long a probe waits for an answer: a backend in the same cluster accepts within milliseconds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// How much of an ICMP error's quote is read: the beginning of the packet that caused it.
const QUOTE_BYTES: usize = 64;

/// The type and code of an ICMP error, by IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IcmpError {
    V4(u8, u8),
    V6(u8, u8),
}

impl IcmpError {
    const fn is_host_unreachable(self) -> bool {
        matches!(self, Self::V4(3, 1) | Self::V6(1, 3))
    }
}

/// The kernel's error queue of a socket, readable even after the connection failed.
struct ErrorQueue(OwnedFd);

impl ErrorQueue {
    fn enable(socket: &TcpSocket, to: SocketAddr) -> io::Result<Self> {
        let wanted = match to {
            SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true),
            SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true),
        };
        wanted?;
        Ok(Self(socket.as_fd().try_clone_to_owned()?))
    }

    fn read_first(&self) -> Option<IcmpError> {
        let mut quote = [0; QUOTE_BYTES];
        let mut pieces = [IoSliceMut::new(&mut quote)];
        let mut control = nix::cmsg_space!(
            libc::sock_extended_err,
            libc::sockaddr_in6,
            libc::sock_extended_err,
            libc::sockaddr_in
        );
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message =
            recvmsg::<SockaddrStorage>(self.0.as_raw_fd(), &mut pieces, Some(&mut control), flags).ok()?;
        message.cmsgs().ok()?.find_map(|it| match it {
            ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
                parse_icmp_error(&error)
            }
            _ => None,
        })
    }
}

fn parse_icmp_error(error: &libc::sock_extended_err) -> Option<IcmpError> {
    match error.ee_origin {
        libc::SO_EE_ORIGIN_ICMP => Some(IcmpError::V4(error.ee_type, error.ee_code)),
        libc::SO_EE_ORIGIN_ICMP6 => Some(IcmpError::V6(error.ee_type, error.ee_code)),
        _ => None,
    }
}

/// Probes a backend. `None`: nothing left this node, for lack of a route, a port or a file, so it proves nothing.
pub(super) async fn probe_backend(backend: SocketAddr) -> Option<ProbeAnswer> {
    let begun = Instant::now();
    match timeout(TIMEOUT, connect(backend)).await {
        Ok(Ok(())) => Some(ProbeAnswer::Accepted),
        Ok(Err((error, notice))) => classify_outcome(&error, notice, begun.elapsed()),
        Err(_) => Some(ProbeAnswer::Silent),
    }
}

async fn connect(backend: SocketAddr) -> Result<(), (io::Error, Option<IcmpError>)> {
    let opened =
        exempt::socket(backend).and_then(|socket| Ok((ErrorQueue::enable(&socket, backend)?, socket)));
    let (notices, socket) = opened.map_err(|error| (error, None))?;
    socket.connect(backend).await.map(drop).map_err(|error| (error, notices.read_first()))
}

fn classify_outcome(error: &io::Error, notice: Option<IcmpError>, after: Duration) -> Option<ProbeAnswer> {
    if let Some(notice) = notice {
        return Some(if notice.is_host_unreachable() { ProbeAnswer::Refused } else { ProbeAnswer::Silent });
    }
    if ErrorOrigin::classify(error, after) != ErrorOrigin::Peer {
        return None;
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable => Some(ProbeAnswer::Refused),
        io::ErrorKind::ConnectionReset | io::ErrorKind::TimedOut => Some(ProbeAnswer::Silent),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
