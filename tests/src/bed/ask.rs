//! A client of the servers in `seen_source`: which client address each server saw, and how each request ended.
//!
//! Invariant: each request has exactly one outcome within its time. The requests of one order are sent at the same
//! time, so a silent one delays no other.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::crowd::word;
use super::seen_source::{DATAGRAM_BYTES, expect, filled, filling};
use super::{BedError, at, raw, spawn};

/// Longer than the first retransmission of a SYN, so that one lost SYN is not taken for silence. A server answers
/// within milliseconds.
pub const PATIENCE: Duration = Duration::from_millis(2500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Transport {
    Tcp,
    Udp,
}

/// One request.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Question {
    pub transport: Transport,
    pub to: SocketAddr,
    /// The client's own address or port; unspecified means any.
    pub from: Option<SocketAddr>,
    /// How many bytes the client sends.
    pub take: usize,
    /// How many bytes the server sends back.
    pub give: usize,
    /// The TTL. With it, ICMP errors from routers count as answers.
    pub hops: Option<u8>,
    /// Ends the connection with a reset, so that the port is free at once.
    pub abort: bool,
    pub patience: Duration,
}

impl Question {
    /// Asks which server answers at this address, with no payload.
    pub fn new(transport: Transport, to: SocketAddr) -> Self {
        Self { transport, to, from: None, take: 0, give: 0, hops: None, abort: false, patience: PATIENCE }
    }

    pub fn from(mut self, from: SocketAddr) -> Self {
        self.from = Some(from);
        self
    }

    pub fn hops(mut self, hops: u8) -> Self {
        self.hops = Some(hops);
        self
    }

    pub fn abort(mut self) -> Self {
        self.abort = true;
        self
    }

    /// The same request with this many bytes in each direction.
    pub fn sized(mut self, take: usize, give: usize) -> Self {
        (self.take, self.give) = (take, give);
        self
    }
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Outcome {
    /// A server returned all bytes.
    Answered {
        by: String,
        /// The client's address as the server saw it.
        seen: SocketAddr,
    },
    /// ECONNREFUSED: a reset, or an ICMP error for a closed port.
    Refused,
    /// The connection was established and then reset.
    Reset,
    /// An ICMP error reported no route.
    Unreachable,
    Silent,
    /// EPERM: the node's own rules drop the packet on output.
    Denied,
    /// Any other error, by errno or as text.
    Failed(String),
}

/// The state of the held connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct HeldConnections {
    /// Connections that still work.
    pub alive: usize,
    /// Connections that do not, counted by their error.
    pub broken: BTreeMap<String, usize>,
}

#[derive(Debug, Deserialize, Serialize)]
enum Order {
    Ask(Vec<Question>),
    /// Opens connections and keeps them.
    Hold {
        to: SocketAddr,
        from: Option<SocketAddr>,
        count: usize,
    },
    /// Sends a datagram in fragments, the last one first, and waits for the reply.
    Backwards {
        from: SocketAddrV4,
        to: SocketAddrV4,
        size: usize,
    },
    /// Sends SYNs from changing ports and addresses of a range, without waiting for replies.
    Flood {
        range: Ipv4Addr,
        to: SocketAddrV4,
        count: u32,
    },
    /// Sends a request over each held connection.
    Try,
    /// Sends a request over each held connection and returns the servers' names.
    Who,
}

/// A client process that runs until dropped.
#[derive(Debug)]
pub struct Asker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Asker {
    pub(super) fn start(mut command: Command) -> Result<Self, BedError> {
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => Ok(Self { child, orders, answers: BufReader::new(answers) }),
            _ => Err(unexpected("no pipes")),
        }
    }

    /// Sends all requests at once. The outcomes have the order of the questions.
    pub fn ask_all(&mut self, questions: &[Question]) -> Result<Vec<Outcome>, BedError> {
        self.order(&Order::Ask(questions.to_vec()))
    }

    pub fn ask(&mut self, question: Question) -> Result<Outcome, BedError> {
        self.ask_all(&[question])?.pop().ok_or_else(|| unexpected("no outcome"))
    }

    /// Opens connections one after the other and adds them to the held ones.
    pub fn hold(
        &mut self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        count: usize,
    ) -> Result<HeldConnections, BedError> {
        self.order(&Order::Hold { to, from, count })
    }

    /// Sends a datagram of a size in fragments, the last one first, and waits for the reply.
    pub fn backwards(
        &mut self,
        from: SocketAddrV4,
        to: SocketAddrV4,
        size: usize,
    ) -> Result<Outcome, BedError> {
        self.order(&Order::Backwards { from, to, size })
    }

    /// Sends SYNs from addresses of this range and returns how many were sent.
    pub fn flood(&mut self, range: Ipv4Addr, to: SocketAddrV4, count: u32) -> Result<u32, BedError> {
        self.order(&Order::Flood { range, to, count })
    }

    /// Sends a request over each held connection, and closes those that fail.
    pub fn try_held(&mut self) -> Result<HeldConnections, BedError> {
        self.order(&Order::Try)
    }

    /// Counts the held connections by the server that answers, or by their error. Closes those that fail.
    pub fn who_answers(&mut self) -> Result<BTreeMap<String, usize>, BedError> {
        self.order(&Order::Who)
    }

    fn order<T: for<'a> Deserialize<'a>>(&mut self, order: &Order) -> Result<T, BedError> {
        let pipe = "the pipe of an asking client".as_ref();
        let text = serde_json::to_string(order).map_err(|error| unexpected(&error.to_string()))?;
        writeln!(self.orders, "{text}").map_err(at("write to", pipe))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(at("read from", pipe))?;
        serde_json::from_str(&line).map_err(|_| unexpected(&line))
    }
}

fn unexpected(said: &str) -> BedError {
    BedError::Unexpected { who: "an asking client".to_owned(), said: said.to_owned() }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child process: answers each line of its standard input.
pub(super) fn run() -> io::Result<()> {
    let mut held = Vec::new();
    for line in io::stdin().lines() {
        let text = match serde_json::from_str(&line?)? {
            Order::Ask(questions) => serde_json::to_string(&ask_all(&questions)),
            Order::Hold { to, from, count } => serde_json::to_string(&hold(&mut held, to, from, count)),
            Order::Backwards { from, to, size } => serde_json::to_string(&backwards(from, to, size)),
            Order::Flood { range, to, count } => serde_json::to_string(&raw::flood(range, to, count)?),
            Order::Try => serde_json::to_string(&try_all(&mut held)),
            Order::Who => serde_json::to_string(&who_answers(&mut held)),
        };
        writeln!(io::stdout(), "{}", text?)?;
    }
    Ok(())
}

fn ask_all(questions: &[Question]) -> Vec<Outcome> {
    thread::scope(|scope| {
        let asked: Vec<_> = questions.iter().map(|question| scope.spawn(|| ask(question))).collect();
        let lost = |_| Outcome::Failed("the client panicked".to_owned());
        asked.into_iter().map(|asked| asked.join().unwrap_or_else(lost)).collect()
    })
}

fn ask(question: &Question) -> Outcome {
    let answer = match question.transport {
        Transport::Tcp => ask_tcp(question),
        Transport::Udp => ask_udp(question),
    };
    answer.unwrap_or_else(|error| Outcome::from_error(&error))
}

impl Outcome {
    fn from_error(error: &io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw);
        match (errno, error.kind()) {
            (Some(Errno::ECONNREFUSED), _) => Self::Refused,
            (Some(Errno::ECONNRESET), _) => Self::Reset,
            (Some(Errno::EHOSTUNREACH | Errno::ENETUNREACH), _) => Self::Unreachable,
            (Some(Errno::EPERM), _) => Self::Denied,
            (_, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => Self::Silent,
            _ => Self::Failed(word(error)),
        }
    }

    /// Parses a server's reply.
    fn from_line(line: &str) -> Option<Self> {
        let (by, seen) = line.trim_end().split_once(' ')?;
        Some(Self::Answered { by: by.to_owned(), seen: seen.parse().ok()? })
    }
}

fn socket(question: &Question) -> io::Result<Socket> {
    let (kind, protocol) = match question.transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(Domain::for_address(question.to), kind, Some(protocol))?;
    socket.set_reuse_address(question.transport == Transport::Tcp)?;
    if let Some(from) = question.from {
        socket.bind(&from.into())?;
    }
    if let Some(hops) = question.hops {
        limit_hops(&socket, question.to, hops)?;
    }
    if question.abort {
        socket.set_linger(Some(Duration::ZERO))?;
    }
    socket.set_read_timeout(Some(question.patience))?;
    socket.set_write_timeout(Some(question.patience))?;
    Ok(socket)
}

fn limit_hops(socket: &Socket, to: SocketAddr, hops: u8) -> io::Result<()> {
    if to.is_ipv4() {
        socket.set_ttl_v4(hops.into())?;
        Ok(setsockopt(socket, sockopt::Ipv4RecvErr, &true)?)
    } else {
        socket.set_unicast_hops_v6(hops.into())?;
        Ok(setsockopt(socket, sockopt::Ipv6RecvErr, &true)?)
    }
}

fn connected(question: &Question) -> io::Result<TcpStream> {
    let socket = socket(question)?;
    socket.connect_timeout(&question.to.into(), question.patience)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

fn ask_tcp(question: &Question) -> io::Result<Outcome> {
    over(&mut connected(question)?, question.take, question.give)
}

fn over(stream: &mut TcpStream, take: usize, give: usize) -> io::Result<Outcome> {
    let mut bytes = format!("{take} {give}\n").into_bytes();
    bytes.extend(filling(take));
    stream.write_all(&bytes)?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.by_ref().take(128).read_line(&mut line)? == 0 {
        return Ok(Outcome::Failed("the connection was closed".to_owned()));
    }
    expect(&mut reader, give)?;
    Ok(Outcome::from_line(&line).unwrap_or(Outcome::Failed(line)))
}

/// The socket is connected, so it never receives a reply from another address.
fn ask_udp(question: &Question) -> io::Result<Outcome> {
    let socket = socket(question)?;
    socket.connect(&question.to.into())?;
    let socket: UdpSocket = socket.into();
    socket.send(&filled(&format!("{} {}\n", question.take, question.give), question.take))?;
    answer_of(&socket, question.give)
}

fn answer_of(socket: &UdpSocket, give: usize) -> io::Result<Outcome> {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let count = socket.recv(&mut buffer)?;
    let bytes = buffer.get(..count).unwrap_or_default();
    let line = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    let whole = bytes == filled(&line, give);
    Ok(Outcome::from_line(&line)
        .filter(|_| whole)
        .unwrap_or(Outcome::Failed(format!("{count} bytes: {line}"))))
}

/// The receiving socket has the port from which the fragments are sent.
fn backwards(from: SocketAddrV4, to: SocketAddrV4, size: usize) -> Outcome {
    let sent = || {
        let question = Question::new(Transport::Udp, to.into()).from(from.into());
        let socket = socket(&question)?;
        socket.connect(&question.to.into())?;
        raw::backwards(from, to, &filled(&format!("{size} 0\n"), size))?;
        answer_of(&socket.into(), 0)
    };
    sent().unwrap_or_else(|error| Outcome::from_error(&error))
}

fn hold(
    held: &mut Vec<TcpStream>,
    to: SocketAddr,
    from: Option<SocketAddr>,
    count: usize,
) -> HeldConnections {
    let mut tally = HeldConnections::default();
    let question = Question { from, ..Question::new(Transport::Tcp, to) };
    for _ in 0..count {
        let stream = connected(&question);
        let outcome = stream.and_then(|mut stream| Ok((over(&mut stream, 0, 0)?, stream)));
        if let Some(stream) = tally.note(outcome) {
            held.push(stream);
        }
    }
    tally
}

fn try_all(held: &mut Vec<TcpStream>) -> HeldConnections {
    let mut tally = HeldConnections::default();
    let tried = held.drain(..).map(|mut stream| Ok((over(&mut stream, 0, 0)?, stream)));
    *held = tried.filter_map(|outcome| tally.note(outcome)).collect();
    tally
}

fn who_answers(held: &mut Vec<TcpStream>) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    held.retain_mut(|stream| {
        let outcome = over(stream, 0, 0).unwrap_or_else(|error| Outcome::from_error(&error));
        let (word, is_answered) = match outcome {
            Outcome::Answered { by, .. } => (by, true),
            other => (format!("{other:?}"), false),
        };
        *tally.entry(word).or_default() += 1;
        is_answered
    });
    tally
}

impl HeldConnections {
    /// Returns the connection if it answered.
    fn note(&mut self, outcome: io::Result<(Outcome, TcpStream)>) -> Option<TcpStream> {
        let outcome = outcome
            .map_or_else(|error| (Outcome::from_error(&error), None), |(outcome, it)| (outcome, Some(it)));
        if let (Outcome::Answered { .. }, stream) = outcome {
            self.alive += 1;
            return stream;
        }
        *self.broken.entry(format!("{:?}", outcome.0)).or_default() += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_server_and_the_client_that_it_saw() {
        let outcome = Outcome::from_line("pod-a 10.0.0.1:7\n");
        let expected = Outcome::Answered { by: "pod-a".to_owned(), seen: "10.0.0.1:7".parse().unwrap() };
        assert_eq!(outcome, Some(expected));
        assert_eq!(Outcome::from_line("nonsense"), None);
    }

    #[test]
    fn each_error_becomes_its_outcome() {
        let of = |errno: Errno| Outcome::from_error(&io::Error::from(errno));
        assert_eq!(of(Errno::ECONNREFUSED), Outcome::Refused);
        assert_eq!(of(Errno::ECONNRESET), Outcome::Reset);
        assert_eq!(of(Errno::EAGAIN), Outcome::Silent);
        assert_eq!(of(Errno::ENETUNREACH), Outcome::Unreachable);
        assert_eq!(of(Errno::EPERM), Outcome::Denied);
        assert_eq!(of(Errno::EPIPE), Outcome::Failed("EPIPE".to_owned()));
    }
}
