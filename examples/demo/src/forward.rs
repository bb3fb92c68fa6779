//! The way from this machine to the page of the demo's daemon, which is in a network namespace of its own.
//!
//! A listener stays in the network where it was bound. So this program binds it on the machine's loopback, and then
//! becomes a process in the daemon's network, from where it connects to the daemon. It leads only to the daemon's TCP
//! port, which answers reads.

use std::fs;
use std::io::{self, Error};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A page in a browser has a few connections. Further ones are closed.
const CONNECTIONS_MAX: usize = 64;

const POLL: Duration = Duration::from_millis(20);

/// Listens on this port of the loopback, and goes on in the network of the process that the folder's file `pid` names,
/// once it is there.
pub(crate) fn listen(port: &str, folder: &Path) -> Result<(), Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse().map_err(Error::other)?))?;
    let pid = wait_for_file(&folder.join("pid"))?;
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--net=/proc/{}/ns/net", pid.trim()));
    inside.arg(std::env::current_exe()?).args(["forward-from-stdin", port]);
    Err(inside.stdin(OwnedFd::from(listener)).exec())
}

/// The demo removes its folder at its end, so the wait ends with it.
fn wait_for_file(path: &Path) -> Result<String, Error> {
    while path.parent().is_some_and(Path::exists) {
        if let Ok(text) = fs::read_to_string(path) {
            return Ok(text);
        }
        thread::sleep(POLL);
    }
    Err(Error::other(format!("{} does not come", path.display())))
}

/// Forwards connections of the listener that is the standard input to this port of the network's loopback.
pub(crate) fn forward(port: &str) -> Result<(), Error> {
    let port: u16 = port.parse().map_err(Error::other)?;
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let places = Arc::new(());
    for client in listener.incoming() {
        let place = Arc::clone(&places);
        if Arc::strong_count(&places) <= CONNECTIONS_MAX + 1 {
            thread::spawn(move || {
                let _ = client.and_then(|client| join_connections(&client, port));
                drop(place);
            });
        }
    }
    Ok(())
}

/// Copies both ways until both have ended.
fn join_connections(client: &TcpStream, port: u16) -> Result<(), Error> {
    let daemon = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    thread::scope(|scope| {
        scope.spawn(|| copy(client, &daemon));
        copy(&daemon, client);
    });
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
