//! The real daemon in a bed, with the kernel's datapath.
//!
//! Invariant: its pins and its sources survive its end.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::{Bed, BedError, Location, at, finish, spawn, succeed, this_program, wait};

/// A daemon is ready in less than a second; a busy machine takes longer, and an emulated kernel longer still.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// The longest time for one command of its CLI.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The longest time from SIGTERM to the daemon's end.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How many log lines an error quotes.
const LINES_TOLD: usize = 20;

/// How often readiness is polled.
const READY_POLL: Duration = Duration::from_millis(20);

/// One daemon: its configuration, its sources, and its process while it runs.
#[derive(Debug)]
pub struct Daemon<'a> {
    bed: &'a Bed,
    program: PathBuf,
    place: Location<'static>,
    cgroup: PathBuf,
    // The cgroup tree whose sockets it serves.
    served: PathBuf,
    pins: String,
    // Nothing is attached, and no traffic is touched.
    is_in_memory: bool,
    folder: TempDir,
    child: Option<Child>,
}

impl<'a> Daemon<'a> {
    /// A daemon that is not started yet, in a cgroup of its own. `more` is appended to its configuration.
    pub fn new(bed: &'a Bed, more: &str) -> Result<Self, BedError> {
        Self::within(bed, bed.child_cgroup("daemon")?, more)
    }

    /// A daemon in the given cgroup.
    pub fn within(bed: &'a Bed, cgroup: PathBuf, more: &str) -> Result<Self, BedError> {
        let program = program()?;
        let temporary = std::env::temp_dir();
        let folder = TempDir::new().map_err(at("create a folder in", &temporary))?;
        let (place, served, pins) = (Location::OUTSIDE, bed.cgroup().to_owned(), "holdfast".to_owned());
        let daemon =
            Self { bed, program, place, cgroup, served, pins, is_in_memory: false, folder, child: None };
        let manifests = daemon.manifests();
        fs::create_dir(&manifests).map_err(at("create", &manifests))?;
        daemon.configure(more)?;
        Ok(daemon)
    }

    /// A daemon on another node, next to the one of the bed's own node. It serves that node's packets and no process.
    pub fn at(bed: &'a Bed, node: &'static str, more: &str) -> Result<Self, BedError> {
        let mut daemon = Self::within(bed, bed.child_cgroup(&format!("daemon-{node}"))?, more)?;
        daemon.place = Location::far(node);
        daemon.served = bed.child_cgroup(&format!("served-{node}"))?;
        daemon.move_pins(node, more)?;
        Ok(daemon)
    }

    /// Runs another program as the daemon: a benchmark that starts itself.
    #[must_use]
    pub fn started_as(mut self, program: PathBuf) -> Self {
        self.program = program;
        self
    }

    /// Keeps its maps in memory, from its next `configure`.
    pub fn keep_maps_in_memory(&mut self) {
        self.is_in_memory = true;
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Moves its pins and its state to new folders, from its next start.
    pub fn move_pins(&mut self, name: &str, more: &str) -> Result<(), BedError> {
        name.clone_into(&mut self.pins);
        self.configure(more)
    }

    /// Replaces `more` in its configuration, from its next start.
    pub fn configure(&self, more: &str) -> Result<(), BedError> {
        let path = |path: &Path| path.display().to_string();
        let kind = if self.is_in_memory { "kind = \"memory\"\n" } else { "" };
        let text = format!(
            "[datapath]\n{kind}cgroup = {:?}\nbpffs = \"/sys/fs/bpf/{}\"\n[admin]\nsocket = {:?}\n[manifests]\npath = {:?}\n\
             [state]\npath = {:?}\n{more}",
            path(&self.served),
            self.pins,
            path(&self.socket()),
            path(&self.manifests()),
            path(&self.state()),
        );
        fs::write(self.config(), text).map_err(at("write", &self.config()))
    }

    /// The folder with all of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of its snapshot and its history.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state").join(&self.pins)
    }

    /// The manifest folder that it watches.
    pub fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    /// Creates or replaces a manifest atomically.
    pub fn write_manifest(&self, name: &str, text: &str) -> Result<(), BedError> {
        let (new, path) = (self.manifests().join(format!(".{name}")), self.manifests().join(name));
        fs::write(&new, text).map_err(at("write", &new))?;
        fs::rename(&new, &path).map_err(at("rename into place", &path))
    }

    /// The path of its pins from outside the bed.
    pub fn pins(&self) -> PathBuf {
        self.bed.bpffs().join(&self.pins)
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    /// The path of its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Its log since the last start.
    pub fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Starts it without waiting.
    pub fn launch(&mut self) -> Result<(), BedError> {
        self.launch_by(&[])
    }

    /// Starts it through a wrapper program, for example one that drops privileges.
    pub fn launch_by(&mut self, wrapper: &[&str]) -> Result<(), BedError> {
        let log = File::create(self.log()).map_err(at("create", &self.log()))?;
        let both = log.try_clone().map_err(at("open", &self.log()))?;
        let mut command = self.run(wrapper)?;
        self.child = Some(spawn(command.stdin(Stdio::null()).stdout(log).stderr(both))?);
        Ok(())
    }

    fn run(&self, wrapper: &[&str]) -> Result<Command, BedError> {
        let config = self.config();
        let own = [self.program.as_os_str(), "run".as_ref(), "--config".as_ref(), config.as_os_str()];
        let mut words = wrapper.iter().map(OsStr::new).chain(own);
        let first = words.next().unwrap_or(self.program.as_os_str());
        let mut command = self.bed.command_at(self.place, &self.cgroup, first)?;
        command.args(words);
        Ok(command)
    }

    /// Starts it and waits until it is ready.
    pub fn start(&mut self) -> Result<(), BedError> {
        self.start_by(&[])
    }

    /// Starts it through a wrapper program and waits until it is ready.
    pub fn start_by(&mut self, wrapper: &[&str]) -> Result<(), BedError> {
        self.launch_by(wrapper)?;
        self.wait_until(|daemon| Ok(daemon.is_ready()))
    }

    /// Starts it where it must fail, and returns its exit code and output.
    pub fn start_and_fail(&self, wrapper: &[&str]) -> Result<(Option<i32>, String), BedError> {
        let output = finish(self.run(wrapper)?, ANSWER_LIMIT)?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Waits until a condition holds, while the daemon runs.
    pub fn wait_until(&mut self, holds: impl Fn(&Self) -> Result<bool, BedError>) -> Result<(), BedError> {
        let until = Instant::now() + READY_LIMIT;
        while !holds(self)? {
            if Instant::now() > until || !self.is_running() {
                return Err(self.unexpected());
            }
            thread::sleep(READY_POLL);
        }
        Ok(())
    }

    /// Whether its process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Whether it reports ready.
    pub fn is_ready(&self) -> bool {
        self.status().is_some_and(|status| status.get("ready") == Some(&true.into()))
    }

    /// Its `status`, healthy or not; `None` while it is unreachable.
    pub fn status(&self) -> Option<Value> {
        let output = finish(self.question(&["status", "-o", "json"]), ANSWER_LIMIT).ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The answer of its CLI as JSON; an empty table if the service does not exist.
    pub fn ask(&self, words: &[&str]) -> Result<Value, BedError> {
        let output = finish(self.question(&[words, &["-o", "json"]].concat()), ANSWER_LIMIT)?;
        let said = String::from_utf8_lossy(&[output.stdout.clone(), output.stderr].concat()).into_owned();
        let wrong = || BedError::Unexpected { who: "the daemon".to_owned(), said };
        match output.status.code() {
            // An answer that reports a problem is an answer.
            Some(0 | 1 | 4) => serde_json::from_slice(&output.stdout).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }

    /// The answer of its CLI as text, with or without findings.
    pub fn tell(&self, words: &[&str]) -> Result<String, BedError> {
        self.answer(words).map(|(_, said)| said)
    }

    /// The answer of its CLI as text, with the exit code.
    pub fn answer(&self, words: &[&str]) -> Result<(Option<i32>, String), BedError> {
        let output = finish(self.question(words), ANSWER_LIMIT)?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// The answer of its CLI as text, errors included, with the exit code.
    pub fn answer_whole(&self, words: &[&str]) -> Result<(Option<i32>, String), BedError> {
        let output = finish(self.question(words), ANSWER_LIMIT)?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
    }

    fn question(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--socket").arg(self.socket()).args(words);
        command
    }

    /// Runs `cleanup`, which removes its pins and programs from the kernel.
    pub fn cleanup(&self) -> Result<(), BedError> {
        let mut command = self.bed.command_in(&self.cgroup, &self.program);
        command.arg("cleanup").arg("--config").arg(self.config());
        succeed(command, ANSWER_LIMIT).map(drop)
    }

    /// Runs `cleanup` once no outside client uses it; `true` means that it was removed.
    pub fn drain(&self) -> Result<bool, BedError> {
        let mut command = self.bed.command_in(&self.cgroup, &self.program);
        command.args(["cleanup", "--drain", "--config"]).arg(self.config());
        let output = finish(command, ANSWER_LIMIT)?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(1) if output.stderr.is_empty() => Ok(false),
            _ => Err(BedError::Unexpected {
                who: "cleanup".to_owned(),
                said: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Result<(), BedError> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill().and_then(|()| child.wait()).map(drop).map_err(at("kill", &self.program))
    }

    /// Stops it with SIGTERM, as systemd does.
    pub fn stop(&mut self) -> Result<(), BedError> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = Pid::from_raw(child.id().try_into().unwrap_or_default());
        let ended = kill(pid, Signal::SIGTERM).map_err(std::io::Error::from);
        let ended = ended.and_then(|()| wait(&mut child, STOP_LIMIT)).map_err(at("stop", &self.program))?;
        match ended {
            Some(status) if status.success() => Ok(()),
            ended => Err(self.unexpected_after(ended)),
        }
    }

    fn unexpected(&mut self) -> BedError {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        self.unexpected_after(ended)
    }

    /// An error with its last log lines, and its exit status if it ended.
    fn unexpected_after(&self, ended: Option<ExitStatus>) -> BedError {
        let mut lines: Vec<String> =
            self.logged().lines().rev().take(LINES_TOLD).map(str::to_owned).collect();
        lines.reverse();
        lines.extend(ended.map(|status| format!("it ended: {status}")));
        let said = lines.join("\n");
        BedError::Unexpected { who: "the daemon".to_owned(), said }
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The daemon's program, which cargo builds next to this one.
fn program() -> Result<PathBuf, BedError> {
    let near = this_program()?;
    let folders = near.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("holdfast")).find(|path| path.is_file());
    found.ok_or(BedError::NoDaemon { near })
}
