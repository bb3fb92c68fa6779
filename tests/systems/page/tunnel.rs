//! A tunnel to a daemon's unix socket, like that of `ssh -L`, which can mute the page's stream.
//!
//! Invariant: each connection has one request; the tunnel ends with the test, and open requests with their client.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

/// The limit of a browser's request.
const HEAD_BYTES_MAX: usize = 8 * 1024;

const MUTE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

pub(crate) struct Tunnel {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    mute: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Tunnel {
    pub(crate) fn to(socket: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, mute) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (socket, until, is_mute) = (socket.to_owned(), Arc::clone(&stop), Arc::clone(&mute));
        let listening = spawn(move || {
            for stream in listener.incoming().flatten() {
                if until.load(Ordering::Relaxed) {
                    return;
                }
                let (socket, is_mute) = (socket.clone(), is_mute.load(Ordering::Relaxed));
                spawn(move || drop(carry(stream, &socket, is_mute)));
            }
        });
        Self { address, stop, mute, listening: Some(listening) }
    }

    /// From now on a stream begins and sends nothing.
    pub(crate) fn mute(&self, is_mute: bool) {
        self.mute.store(is_mute, Ordering::Relaxed);
    }

    pub(crate) fn url(&self, view: &str) -> String {
        format!("http://localhost:{}/#/{view}", self.address.port())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.listening.take().map(JoinHandle::join);
    }
}

fn carry(mut client: TcpStream, socket: &PathBuf, is_mute: bool) -> std::io::Result<()> {
    let head = head(&mut client)?;
    if is_mute && head.starts_with("GET /watch") {
        client.write_all(MUTE)?;
        // Until the client has gone.
        return std::io::copy(&mut client, &mut std::io::sink()).map(drop);
    }
    let mut daemon = UnixStream::connect(socket)?;
    daemon.write_all(head.replace("keep-alive", "close").as_bytes())?;
    let (mut gone, told) = (client.try_clone()?, daemon.try_clone()?);
    spawn(move || {
        let _ = std::io::copy(&mut gone, &mut std::io::sink());
        let _ = told.shutdown(Shutdown::Both);
    });
    std::io::copy(&mut daemon, &mut client)?;
    client.shutdown(Shutdown::Both)
}

fn head(client: &mut TcpStream) -> std::io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        client.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
