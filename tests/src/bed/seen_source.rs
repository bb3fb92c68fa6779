//! A server that sends each client its own name and the client's address as it sees it, by TCP and UDP, on several
//! addresses.
//!
//! A request is a line `TAKE GIVE`: TAKE bytes follow it. The reply is a line `NAME ADDRESS`, and GIVE bytes follow
//! it. A datagram is padded to TAKE, and its reply to GIVE.
//!
//! Invariant: connections, their time and the requested bytes are bounded.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{Backlog, listen};

use super::keeper::READY;

/// More than a test keeps open at once.
const CONNECTIONS_MAX: usize = 8192;

/// Each connection has a thread, which needs little stack.
const STACK_BYTES: usize = 128 * 1024;

const BACKLOG: i32 = 4096;

/// Longer than any test leaves a connection silent.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// More bytes than any test requests at once.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// The largest datagram.
pub(super) const DATAGRAM_BYTES: usize = 65_535;

/// The bytes of requests and replies: no two neighbours are equal, so that a lost byte shows.
pub(super) fn filling(count: usize) -> Vec<u8> {
    (b'a'..=b'z').cycle().take(count.min(BYTES_MAX)).collect()
}

/// A whole request or reply, padded to a size.
pub(super) fn filled(line: &str, size: usize) -> Vec<u8> {
    let mut bytes = line.as_bytes().to_vec();
    bytes.extend(filling(size.saturating_sub(bytes.len())));
    bytes
}

/// Parses a request: bytes to take, bytes to give.
fn request(line: &str) -> Option<(usize, usize)> {
    let (take, give) = line.trim_end().split_once(' ')?;
    let (take, give) = (take.parse().ok()?, give.parse().ok()?);
    (take <= BYTES_MAX && give <= BYTES_MAX).then_some((take, give))
}

/// The server process, until it is killed. A UDP reply comes from the dialled address only if the socket is bound to
/// exactly that address.
pub(super) fn run(name: &str, addresses: &[&str]) -> io::Result<()> {
    let addresses = addresses.iter().map(|address| address.parse().map_err(io::Error::other));
    let addresses: Vec<SocketAddr> = addresses.collect::<io::Result<_>>()?;
    let name: Arc<str> = name.into();
    let open = Arc::new(AtomicUsize::new(0));
    for address in addresses {
        let (listener, socket) = (TcpListener::bind(address)?, UdpSocket::bind(address)?);
        listen(&listener, Backlog::new(BACKLOG)?)?;
        let (own, same, open) = (Arc::clone(&name), Arc::clone(&name), Arc::clone(&open));
        thread::spawn(move || datagrams(&own, &socket));
        thread::spawn(move || connections(&same, &open, &listener));
    }
    writeln!(io::stdout(), "{READY}")?;
    loop {
        thread::park();
    }
}

fn datagrams(name: &str, socket: &UdpSocket) {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        // An ICMP error from a vanished client shows here; the server goes on.
        let Ok((count, from)) = socket.recv_from(&mut buffer) else { continue };
        let Some(answer) = buffer.get(..count).and_then(|bytes| datagram(name, bytes, from)) else {
            continue;
        };
        let _ = socket.send_to(&answer, from);
    }
}

/// Ignores a damaged datagram.
fn datagram(name: &str, bytes: &[u8], seen: SocketAddr) -> Option<Vec<u8>> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(bytes.get(..=end)?).ok()?;
    let (take, give) = request(line)?;
    (bytes == filled(line, take)).then(|| filled(&format!("{name} {seen}\n"), give))
}

fn connections(name: &Arc<str>, open: &Arc<AtomicUsize>, listener: &TcpListener) {
    for stream in listener.incoming().filter_map(Result::ok) {
        if open.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (name, open) = (Arc::clone(name), Arc::clone(open));
        let body = move || {
            let _ = converse(&name, stream);
            open.fetch_sub(1, Ordering::Relaxed);
        };
        let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(body);
    }
}

fn converse(name: &str, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let seen = stream.peer_addr()?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        reader.by_ref().take(64).read_line(&mut line)?;
        let Some((take, give)) = request(&line) else { return Ok(()) };
        expect(&mut reader, take)?;
        stream.write_all(format!("{name} {seen}\n").as_bytes())?;
        stream.write_all(&filling(give))?;
    }
}

/// Reads the announced bytes and compares them.
pub(super) fn expect(from: &mut impl Read, count: usize) -> io::Result<()> {
    let mut bytes = vec![0; count.min(BYTES_MAX)];
    from.read_exact(&mut bytes)?;
    let same = bytes == filling(count);
    same.then_some(()).ok_or_else(|| io::Error::other("the bytes are not those that were sent"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_undamaged_datagram_is_answered() {
        let seen = "10.0.0.1:7".parse().unwrap();
        assert_eq!(datagram("a", b"0 0\n", seen).unwrap(), b"a 10.0.0.1:7\n");
        assert_eq!(datagram("a", b"8 16\n", seen), None, "three bytes are missing");
        assert_eq!(datagram("a", b"8 16\nabc", seen).unwrap(), b"a 10.0.0.1:7\nabc");
        assert_eq!(datagram("a", b"8 16\naxc", seen), None);
        assert_eq!(datagram("a", b"no end", seen), None);
    }
}
