//! Small servers for clients under test. Each replies with its own name, so that a client sees which one it reached.
//!
//! Invariant: connections, their time and the size of a request are bounded. A server is a process of its own: its
//! location decides whether programs see its sockets, and killing it simulates a dying backend.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{Backlog, listen};

use super::cpu::{self, Cpu};
use super::keeper::{READY, first_line};
use super::{BedError, spawn};

/// More than a test opens at once. A further connection is closed without a reply.
const CONNECTIONS_MAX: usize = 256;

/// More connections than one turn of a load generator opens; also the kernel's own limit.
const BACKLOG: i32 = 4096;

/// Longer than any test leaves a connection silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A datagram of loopback, and a good size for a stream.
const BUFFER_BYTES: usize = 64 * 1024;

/// A TTL of 0: a resolver may not cache an answer, so that the next one shows which server answers then.
const DNS_ANSWER_SECONDS: u32 = 0;

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// TCP: replies to any input with its name and a line feed.
    Tcp,
    /// UDP: replies to each datagram with its name.
    Udp,
    /// UDP: answers each question for an A record with its name, which is an address.
    Dns,
    /// TCP: accepts and closes; the server for `Kind::Connect`.
    Accept,
    /// TCP: echoes the received bytes; the server for `Kind::Request`.
    Echo,
    /// TCP: reads and discards; the server for `Kind::Stream`.
    Sink,
    /// TCP: echoes the received bytes, one connection after the other; the server for `Kind::Exchange`.
    Turns,
    /// UDP: echoes the received datagrams.
    Return,
}

const ROLES: [Role; 8] =
    [Role::Tcp, Role::Udp, Role::Dns, Role::Accept, Role::Echo, Role::Sink, Role::Turns, Role::Return];

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Dns => "dns",
            Self::Accept => "accept",
            Self::Echo => "echo",
            Self::Sink => "sink",
            Self::Turns => "turns",
            Self::Return => "return",
        }
    }

    /// Client and server of connect and of request take turns. On one CPU, the measurement is the sum of their work,
    /// without wake-ups across CPUs, which vary. Both sides of a stream work at the same time.
    fn cpu(self) -> Option<Cpu> {
        match self {
            Self::Tcp | Self::Udp | Self::Dns => None,
            Self::Accept | Self::Echo | Self::Turns | Self::Return => Some(Cpu::Last),
            Self::Sink => Some(Cpu::First),
        }
    }
}

/// A server that runs until dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    pub(crate) fn start(mut command: Command, address: SocketAddr) -> Result<Self, BedError> {
        let mut child = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let said = child.stdout.take().map(first_line).unwrap_or_default();
        let server = Self { child, address };
        match said.as_str() {
            READY => Ok(server),
            _ => Err(BedError::Unexpected { who: format!("the server for {address}"), said }),
        }
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server process, until it is killed.
pub(super) fn run(role: &str, name: &str, address: SocketAddr) -> io::Result<()> {
    let known = ROLES.into_iter().find(|known| known.word() == role);
    let role = known.ok_or_else(|| io::Error::other(format!("no server is called {role}")))?;
    cpu::pin(role.cpu())?;
    match role {
        Role::Udp => datagrams(address, |_| Some(name.as_bytes().to_vec())),
        Role::Dns => {
            let given: Ipv4Addr = name.parse().map_err(io::Error::other)?;
            datagrams(address, |question| dns_answer(question, given))
        }
        Role::Return => datagrams(address, |bytes| Some(bytes.to_vec())),
        Role::Accept => accept_all(address),
        Role::Turns => one_after_the_other(address),
        Role::Tcp | Role::Echo | Role::Sink => connections(role, name, address),
    }
}

fn ready() -> io::Result<()> {
    writeln!(io::stdout(), "{READY}")
}

fn datagrams(address: SocketAddr, answer: impl Fn(&[u8]) -> Option<Vec<u8>>) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    ready()?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        // An ICMP error from a vanished client shows here; the server goes on.
        let Ok((count, from)) = socket.recv_from(&mut buffer) else { continue };
        if let Some(bytes) = buffer.get(..count).and_then(&answer) {
            let _ = socket.send_to(&bytes, from);
        }
    }
}

/// The question with one A record appended: header, question, a pointer to its name, the address.
fn dns_answer(question: &[u8], given: Ipv4Addr) -> Option<Vec<u8>> {
    let (id, rest) = question.split_at_checked(2)?;
    let asked = rest.get(10..)?;
    let name_end = asked.iter().position(|byte| *byte == 0)?;
    let asked = asked.get(..name_end + 5)?;
    // A reply with recursion available and no error; one question, one answer.
    let flags_and_counts = [0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
    // The name at offset 12, type A, class IN.
    let record = [0xc0, 12, 0, 1, 0, 1];
    let ttl = DNS_ANSWER_SECONDS.to_be_bytes();
    Some([id, &flags_and_counts, asked, &record, &ttl, &[0, 4], &given.octets()].concat())
}

/// The client resets, so that neither side keeps the connection's state. A reset from the server could arrive before
/// the client's connect returned, and fail it.
fn accept_all(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    // On a shared CPU, a client's whole turn may come before the first accept.
    listen(&listener, Backlog::new(BACKLOG)?)?;
    ready()?;
    listener.incoming().filter_map(Result::ok).for_each(drop);
    Ok(())
}

/// Serves without a thread per connection, which would cost more than all that is measured.
fn one_after_the_other(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    ready()?;
    for stream in listener.incoming().filter_map(Result::ok) {
        let _ = converse(Role::Echo, "", stream);
    }
    Ok(())
}

fn connections(role: Role, name: &str, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    ready()?;
    let open = Arc::new(AtomicUsize::new(0));
    let name: Arc<str> = format!("{name}\n").into();
    for stream in listener.incoming().filter_map(Result::ok) {
        let (open, name) = (Arc::clone(&open), Arc::clone(&name));
        if open.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX {
            thread::spawn(move || {
                let _ = converse(role, &name, stream);
                open.fetch_sub(1, Ordering::Relaxed);
            });
        } else {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn converse(role: Role, name: &str, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = stream.read(&mut buffer)?;
        match (role, buffer.get(..count)) {
            (_, None | Some([])) => return Ok(()),
            (Role::Tcp, _) => stream.write_all(name.as_bytes())?,
            (Role::Echo, Some(bytes)) => stream.write_all(bytes)?,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dns_question_comes_back_with_an_address() {
        let question = b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\x01\x03abc\0\0\x01\0\x01\0\0\x29more";
        let answer = dns_answer(question, Ipv4Addr::new(192, 0, 2, 7)).unwrap();
        let expected = b"\x12\x34\x81\x80\0\x01\0\x01\0\0\0\0\x03abc\0\0\x01\0\x01\xc0\x0c\0\x01\0\x01\0\0\0\0\0\x04\xc0\0\x02\x07";
        assert_eq!(answer, expected);
    }

    #[test]
    fn a_broken_dns_question_has_no_answer() {
        let question = b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\x01\x03abc\0\0\x01\0\x01";
        for cut in 0..question.len() {
            assert_eq!(dns_answer(&question[..cut], Ipv4Addr::LOCALHOST), None, "of {cut} bytes");
        }
    }
}
