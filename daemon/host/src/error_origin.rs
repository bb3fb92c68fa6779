//! Finds where a socket's error arose: on this node, in its routes, or at the peer.
//!
//! Invariant: an error counts against a peer only if the peer or the network before it can have caused it. A process
//! of any user can take all local ports towards an address, or all files of the system, so a shortage on this node
//! proves nothing.

use std::io;
use std::time::Duration;

use nix::libc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// This node lacked a resource or forbade the connection, so nothing reached the peer.
    Node,
    /// This node has no route to the peer.
    Route,
    /// The peer or the network before it answered, or stayed silent.
    Peer,
}

/// Errors of a shortage or a ban on this node.
const NODE_ERRORS: [i32; 12] = [
    // The process or the system has no file descriptor left.
    libc::EMFILE,
    libc::ENFILE,
    // No memory is left for a socket or a packet.
    libc::ENOBUFS,
    libc::ENOMEM,
    // Other sockets hold all local ports towards the peer, or the one that the kernel chose. Kernels also return
    // EAGAIN when the route cache is full.
    libc::EADDRNOTAVAIL,
    libc::EADDRINUSE,
    libc::EAGAIN,
    // The user's epoll watches are used up, so nothing can wait for the socket.
    libc::ENOSPC,
    // A program at the daemon's cgroup, a filter, a security module or a route of type prohibit forbids it. Cgroup
    // programs and security modules judge the dialling process, so clients may well be let through.
    libc::EPERM,
    libc::EACCES,
    // The kernel lacks this version of IP.
    libc::EAFNOSUPPORT,
    // A signal interrupted the call.
    libc::EINTR,
];

/// Errors of a missing route, of one by a device that is down, and of one of type blackhole.
const ROUTE_ERRORS: [i32; 3] = [libc::ENETUNREACH, libc::ENETDOWN, libc::EINVAL];

/// A route of type unreachable fails at once. A missing neighbour or a router's ICMP error takes longer: the host
/// sends a query first, or the error crosses the network.
const LOCAL_ERROR_MAX: Duration = Duration::from_millis(1);

impl ErrorOrigin {
    /// Classifies a socket's error that came `after` this long.
    pub fn classify(error: &io::Error, after: Duration) -> Self {
        match error.raw_os_error() {
            Some(number) if NODE_ERRORS.contains(&number) => Self::Node,
            Some(number) if ROUTE_ERRORS.contains(&number) => Self::Route,
            Some(libc::EHOSTUNREACH) if after < LOCAL_ERROR_MAX => Self::Route,
            _ => Self::Peer,
        }
    }

    pub fn classify_established(error: &io::Error) -> Self {
        Self::classify(error, Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_the_node_is_no_answer_of_the_peer() {
        const LATER: Duration = Duration::from_millis(3);
        for (number, after, expected) in [
            (libc::EMFILE, LATER, ErrorOrigin::Node),
            (libc::ENFILE, LATER, ErrorOrigin::Node),
            (libc::ENOBUFS, LATER, ErrorOrigin::Node),
            (libc::ENOMEM, LATER, ErrorOrigin::Node),
            (libc::EADDRNOTAVAIL, LATER, ErrorOrigin::Node),
            (libc::EADDRINUSE, LATER, ErrorOrigin::Node),
            (libc::EAGAIN, LATER, ErrorOrigin::Node),
            (libc::ENOSPC, LATER, ErrorOrigin::Node),
            (libc::EPERM, LATER, ErrorOrigin::Node),
            (libc::EACCES, LATER, ErrorOrigin::Node),
            (libc::EAFNOSUPPORT, LATER, ErrorOrigin::Node),
            (libc::EINTR, LATER, ErrorOrigin::Node),
            (libc::ENETUNREACH, LATER, ErrorOrigin::Route),
            (libc::ENETDOWN, LATER, ErrorOrigin::Route),
            (libc::EINVAL, LATER, ErrorOrigin::Route),
            (libc::EHOSTUNREACH, Duration::from_micros(50), ErrorOrigin::Route),
            (libc::EHOSTUNREACH, LATER, ErrorOrigin::Peer),
            (libc::ECONNREFUSED, LATER, ErrorOrigin::Peer),
            (libc::ECONNRESET, LATER, ErrorOrigin::Peer),
            (libc::ETIMEDOUT, LATER, ErrorOrigin::Peer),
            (libc::EPIPE, LATER, ErrorOrigin::Peer),
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(ErrorOrigin::classify(&error, after), expected, "{error}");
        }
        let of_tls = io::Error::other("a certificate of another");
        assert_eq!(ErrorOrigin::classify(&of_tls, LATER), ErrorOrigin::Peer);
    }
}
