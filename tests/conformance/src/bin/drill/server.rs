//! The server behind the dialled Services: it tells each client its name and closes.
//!
//! Invariant: the server does not end on SIGTERM, because a pod that leaves its Services has clients until every node
//! knows. The server is killed when the pod's grace period ends.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::Failure;

/// Serves until it is killed.
pub(crate) fn run(name: &str, address: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    for client in listener.incoming() {
        // Fails when the client has gone or too many come at once; the client counts both.
        let _ = client.and_then(|client| answer(client, name));
    }
    Ok(())
}

/// A line fits into the empty buffer of a new connection, so no client can make the server wait.
fn answer(mut client: TcpStream, name: &str) -> std::io::Result<()> {
    client.write_all(format!("{name}\n").as_bytes())
}
