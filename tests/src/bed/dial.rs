//! A client that dials one address in a loop and counts the results.
//!
//! Invariant: each attempt counts once, in the next tally.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::load::connect_and_reset;
use super::{BedError, at, spawn};

/// The pause between two attempts: short enough to catch an outage of a few milliseconds, long enough to spare the
/// servers.
const PAUSE: Duration = Duration::from_millis(4);

/// The results since the previous tally.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Tally {
    /// Established connections.
    pub connected: u64,
    /// Failed connections, by errno: `ECONNREFUSED`.
    pub failed: BTreeMap<String, u64>,
}

/// `485 connected`, or `482 connected, 3 ECONNREFUSED`.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} connected", self.connected)?;
        self.failed.iter().try_for_each(|(error, times)| write!(f, ", {times} {error}"))
    }
}

/// A client that dials until it is dropped.
#[derive(Debug)]
pub struct Dialer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Dialer {
    pub(crate) fn start(mut command: Command) -> Result<Self, BedError> {
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => Ok(Self { child, orders, answers: BufReader::new(answers) }),
            _ => Err(unexpected("no pipes")),
        }
    }

    /// The results since the previous call.
    pub fn tally(&mut self) -> Result<Tally, BedError> {
        let pipe = "the pipe of a dialing client".as_ref();
        writeln!(self.orders).map_err(at("write to", pipe))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(at("read from", pipe))?;
        serde_json::from_str(&line).map_err(|_| unexpected(&line))
    }
}

fn unexpected(said: &str) -> BedError {
    BedError::Unexpected { who: "a dialing client".to_owned(), said: said.to_owned() }
}

impl Drop for Dialer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child process: prints a tally for each line of its standard input.
pub(super) fn run(address: SocketAddr) -> io::Result<()> {
    let tally = Arc::new(Mutex::new(Tally::default()));
    let counting = Arc::clone(&tally);
    thread::spawn(move || dial(address, &counting));
    for line in io::stdin().lines() {
        line?;
        let taken = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
        writeln!(io::stdout(), "{}", serde_json::to_string(&taken)?)?;
    }
    Ok(())
}

fn dial(address: SocketAddr, tally: &Mutex<Tally>) {
    loop {
        let begun = Instant::now();
        let result = connect_and_reset(address);
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(_) => tally.connected += 1,
            Err(error) => *tally.failed.entry(word(&error)).or_default() += 1,
        }
        drop(tally);
        thread::sleep(PAUSE.saturating_sub(begun.elapsed()));
    }
}

fn word(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |errno| format!("{:?}", Errno::from_raw(errno)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn attempts_are_counted_by_their_results() {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let counting = Arc::clone(&tally);
        // The thread ends with the test's process.
        thread::spawn(move || dial(address, &counting));
        let reached = |is_it: &dyn Fn(&Tally) -> bool| {
            let end = Instant::now() + Duration::from_secs(20);
            while !is_it(&tally.lock().unwrap()) {
                assert!(Instant::now() < end, "{tally:?}");
                thread::sleep(PAUSE);
            }
        };
        reached(&|tally| tally.connected > 2);
        assert_eq!(tally.lock().unwrap().failed, BTreeMap::new());
        drop(listener);
        reached(&|tally| tally.failed.get("ECONNREFUSED").is_some_and(|count| *count > 2));
    }
}
