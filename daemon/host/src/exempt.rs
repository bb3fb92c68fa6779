//! Marks the daemon's own sockets; the programs pass marked sockets untouched.
//!
//! Invariant: every part of this process dials through [`connect`], [`socket`] or [`connect_udp`], and all their
//! sockets carry the same mark. Two parts dial without it on purpose, like any other process: a diagnosis that tries
//! frontends, and the datapath's self-test of its programs. If the daemon has its own cgroup, the datapath exempts
//! that as well.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use holdfast_config::Mark;

static MARK: OnceLock<Mark> = OnceLock::new();

/// Sets the mark of all sockets of this process before the first dial, and returns it. Only the first call counts.
pub fn set_socket_mark(mark: Mark) -> Mark {
    *MARK.get_or_init(|| mark)
}

/// Connects over TCP, past all services.
pub async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    socket(to)?.connect(to).await
}

/// Opens a TCP socket of this address's family, for a connection past all services.
pub fn socket(to: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    let mark = MARK.get().copied().unwrap_or_default();
    // A process that may not mark sockets cannot load programs either, so there is nothing to be exempt from.
    let _ = setsockopt(&socket, sockopt::Mark, &mark.bit());
    Ok(socket)
}

/// Opens a UDP socket connected to this address, past all services.
pub async fn connect_udp(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    let mark = MARK.get().copied().unwrap_or_default();
    // Ignored for the same reason as in `socket`.
    let _ = setsockopt(&socket, sockopt::Mark, &mark.bit());
    socket.connect(to).await?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn invariant_11_kernel_own_sockets_carry_the_mark() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).await.unwrap();
            let stream = connect(listener.local_addr().unwrap()).await.unwrap();
            assert_eq!(getsockopt(&stream, sockopt::Mark), Ok(Mark::DEFAULT.bit()), "{any}; needs root");
            let socket = connect_udp(listener.local_addr().unwrap()).await.unwrap();
            assert_eq!(getsockopt(&socket, sockopt::Mark), Ok(Mark::DEFAULT.bit()), "{any}; needs root");
        }
    }

    #[test]
    fn the_default_mark_is_a_bit_that_others_are_not_known_to_use() {
        let others = [
            ("kube-proxy", 0xc000),
            ("Cilium", 0xff00),
            ("AWS VPC CNI", 0x80),
            ("Tailscale", 0x00ff_0000),
            ("Antrea, which numbers its egress addresses from 1 on", 0x8000_003f),
            ("Calico with iptables", 0xffff_0000),
            ("Calico with eBPF", 0x1ff0_0000),
            ("the portmap plugin", 0x2000),
        ];
        let mark = Mark::DEFAULT.bit();
        assert!(mark.is_power_of_two());
        others.iter().for_each(|(who, bits)| assert_eq!(mark & bits, 0, "{who}"));
    }
}
