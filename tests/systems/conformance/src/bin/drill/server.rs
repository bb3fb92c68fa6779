//! The servers behind the dialled Services: one tells each client the server's name and closes, one gives back what
//! comes.
//!
//! Invariant: a server does not end on SIGTERM, because a pod that leaves its Services has clients until every node
//! knows. It is killed when the pod's grace period ends.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

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

/// Gives back what clients send, for as long as they hold their connections.
pub(crate) fn echo(address: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    for client in listener.incoming().filter_map(Result::ok) {
        // Fails when the client has gone, which the client knows itself.
        thread::spawn(move || io::copy(&mut &client, &mut &client));
    }
    Ok(())
}

/// A line fits into the empty buffer of a new connection, so no client can make the server wait.
fn answer(mut client: TcpStream, name: &str) -> std::io::Result<()> {
    client.write_all(format!("{name}\n").as_bytes())
}
