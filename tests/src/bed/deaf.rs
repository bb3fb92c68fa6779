//! A listener that never answers: its queue is full, so the kernel drops each further SYN.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, SockAddr, Socket, Type};

/// The connections that certainly fill a queue without room.
const CONNECTIONS: usize = 4;

/// Listens at an address and accepts no connection, until the sockets are dropped.
pub fn listen_deaf(address: SocketAddr) -> io::Result<Vec<Socket>> {
    let address = SockAddr::from(address);
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    listener.bind(&address)?;
    listener.listen(0)?;
    let knocks = (0..CONNECTIONS).map(|_| knock(&address));
    std::iter::once(Ok(listener)).chain(knocks).collect()
}

/// Begins a connection, and does not wait for it.
fn knock(address: &SockAddr) -> io::Result<Socket> {
    let client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    client.set_nonblocking(true)?;
    match client.connect(address) {
        Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => Ok(client),
    }
}
