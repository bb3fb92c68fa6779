//! Clients in other languages: a C program with one call per step, and a Go program with its own runtime.
//!
//! Invariant: clients in each language write the same JSON lines. An emulated kernel has no compiler, so there the
//! built client lies next to the test.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::{Bed, BedError, Location, Server, at, finish, spawn, succeed, this_program};

/// A first build in Go compiles the standard library.
const BUILD_LIMIT: Duration = Duration::from_secs(300);

/// A client waits five seconds for each of at most eight answers.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// The result of one step of a client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Answer {
    /// The system call, or the step that stands for it.
    pub call: String,
    /// `ECONNREFUSED`; `None` if the call succeeded.
    pub errno: Option<String>,
    /// The dialled address: `192.0.2.1:80`, `[::ffff:192.0.2.1]:80`.
    pub to: String,
    /// The result of getpeername.
    pub peer: Option<String>,
    /// The result of getsockname.
    pub local: Option<String>,
    /// The source address of the reply.
    pub from: Option<String>,
    /// The reply, without its line feed.
    pub reply: Option<String>,
}

/// A built client.
#[derive(Clone, Debug)]
pub struct Client {
    program: PathBuf,
}

impl Client {
    /// The C client; needs `cc`.
    pub fn c() -> Result<Self, BedError> {
        built("client", |into| compile("c/client.c", into))
    }

    /// A wrapper that runs a program for which the kernel loads no BPF program; needs `cc`.
    pub fn refusing() -> Result<Self, BedError> {
        built("refusing", |into| compile("c/refusing.c", into))
    }

    /// Forwards packets between two devices; needs `cc`.
    pub fn tunnel() -> Result<Self, BedError> {
        built("tunnel", |into| compile("c/tunnel.c", into))
    }

    /// Detaches a program from its hook, as any root process may; needs `cc`.
    pub fn unhook() -> Result<Self, BedError> {
        built("unhook", |into| compile("c/unhook.c", into))
    }

    /// A foreign program attached to a cgroup while the server runs; needs `cc`. `words` say what it does, and to
    /// which connections: `deny ADDRESS PORT`, `lead ADDRESS PORT ADDRESS PORT`.
    pub fn meddle(cgroup: &Path, words: &[&str], from: SocketAddr) -> Result<Server, BedError> {
        let built = built("meddle", |into| compile("c/meddle.c", into))?;
        let mut command = Command::new(built.program());
        command.arg(cgroup).args(words);
        Server::start(command, from)
    }

    /// The Go client; needs `go`.
    pub fn go() -> Result<Self, BedError> {
        built("go-client", |into| {
            let mut command = Command::new("go");
            command.args(["build", "-o"]).arg(into).arg(".").current_dir(source("go"));
            // The build downloads nothing, and the program has no dynamic libraries.
            command.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
            command
        })
    }

    /// Runs it at a location and returns its steps.
    pub fn run(&self, bed: &Bed, location: Location<'_>, words: &[&str]) -> Result<Vec<Answer>, BedError> {
        let mut command = bed.command(location, &self.program)?;
        command.args(words);
        succeed(command, RUN_LIMIT)?.lines().map(answer).collect()
    }

    /// Runs it as a process of the node and returns the reply of the last step, or its errno.
    pub fn reply(&self, bed: &Bed, words: &[&str]) -> Result<String, BedError> {
        let last = self.run(bed, Location::NODE, words)?.pop();
        let nothing =
            || BedError::Unexpected { who: "a client".to_owned(), said: "no reply, no errno".to_owned() };
        last.and_then(|step| step.reply.or(step.errno)).ok_or_else(nothing)
    }

    /// The path of the built program.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

/// A C client that keeps its socket and sends one request per command, until dropped.
#[derive(Debug)]
pub struct LastingClient {
    client: Child,
    orders: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl LastingClient {
    /// Starts it as a process of the node; it sends nothing yet.
    pub fn start(bed: &Bed, words: &[&str]) -> Result<Self, BedError> {
        let mut command = bed.command(Location::NODE, Client::c()?.program())?;
        let mut client = spawn(command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        match (client.stdin.take(), client.stdout.take()) {
            (Some(orders), Some(lines)) => Ok(Self { client, orders, lines: BufReader::new(lines) }),
            _ => Err(BedError::Unexpected { who: "a client".to_owned(), said: "no pipes".to_owned() }),
        }
    }

    /// Sends one request and returns its steps up to the reply.
    pub fn ask(&mut self) -> Result<Vec<Answer>, BedError> {
        let pipe = Path::new("the pipe of a client");
        self.orders.write_all(b"\n").map_err(at("write to", pipe))?;
        let mut steps: Vec<Answer> = Vec::new();
        while steps.last().is_none_or(|step| step.call != "recvfrom") {
            let mut line = String::new();
            self.lines.read_line(&mut line).map_err(at("read from", pipe))?;
            steps.push(answer(&line)?);
        }
        Ok(steps)
    }
}

impl Drop for LastingClient {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

fn answer(line: &str) -> Result<Answer, BedError> {
    let wrong = |_| BedError::Unexpected { who: "a client".to_owned(), said: line.to_owned() };
    serde_json::from_str(line).map_err(wrong)
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systems/clients").join(path)
}

fn compile(path: &str, into: &Path) -> Command {
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(into).arg(source(path));
    command
}

/// The client next to this program, or one that is built now into a folder next to it.
fn built(name: &str, compiler: impl FnOnce(&Path) -> Command) -> Result<Client, BedError> {
    let this = this_program()?;
    let folder = this.parent().unwrap_or(Path::new("/"));
    let beside = folder.join(name);
    if beside.exists() {
        return Ok(Client { program: beside });
    }
    let clients = folder.join("clients");
    std::fs::create_dir_all(&clients).map_err(at("create", &clients))?;
    let program = clients.join(name);
    // Concurrent builds in threads or processes replace the client with an equal one.
    let unfinished = clients.join(format!("{name}-{}-{:?}", std::process::id(), std::thread::current().id()));
    succeed(compiler(&unfinished), BUILD_LIMIT)?;
    std::fs::rename(&unfinished, &program).map_err(at("rename into place", &program))?;
    Ok(Client { program })
}

/// The system calls of a command as `strace` shows them, one line each.
pub fn traced(
    bed: &Bed,
    location: Location<'_>,
    calls: &str,
    words: &[&str],
) -> Result<Vec<String>, BedError> {
    let mut command = bed.command(location, "strace")?;
    command.args(["-f", "-qq", "-e", "signal=none", "-e", &format!("trace={calls}")]).args(words);
    let output = finish(command, RUN_LIMIT)?;
    Ok(String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_client_is_read() {
        let line = r#"{"call":"connect","errno":"ECONNREFUSED","to":"127.0.0.1:9","peer":null,"local":"[::]:1","from":null,"reply":null}"#;
        let read = answer(line).unwrap();
        assert_eq!((read.call.as_str(), read.errno.as_deref()), ("connect", Some("ECONNREFUSED")));
        assert_eq!((read.peer, read.local.as_deref()), (None, Some("[::]:1")));
        assert!(answer("perror: no").unwrap_err().to_string().contains("perror: no"));
    }
}
