//! The server behind the dialled Services: it tells each client its name and closes.
//!
//! Invariant: it does not end when it is asked to (SIGTERM): a pod that is taken from its Services has clients until
//! every node knows, and its grace period ends it.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::Failure;

/// Serves until it is killed.
pub(crate) fn run(name: &str, address: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    for client in listener.incoming() {
        // A client that has gone, or too many at once: the client counts that.
        let _ = client.and_then(|client| answer(client, name));
    }
    Ok(())
}

/// A line fits into the empty buffer of a new connection, so no client can make this wait.
fn answer(mut client: TcpStream, name: &str) -> std::io::Result<()> {
    client.write_all(format!("{name}\n").as_bytes())
}
