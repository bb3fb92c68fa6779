//! Sockets that wait for clients, as the kernel lists them (sock_diag).
//!
//! Invariant: only the network namespace of the thread that asks is seen, and nothing in it is changed.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use holdfast_core::keys::Transport;

use super::{NetlinkFamily, NetlinkSocket, attribute};

/// A kind of message, from `linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// States of sockets, from `net/tcp_states.h`: listening, and that of a UDP socket without a peer.
const LISTEN: u32 = 1 << 10;
const UNCONNECTED: u32 = 1 << 7;
/// An attribute, from `linux/inet_diag.h`: the socket takes no client of IPv4.
const SKV6ONLY: u16 = 11;
/// The length of a `struct inet_diag_msg`. Attributes follow it.
const SOCKET_BYTES: usize = 72;

/// A socket as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListeningSocket {
    pub address: IpAddr,
    pub port: u16,
    pub inode: u32,
    /// Its clients may be of IPv4 and of IPv6.
    pub is_dual: bool,
}

impl ListeningSocket {
    /// The addresses at which it takes clients: one of each family for a socket of both.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let other = self.is_dual.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        std::iter::once(self.address.to_canonical()).chain(other)
    }
}

/// All of one transport. An answer that is longer than so many bytes is an error.
pub fn list_sockets(transport: Transport, bytes_max: usize) -> io::Result<Vec<ListeningSocket>> {
    let states = if transport == Transport::Udp { UNCONNECTED } else { LISTEN };
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let family = u8::try_from(family).unwrap_or_default();
        // An `inet_diag_req_v2`.
        let asked =
            [&[family, transport.protocol_number(), 0, 0][..], &states.to_ne_bytes(), &[0; 48]].concat();
        NetlinkSocket::dump(NetlinkFamily::SockDiag, (SOCK_DIAG_BY_FAMILY, &asked), bytes_max, |message| {
            found.extend(parse_socket(message.body));
        })?;
    }
    Ok(found)
}

/// Reads a `struct inet_diag_msg` and what follows it.
fn parse_socket(message: &[u8]) -> Option<ListeningSocket> {
    let port = u16::from_be_bytes(*message.get(4..)?.first_chunk()?);
    let is_v4 = i32::from(*message.first()?) == libc::AF_INET;
    let address = if is_v4 {
        IpAddr::from(*message.get(8..)?.first_chunk::<4>()?)
    } else {
        IpAddr::from(*message.get(8..)?.first_chunk::<16>()?)
    };
    let inode = u32::from_ne_bytes(*message.get(68..)?.first_chunk()?);
    let only =
        attribute(message.get(SOCKET_BYTES..)?, SKV6ONLY).is_some_and(|value| value.first() == Some(&1));
    Some(ListeningSocket { address, port, inode, is_dual: !is_v4 && address.is_unspecified() && !only })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    const BYTES_MAX: usize = 1 << 24;

    fn at(transport: Transport, port: u16) -> Vec<(IpAddr, bool)> {
        let all = list_sockets(transport, BYTES_MAX).unwrap();
        all.into_iter().filter(|it| it.port == port).map(|it| (it.address, it.is_dual)).collect()
    }

    #[test]
    fn kernel_sockets_that_wait_for_clients_are_listed_with_their_families() {
        let four = TcpListener::bind("127.0.0.1:0").unwrap();
        let both = TcpListener::bind("[::]:0").unwrap();
        let datagrams = UdpSocket::bind("[::1]:0").unwrap();
        let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
        connected.connect("127.0.0.1:9").unwrap();
        let ports = [&four, &both].map(|it| it.local_addr().unwrap().port());
        assert_eq!(at(Transport::Tcp, ports[0]), [("127.0.0.1".parse().unwrap(), false)]);
        assert_eq!(at(Transport::Tcp, ports[1]), [("::".parse().unwrap(), true)]);
        assert_eq!(
            at(Transport::Udp, datagrams.local_addr().unwrap().port()),
            [("::1".parse().unwrap(), false)]
        );
        assert_eq!(at(Transport::Udp, connected.local_addr().unwrap().port()), [], "it has its peer");
        assert_eq!(at(Transport::Udp, ports[0]), [], "TCP is not UDP");
    }

    #[test]
    fn a_socket_of_both_families_takes_clients_at_both() {
        let socket = |address: &str, is_dual| {
            let socket = ListeningSocket { address: address.parse().unwrap(), port: 80, inode: 1, is_dual };
            socket.addresses().map(|it| it.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(socket("::", true), ["::", "0.0.0.0"]);
        assert_eq!(socket("::", false), ["::"]);
        assert_eq!(socket("::ffff:192.0.2.1", false), ["192.0.2.1"]);
    }

    #[test]
    fn a_message_that_is_cut_off_is_no_socket() {
        for length in 0..SOCKET_BYTES {
            assert_eq!(parse_socket(&vec![2; length]), None, "{length}");
        }
        let mut message = vec![0; SOCKET_BYTES];
        message[0] = u8::try_from(libc::AF_INET6).unwrap();
        assert!(parse_socket(&message).unwrap().is_dual);
        message.extend([5, 0, 11, 0, 1, 0, 0, 0]);
        assert!(!parse_socket(&message).unwrap().is_dual, "it says that it is of IPv6 alone");
    }
}
