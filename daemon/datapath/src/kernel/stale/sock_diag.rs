//! Lists the kernel's sockets and destroys them (sock_diag).
//!
//! Invariant: a socket is destroyed by its cookie, so never another one with the same tuple. A netlink socket sees only
//! the network namespace of the thread that opened it. The caller decides which sockets to destroy.

use std::io;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::Transport;

use crate::netlink::{NLM_F_ACK, NLM_F_DUMP, NetlinkFamily, NetlinkSocket};

/// Request types, from `linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

/// ESTABLISHED, SYN_SENT, FIN_WAIT1, FIN_WAIT2 and CLOSE_WAIT, from `net/tcp_states.h`: the socket has an owner and a
/// peer. A connected UDP socket is ESTABLISHED.
const CONNECTED_STATES: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8;

/// A reply for a million sockets takes some 200 MB; messages are parsed one by one.
const REPLY_BYTES_MAX: usize = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectedSocket {
    pub(crate) transport: Transport,
    family: u8,
    // As in the kernel's message: ports, addresses, interface, cookie.
    id: [u8; 48],
    pub(crate) peer: SocketAddr,
    pub(crate) cookie: u64,
}

#[derive(Debug)]
pub(crate) struct SockDiag {
    kernel: NetlinkSocket,
}

impl SockDiag {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { kernel: NetlinkSocket::open(NetlinkFamily::SockDiag)? })
    }

    pub(crate) fn can_destroy(&mut self, transport: Transport) -> io::Result<bool> {
        match self.destroy_socket(&absent_socket(transport)) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Calls back for every connected socket of both families.
    pub(crate) fn for_each_connected(
        &mut self,
        transport: Transport,
        mut each: impl FnMut(ConnectedSocket),
    ) -> io::Result<()> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let family = u8::try_from(family).unwrap_or_default();
            self.send_request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, transport, family, &[0; 48])?;
            self.read_reply(|message| {
                if let Some(socket) = parse_socket(transport, message) {
                    each(socket);
                }
            })?;
        }
        Ok(())
    }

    /// Destroys a socket: its owner sees ECONNABORTED and must reconnect. `false`: it was gone already.
    pub(crate) fn destroy_socket(&mut self, socket: &ConnectedSocket) -> io::Result<bool> {
        self.send_request(SOCK_DESTROY, NLM_F_ACK, socket.transport, socket.family, &socket.id)?;
        match self.read_reply(|_| ()) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn send_request(
        &mut self,
        kind: u16,
        flags: u16,
        transport: Transport,
        family: u8,
        id: &[u8; 48],
    ) -> io::Result<()> {
        let request =
            [&[family, transport.protocol_number(), 0, 0][..], &CONNECTED_STATES.to_ne_bytes(), id].concat();
        self.kernel.request(kind, flags, &request)
    }

    fn read_reply(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.kernel.read_reply(REPLY_BYTES_MAX, |message| each(message.body)).map(drop)
    }
}

/// A socket that cannot exist: none has port 0.
fn absent_socket(transport: Transport) -> ConnectedSocket {
    let family = u8::try_from(libc::AF_INET).unwrap_or_default();
    ConnectedSocket { transport, family, id: [0; 48], peer: SocketAddr::from(([0; 4], 0)), cookie: 0 }
}

/// Parses a `struct inet_diag_msg`; `None`: the socket is not connected.
fn parse_socket(transport: Transport, message: &[u8]) -> Option<ConnectedSocket> {
    let family = *message.first()?;
    let id: [u8; 48] = message.get(4..52)?.try_into().ok()?;
    let port = u16::from_be_bytes(id.get(2..4)?.try_into().ok()?);
    let address = if i32::from(family) == libc::AF_INET {
        IpAddr::from(<[u8; 4]>::try_from(id.get(20..24)?).ok()?)
    } else {
        IpAddr::from(<[u8; 16]>::try_from(id.get(20..36)?).ok()?).to_canonical()
    };
    let cookie = u64::from_ne_bytes(id.get(40..48)?.try_into().ok()?);
    (port != 0).then_some(ConnectedSocket {
        transport,
        family,
        id,
        peer: SocketAddr::new(address, port),
        cookie,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::thread::JoinHandle;

    use super::*;
    use crate::netlink::{NLMSG_ERROR, encode_message};

    /// A kernel that answers every request with this errno.
    fn kernel_with_reply(errno: i32) -> (SockDiag, JoinHandle<Vec<u8>>) {
        let (ours, kernels) = UnixDatagram::pair().unwrap();
        let answering = std::thread::spawn(move || {
            let mut request = vec![0; 128];
            let length = kernels.recv(&mut request).unwrap();
            request.truncate(length);
            let answer = encode_message(NLMSG_ERROR, 0, 0, &(-errno).to_ne_bytes());
            kernels.send(&answer).unwrap();
            request
        });
        (SockDiag { kernel: NetlinkSocket::from_file(OwnedFd::from(ours).into()) }, answering)
    }

    #[test]
    fn a_kernel_that_cannot_end_sockets_is_recognized() {
        for (errno, can) in [
            (libc::EOPNOTSUPP, Some(false)),
            (libc::ENOENT, Some(true)),
            (libc::EPERM, None),
            (0, Some(true)),
        ] {
            let (mut diag, answering) = kernel_with_reply(errno);
            assert_eq!(diag.can_destroy(Transport::Udp).ok(), can, "errno {errno}");
            let request = answering.join().unwrap();
            assert_eq!(request.len(), 72);
            assert_eq!((request[4], request[17]), (21, 17), "SOCK_DESTROY of UDP");
        }
    }
}
