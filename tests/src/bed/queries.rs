//! A client that asks DNS servers at a steady rate, each question from a socket of its own, as a resolver does.
//!
//! Invariant: each question is sent once and counts once. The rate does not depend on the answers: a silent server
//! delays no other question.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::ask::Transport;
use super::crowd::word;
use super::{BedError, at, spawn};

/// How long a question waits. A resolver waits five seconds and asks again, which would hide a loss.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// The most questions that are open at once. At 250 a second these are four seconds of a silent server.
const THREADS_MAX: u32 = 1000;

const STACK_BYTES: usize = 128 * 1024;

/// The name that is asked for.
pub const NAME: &str = "who.test";

/// A lost question.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Loss {
    /// When it was sent, on the clock of `now`.
    pub sent: Duration,
    pub error: String,
}

/// The questions that have ended since the previous tally.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Answers {
    /// How many answers had this address.
    pub by: BTreeMap<Ipv4Addr, u64>,
    pub lost: Vec<Loss>,
}

/// The clock that all processes of the machine share.
#[must_use]
pub fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// A client that asks until it is dropped.
#[derive(Debug)]
pub struct Queries {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Queries {
    pub(super) fn start(mut command: Command) -> Result<Self, BedError> {
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => Ok(Self { child, orders, answers: BufReader::new(answers) }),
            _ => Err(unexpected("no pipes")),
        }
    }

    /// The results since the previous call.
    pub fn tally(&mut self) -> Result<Answers, BedError> {
        let pipe = "the pipe of a resolver".as_ref();
        writeln!(self.orders).map_err(at("write to", pipe))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(at("read from", pipe))?;
        serde_json::from_str(&line).map_err(|_| unexpected(&line))
    }
}

fn unexpected(said: &str) -> BedError {
    BedError::Unexpected { who: "a resolver".to_owned(), said: said.to_owned() }
}

impl Drop for Queries {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) const fn transport_word(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    }
}

/// The child process: prints a tally for each line of its standard input.
pub(super) fn run(transport: &str, server: SocketAddr, rate: u32) -> io::Result<()> {
    let transport = if transport == "tcp" { Transport::Tcp } else { Transport::Udp };
    let (answers, next) = (Arc::new(Mutex::new(Answers::default())), Arc::new(AtomicU32::new(0)));
    let begun = Instant::now();
    let threads = rate.saturating_mul(4).min(THREADS_MAX);
    for _ in 0..threads {
        let (answers, next) = (Arc::clone(&answers), Arc::clone(&next));
        let body = move || ask_for_ever(transport, server, rate, begun, &next, &answers);
        thread::Builder::new().stack_size(STACK_BYTES).spawn(body)?;
    }
    for line in io::stdin().lines() {
        line?;
        let taken = std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner));
        writeln!(io::stdout(), "{}", serde_json::to_string(&taken)?)?;
    }
    Ok(())
}

fn ask_for_ever(
    transport: Transport,
    server: SocketAddr,
    rate: u32,
    begun: Instant,
    next: &AtomicU32,
    answers: &Mutex<Answers>,
) {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let due = Duration::from_secs(number.into()) / rate.max(1);
        thread::sleep(due.saturating_sub(begun.elapsed()));
        let sent = now();
        let answer = ask(transport, server, number.to_le_bytes());
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(address) => *answers.by.entry(address).or_default() += 1,
            Err(error) => answers.lost.push(Loss { sent, error: word(&error) }),
        }
    }
}

fn ask(transport: Transport, server: SocketAddr, [low, high, ..]: [u8; 4]) -> io::Result<Ipv4Addr> {
    let question = question([low, high]);
    let answer = match transport {
        Transport::Udp => by_datagram(server, &question)?,
        Transport::Tcp => by_stream(server, &question)?,
    };
    let address = parse_answer(&question, &answer);
    address.ok_or_else(|| io::Error::other(format!("an answer of {} bytes is none", answer.len())))
}

fn by_datagram(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(server)?;
    socket.send(question)?;
    let mut buffer = vec![0; 512];
    let count = socket.recv(&mut buffer)?;
    buffer.truncate(count);
    Ok(buffer)
}

fn by_stream(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
    socket.connect_timeout(&server.into(), PATIENCE)?;
    let mut stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = u16::try_from(question.len()).unwrap_or(u16::MAX).to_be_bytes();
    stream.write_all(&[&length, question].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// A question for the address of `NAME`.
fn question(id: [u8; 2]) -> Vec<u8> {
    let mut bytes = [&id[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in NAME.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or_default());
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// The address of the first record, which follows the question: name, type, class, TTL, length, address.
fn parse_answer(question: &[u8], answer: &[u8]) -> Option<Ipv4Addr> {
    let (id, flags) = (answer.get(..2)?, answer.get(2..4)?);
    let is_good = id == question.get(..2)? && *flags.last()? & 0x0f == 0;
    let record = answer.get(question.len()..)?;
    let is_pointer = *record.first()? & 0xc0 == 0xc0;
    let name_end = if is_pointer { 2 } else { record.iter().position(|byte| *byte == 0)? + 1 };
    let address: [u8; 4] = record.get(name_end + 10..)?.first_chunk().copied()?;
    (is_good && answer.get(6..8)? != [0, 0]).then(|| address.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_good_answer_has_an_address() {
        let question = question([7, 8]);
        let record = [0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1];
        let answer = |name: &[u8]| {
            [&[7, 8, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0], &question[12..], name, &record].concat()
        };
        let expected = Some(Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(parse_answer(&question, &answer(b"\x03who\x04test\0")), expected);
        let mut answer = answer(&[0xc0, 12]);
        assert_eq!(parse_answer(&question, &answer), expected);
        assert_eq!(parse_answer(&question, &answer[..answer.len() - 1]), None, "a byte is missing");
        answer[3] = 0x83;
        assert_eq!(parse_answer(&question, &answer), None, "NXDOMAIN");
    }
}
