//! A process that opens connections, sends requests or streams, in turns of a given length.
//!
//! Invariant: between two turns it does nothing, so two of them can take turns without disturbing each other.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::libc::linger;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};

use super::cpu::{self, Cpu};
use super::{BedError, at, spawn};

/// The size of one write of a stream.
const WRITE_BYTES: usize = 128 * 1024;

/// The operation that a turn repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Connect and reset, so that no port stays in use.
    Connect,
    /// One byte in each direction on one connection.
    Request,
    /// Bytes in one direction on one connection.
    Stream,
    /// Connect, one byte in each direction, and reset.
    Exchange,
    /// One byte in each direction by UDP.
    Datagram,
}

const KINDS: [Kind; 5] = [Kind::Connect, Kind::Request, Kind::Stream, Kind::Exchange, Kind::Datagram];

/// Longer than a reply takes on the busiest machine. A lost datagram is not sent again.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// After this many failures in a row the service is down, and there is nothing to measure.
const FAILED_IN_A_ROW_MAX: u32 = 8;

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Request => "request",
            Self::Stream => "stream",
            Self::Exchange => "exchange",
            Self::Datagram => "datagram",
        }
    }
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Connections, answers or bytes.
    pub count: u64,
    /// How long the turn took, with its last operation.
    pub took: Duration,
    /// Connections that were refused or got no reply; `count` leaves them out.
    pub failed: u64,
}

impl Turn {
    /// Operations per second.
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    pub fn rate(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }
}

/// A generator of load that waits for its turns.
#[derive(Debug)]
pub struct Load {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Load {
    pub(super) fn start(mut command: Command) -> Result<Self, BedError> {
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => Ok(Self { child, orders, answers: BufReader::new(answers) }),
            _ => Err(unexpected("no pipes")),
        }
    }

    /// Runs one turn of this length; a failed connection is an error.
    pub fn turn(&mut self, length: Duration) -> Result<Turn, BedError> {
        match self.turn_with_failures(length)? {
            turn if turn.failed == 0 => Ok(turn),
            turn => Err(unexpected(&format!("{} connections failed", turn.failed))),
        }
    }

    /// Runs one turn of this length and counts failed connections.
    pub fn turn_with_failures(&mut self, length: Duration) -> Result<Turn, BedError> {
        let pipe = "the pipe of a load generator".as_ref();
        writeln!(self.orders, "{}", length.as_nanos()).map_err(at("write to", pipe))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(at("read from", pipe))?;
        let mut numbers = line.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(count)), Some(Ok(took)), Some(Ok(failed))) => {
                Ok(Turn { count, took: Duration::from_nanos(took), failed })
            }
            _ => Err(unexpected(&line)),
        }
    }
}

fn unexpected(said: &str) -> BedError {
    BedError::Unexpected { who: "a load generator".to_owned(), said: said.to_owned() }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child process: runs a turn for each line of its standard input, which holds the nanoseconds.
pub(super) fn run(kind: &str, address: SocketAddr) -> io::Result<()> {
    let known = KINDS.into_iter().find(|known| known.word() == kind);
    let kind = known.ok_or_else(|| io::Error::other(format!("no load is called {kind}")))?;
    cpu::pin(Some(Cpu::Last))?;
    let mut operation = operation(kind, address)?;
    let mut failed_in_a_row = 0;
    for line in io::stdin().lines() {
        let nanoseconds = line?.parse().map_err(io::Error::other)?;
        let turn = take_turn(&mut operation, Duration::from_nanos(nanoseconds), &mut failed_in_a_row)?;
        writeln!(io::stdout(), "{} {} {}", turn.count, turn.took.as_nanos(), turn.failed)?;
    }
    Ok(())
}

type Operation = Box<dyn FnMut() -> io::Result<u64>>;

/// `failed_in_a_row` counts consecutive failures, also over former turns.
fn take_turn(operation: &mut Operation, length: Duration, failed_in_a_row: &mut u32) -> io::Result<Turn> {
    let begun = Instant::now();
    let mut turn = Turn { count: 0, took: Duration::ZERO, failed: 0 };
    while turn.took < length {
        match operation() {
            Ok(done) => {
                turn.count += done;
                *failed_in_a_row = 0;
            }
            Err(error) if *failed_in_a_row == FAILED_IN_A_ROW_MAX => return Err(error),
            Err(_) => {
                turn.failed += 1;
                *failed_in_a_row += 1;
            }
        }
        turn.took = begun.elapsed();
    }
    Ok(turn)
}

fn operation(kind: Kind, address: SocketAddr) -> io::Result<Operation> {
    Ok(match kind {
        Kind::Connect => Box::new(move || connect_and_reset(address)),
        Kind::Request => {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Box::new(move || ask(&mut stream))
        }
        Kind::Stream => {
            let mut stream = TcpStream::connect(address)?;
            let bytes = vec![0; WRITE_BYTES];
            Box::new(move || Ok(stream.write(&bytes)? as u64))
        }
        Kind::Exchange => Box::new(move || ask(&mut TcpStream::from(connected(address)?))),
        Kind::Datagram => {
            let socket = UdpSocket::bind(SocketAddr::new(unspecified(address), 0))?;
            socket.connect(address)?;
            socket.set_read_timeout(Some(ANSWER_MAX))?;
            Box::new(move || {
                socket.send(&[0])?;
                Ok(socket.recv(&mut [0])? as u64)
            })
        }
    })
}

/// The unspecified address of the same family.
fn unspecified(address: SocketAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

pub(super) fn connect_and_reset(address: SocketAddr) -> io::Result<u64> {
    connected(address).map(|_| 1)
}

/// A connection that ends with a reset, which keeps no port in use.
fn connected(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket: OwnedFd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

fn ask(stream: &mut TcpStream) -> io::Result<u64> {
    let mut byte = [0];
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    Ok(1)
}
