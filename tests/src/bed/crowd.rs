//! Many clients of the admin API at once, as a chosen user, that send the same request in a loop.
//!
//! Invariant: the process drops its privileges before it connects, and it counts each request once.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use serde::{Deserialize, Serialize};

use super::{BedError, at, spawn};

/// The pause between two requests of one client: as fast as a loop in a shell.
const PAUSE: Duration = Duration::from_millis(2);

/// Clients of one crowd, each a thread.
const CLIENTS_MAX: usize = 256;

/// The results since the previous tally.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Answers {
    /// Answers by status; a stream counts when it begins.
    pub by_status: BTreeMap<u16, u64>,
    /// Requests that could not be sent, by errno: `EACCES`.
    pub failed: BTreeMap<String, u64>,
}

/// Clients that send requests until dropped.
#[derive(Debug)]
pub struct ApiClients {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The request of a crowd, its listener and its user.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The user id, and the group of the same number.
    pub uid: u32,
    /// How many clients send requests at once.
    pub clients: usize,
    /// An address and a port, or the path of a socket.
    pub door: &'a str,
    pub method: &'a str,
    /// The path, with its query.
    pub path: &'a str,
}

impl Question<'_> {
    pub(super) fn arguments(&self) -> [String; 5] {
        let Self { uid, clients, door, method, path } = self;
        [uid.to_string(), clients.to_string(), (*door).to_owned(), (*method).to_owned(), (*path).to_owned()]
    }
}

impl ApiClients {
    pub(super) fn start(mut command: Command) -> Result<Self, BedError> {
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => Ok(Self { child, orders, answers: BufReader::new(answers) }),
            _ => Err(unexpected("no pipes")),
        }
    }

    /// The results since the previous call.
    pub fn answers(&mut self) -> Result<Answers, BedError> {
        let pipe = Path::new("the pipe of a crowd");
        writeln!(self.orders).map_err(at("write to", pipe))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(at("read from", pipe))?;
        serde_json::from_str(&line).map_err(|_| unexpected(&line))
    }
}

fn unexpected(said: &str) -> BedError {
    BedError::Unexpected { who: "a crowd".to_owned(), said: said.to_owned() }
}

impl Drop for ApiClients {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child process: becomes the user, sends requests, and prints the results for each line of its standard input.
pub(super) fn run([uid, clients, door, method, path]: [&str; 5]) -> io::Result<()> {
    let number = |text: &str| text.parse::<u32>().map_err(io::Error::other);
    become_user(number(uid)?)?;
    let clients = usize::try_from(number(clients)?).unwrap_or(CLIENTS_MAX).min(CLIENTS_MAX);
    let counted = Arc::new(Mutex::new(Answers::default()));
    for _ in 0..clients {
        let (counting, door) = (Arc::clone(&counted), door.to_owned());
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {door}\r\nconnection: close\r\n\r\n");
        thread::Builder::new().spawn(move || ask_again_and_again(&door, &request, &counting))?;
    }
    for line in io::stdin().lines() {
        line?;
        let taken = std::mem::take(&mut *counted.lock().unwrap_or_else(PoisonError::into_inner));
        writeln!(io::stdout(), "{}", serde_json::to_string(&taken)?)?;
    }
    Ok(())
}

/// Drops root for good.
pub(super) fn become_user(uid: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    setgroups(&[group])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    Ok(())
}

fn ask_again_and_again(door: &str, request: &str, counted: &Mutex<Answers>) {
    let count = |came: io::Result<u16>| {
        let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        match came {
            Ok(status) => *counted.by_status.entry(status).or_default() += 1,
            Err(error) => *counted.failed.entry(word(&error)).or_default() += 1,
        }
    };
    loop {
        match dial(door) {
            Ok(stream) => ask(stream, request, count),
            Err(error) => count(Err(error)),
        }
        thread::sleep(PAUSE);
    }
}

fn dial(door: &str) -> io::Result<Box<dyn Stream>> {
    match door.parse::<SocketAddr>() {
        Ok(address) => Ok(Box::new(TcpStream::connect(address)?)),
        Err(_) => Ok(Box::new(UnixStream::connect(door)?)),
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Sends one request, counts its status line and reads the answer to its end. A stream has no end.
fn ask(mut stream: Box<dyn Stream>, request: &str, count: impl Fn(io::Result<u16>)) {
    if let Err(error) = stream.write_all(request.as_bytes()) {
        return count(Err(error));
    }
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    count(answer.read_line(&mut line).and_then(|_| status(&line)));
    // The request has been counted already.
    let _ = io::copy(&mut answer, &mut io::sink());
}

fn status(line: &str) -> io::Result<u16> {
    let code = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.ok_or_else(|| io::Error::other("no answer"))
}

pub(super) fn word(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |errno| format!("{:?}", Errno::from_raw(errno)))
}
