//! The daemon's own sockets carry a mark, by which the programs let them through untouched.
//!
//! Invariant: whoever dials in this process does it through [`connect`]. Deliberately absent: the daemon's cgroup, which
//! is exempt as well where it has one of its own; the datapath sees to that.

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream};

/// `hold` in ASCII.
pub(crate) const MARK: u32 = 0x686f_6c64;

/// Connects over TCP as if there were no services.
pub(crate) async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Who may not mark sockets could not have loaded programs either, so there is nothing to be exempt from.
    let _ = setsockopt(&socket, sockopt::Mark, &MARK);
    socket.connect(to).await
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
            assert_eq!(getsockopt(&stream, sockopt::Mark), Ok(MARK), "{any}; needs root");
        }
    }
}
