//! Lists the sockets that wait for clients (sock_diag).
//!
//! Invariant: it sees only the network namespace of the calling thread, and changes nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use holdfast_core::keys::Transport;

use super::{NetlinkFamily, NetlinkSocket, attribute};

/// A message type, from `linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Socket states, from `net/tcp_states.h`: listening, and UDP without a peer.
const LISTEN: u32 = 1 << 10;
const UNCONNECTED: u32 = 1 << 7;
/// An attribute, from `linux/inet_diag.h`: the socket accepts no IPv4 clients.
const SKV6ONLY: u16 = 11;
/// The bytes of a `struct inet_diag_msg`; attributes follow.
const SOCKET_BYTES: usize = 72;

/// A socket that waits for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListeningSocket {
    pub address: IpAddr,
    pub port: u16,
    pub inode: u32,
    /// It accepts clients of IPv4 and of IPv6.
    pub is_dual: bool,
}

impl ListeningSocket {
    /// The addresses that it listens on: one per family for a dual socket.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let other = self.is_dual.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        std::iter::once(self.address.to_canonical()).chain(other)
    }
}

/// Lists all sockets of one transport. A reply longer than `bytes_max` is an error.
pub fn list_sockets(transport: Transport, bytes_max: usize) -> io::Result<Vec<ListeningSocket>> {
    let mut found = Vec::new();
    for_each_socket(transport, bytes_max, |socket| found.push(socket))?;
    Ok(found)
}

/// Passes each socket of one transport on. A reply longer than `bytes_max` is an error.
pub fn for_each_socket(
    transport: Transport,
    bytes_max: usize,
    mut each: impl FnMut(ListeningSocket),
) -> io::Result<()> {
    let states = if transport == Transport::Udp { UNCONNECTED } else { LISTEN };
    for family in [libc::AF_INET, libc::AF_INET6] {
        let family = u8::try_from(family).unwrap_or_default();
        // An `inet_diag_req_v2`.
        let request =
            [&[family, transport.protocol_number(), 0, 0][..], &states.to_ne_bytes(), &[0; 48]].concat();
        NetlinkSocket::dump(
            NetlinkFamily::SockDiag,
            (SOCK_DIAG_BY_FAMILY, &request),
            bytes_max,
            |message| parse_socket(message.body).into_iter().for_each(&mut each),
        )?;
    }
    Ok(())
}

/// Parses a `struct inet_diag_msg` with its attributes.
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
        assert_eq!(at(Transport::Udp, connected.local_addr().unwrap().port()), [], "it has a peer");
        assert_eq!(at(Transport::Udp, ports[0]), [], "TCP is not UDP");
    }

    #[test]
    fn a_dual_socket_listens_on_both_families() {
        let socket = |address: &str, is_dual| {
            let socket = ListeningSocket { address: address.parse().unwrap(), port: 80, inode: 1, is_dual };
            socket.addresses().map(|it| it.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(socket("::", true), ["::", "0.0.0.0"]);
        assert_eq!(socket("::", false), ["::"]);
        assert_eq!(socket("::ffff:192.0.2.1", false), ["192.0.2.1"]);
    }

    #[test]
    fn a_truncated_message_is_not_a_socket() {
        for length in 0..SOCKET_BYTES {
            assert_eq!(parse_socket(&vec![2; length]), None, "{length}");
        }
        let mut message = vec![0; SOCKET_BYTES];
        message[0] = u8::try_from(libc::AF_INET6).unwrap();
        assert!(parse_socket(&message).unwrap().is_dual);
        message.extend([5, 0, 11, 0, 1, 0, 0, 0]);
        assert!(!parse_socket(&message).unwrap().is_dual, "SKV6ONLY is set");
    }
}
