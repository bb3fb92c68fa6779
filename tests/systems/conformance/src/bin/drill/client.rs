//! Clients that dial a Service in a loop: each attempt is a new connection, and its answer is checked. One kind keeps
//! its connection, and dials again only when that breaks.
//!
//! Invariant: each attempt is one line on standard output, `NANOSECONDS TARGET OUTCOME`, written atomically; it takes
//! at most [`ATTEMPT_MAX`]. Times are of the monotonic clock, which all machines of a kernel share.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, Stopwatch, pause};
use nix::time::{ClockId, clock_gettime};

use crate::Failure;

/// The timeout of an answer.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);

/// The interval of attempts at an address: ten a second show a short gap, and spare a small machine.
const PAUSE: Duration = Duration::from_millis(100);

/// The answer of the dialled Service's server.
pub(crate) const ANSWER: &str = "web";

/// A DNS query for `kubernetes.default.svc.cluster.local`, type A, and the address in every right answer.
const QUESTION: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\
    \x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01";
const DNS_ANSWER: [u8; 4] = [10, 96, 0, 1];

/// The protocol of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The server's name, by TCP.
    Name,
    /// The apiserver's address, by DNS.
    Dns,
    /// A byte in each direction, on one connection.
    Held,
}

/// A target: `name:ADDRESS`, `dns:ADDRESS` or `held:ADDRESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    kind: Kind,
    address: SocketAddr,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, address) = text.split_once(':').ok_or_else(|| format!("{text} has no kind"))?;
        let kind = match kind {
            "name" => Kind::Name,
            "dns" => Kind::Dns,
            "held" => Kind::Held,
            other => return Err(format!("{other} is neither name, dns nor held")),
        };
        Ok(Self { kind, address: address.parse().map_err(|error| format!("{address}: {error}"))? })
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Answered,
    Refused,
    /// No connection or no answer in time.
    TimedOut,
    /// Another server answered, or the answer was truncated.
    Wrong,
    /// Reset, unreachable, or another error of the system.
    Failed,
}

pub(crate) const OUTCOMES: [(Outcome, &str); 5] = [
    (Outcome::Answered, "answered"),
    (Outcome::Refused, "refused"),
    (Outcome::TimedOut, "timeout"),
    (Outcome::Wrong, "wrong"),
    (Outcome::Failed, "failed"),
];

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = OUTCOMES.iter().find(|(outcome, _)| outcome == self).map_or("", |(_, word)| word);
        f.write_str(word)
    }
}

impl From<io::Error> for Outcome {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

/// Dials all targets until it is killed.
pub(crate) fn run(targets: &[Target]) -> Result<(), Failure> {
    thread::scope(|scope| {
        let clients: Vec<_> = targets.iter().map(|target| scope.spawn(|| dial_on(target))).collect();
        let ended = clients.into_iter().map(|client| client.join().unwrap_or(Ok(())));
        Ok(ended.collect::<io::Result<()>>()?)
    })
}

fn dial_on(target: &Target) -> io::Result<()> {
    let mut held = None;
    loop {
        let begun = Stopwatch::start();
        let at = now();
        let outcome = target.attempt(&mut held);
        let line = format!("{at} {} {outcome}\n", target.address);
        io::stdout().lock().write_all(line.as_bytes())?;
        pause(PAUSE.saturating_sub(begun.read()));
    }
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Target {
    fn attempt(&self, held: &mut Option<TcpStream>) -> Outcome {
        let asked = match self.kind {
            Kind::Name => name_at(self.address).map(|name| name == ANSWER),
            Kind::Dns => resolve_at(self.address),
            Kind::Held => echo_on(held, self.address),
        };
        asked.map_or_else(Outcome::from, |right| if right { Outcome::Answered } else { Outcome::Wrong })
    }
}

/// The name that the server at an address sends.
pub(crate) fn name_at(address: SocketAddr) -> io::Result<String> {
    let end = Deadline::after(ATTEMPT_MAX);
    let mut stream = TcpStream::connect_timeout(&address, ATTEMPT_MAX)?;
    // Zero would mean no timeout.
    let left = end.remaining().max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    let mut name = String::new();
    Read::by_ref(&mut stream).take(100).read_to_string(&mut name)?;
    Ok(name.trim().to_owned())
}

/// Whether the held connection still works. Opens a new one if there is none, and drops a failed one.
fn echo_on(held: &mut Option<TcpStream>, address: SocketAddr) -> io::Result<bool> {
    let mut stream = match held.take() {
        Some(stream) => stream,
        None => TcpStream::connect_timeout(&address, ATTEMPT_MAX)?,
    };
    stream.set_read_timeout(Some(ATTEMPT_MAX))?;
    let mut byte = *b"?";
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    *held = Some(stream);
    Ok(true)
}

fn resolve_at(address: SocketAddr) -> io::Result<bool> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(ATTEMPT_MAX))?;
    socket.send(QUESTION)?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer)?;
    Ok(answer.get(..length).is_some_and(|answer| answer.windows(4).any(|part| part == DNS_ANSWER)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn outcome(answer: &'static str) -> Outcome {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target { kind: Kind::Name, address: listener.local_addr().unwrap() };
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.write_all(answer.as_bytes()).unwrap();
        });
        let outcome = target.attempt(&mut None);
        server.join().unwrap();
        outcome
    }

    #[test]
    fn only_the_expected_name_is_an_answer() {
        assert_eq!(outcome("web\n"), Outcome::Answered);
        assert_eq!(outcome("other\n"), Outcome::Wrong);
        assert_eq!(outcome(""), Outcome::Wrong);
    }

    #[test]
    fn a_closed_port_refuses_and_a_silent_one_is_late() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target { kind: Kind::Name, address: listener.local_addr().unwrap() };
        assert_eq!(target.attempt(&mut None), Outcome::TimedOut);
        drop(listener);
        assert_eq!(target.attempt(&mut None), Outcome::Refused);
    }

    #[test]
    fn a_connection_is_held_until_it_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target { kind: Kind::Held, address: listener.local_addr().unwrap() };
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut bytes = [0; 2];
            client.read_exact(&mut bytes[..1]).unwrap();
            client.write_all(&bytes[..1]).unwrap();
            client.read_exact(&mut bytes[1..]).unwrap();
            client.write_all(&bytes[1..]).unwrap();
        });
        let mut held = None;
        let outcomes = [(); 2].map(|()| target.attempt(&mut held));
        assert_eq!(outcomes, [Outcome::Answered; 2]);
        server.join().unwrap();
        assert_eq!((target.attempt(&mut held), held.is_none()), (Outcome::Failed, true));
        assert_eq!(target.attempt(&mut held), Outcome::Refused);
    }

    #[test]
    fn targets_are_parsed_with_their_kind() {
        let target: Target = "dns:10.96.0.10:53".parse().unwrap();
        assert_eq!(target, Target { kind: Kind::Dns, address: "10.96.0.10:53".parse().unwrap() });
        assert!("10.96.0.10:53".parse::<Target>().is_err());
    }
}
