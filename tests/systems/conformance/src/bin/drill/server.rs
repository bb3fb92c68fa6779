//! The servers behind the dialled Services: one sends each client its name and closes, one echoes.
//!
//! Invariant: a server ignores SIGTERM, because a terminating pod has clients until every node has removed it. It is
//! killed at the end of the pod's grace period.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::Failure;

/// Serves until it is killed.
pub(crate) fn run(name: &str, address: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    for client in listener.incoming() {
        // Fails if the client has gone or too many come at once; the client counts both.
        let _ = client.and_then(|client| answer(client, name));
    }
    Ok(())
}

/// Echoes the clients' bytes while they hold their connections.
pub(crate) fn echo(address: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    for client in listener.incoming().filter_map(Result::ok) {
        // Fails if the client has gone, which the client counts itself.
        thread::spawn(move || io::copy(&mut &client, &mut &client));
    }
    Ok(())
}

/// A line fits into the empty buffer of a new connection, so no client can block the server.
fn answer(mut client: TcpStream, name: &str) -> std::io::Result<()> {
    client.write_all(format!("{name}\n").as_bytes())
}
