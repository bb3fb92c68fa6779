//! A server of the cluster: a process with a log, which can be stopped, killed and restarted.
//!
//! Invariant: at most one process runs at a time, always with the same arguments, plus those that a test adds for one
//! start. A server that ends by itself is a finding and is not restarted.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_fixtures::clock::measure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Part, PeersError};
use crate::bed::{Bed, Location, wait};

/// The timeout of a stop; an apiserver ends within a few seconds, after its open requests.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How much of a log's end an error shows.
const LOG_BYTES: usize = 4096;

/// A server, running or not.
#[derive(Debug)]
pub(super) struct Server {
    part: Part,
    program: &'static str,
    arguments: Vec<String>,
    log: PathBuf,
    running: Mutex<Option<Child>>,
}

impl Server {
    pub(super) fn new(part: Part, program: &'static str, arguments: Vec<String>, folder: &Path) -> Self {
        let name = format!("{part:?}.log").replace(['(', ')'], "-");
        Self { part, program, arguments, log: folder.join(name), running: Mutex::new(None) }
    }

    pub(super) fn part(&self) -> Part {
        self.part
    }

    /// Starts it outside of the node's cgroup, as if on another machine.
    pub(super) fn start(&self, bed: &Bed, further: &[&str]) -> Result<(), PeersError> {
        let file = |source| PeersError::File { path: self.log.clone(), source };
        let log = File::options().create(true).append(true).open(&self.log).map_err(file)?;
        let mut command = bed.command(Location::OUTSIDE, path_of(self.program)?)?;
        command.args(&self.arguments).args(further).stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(file)?).stderr(log);
        *self.running() = Some(crate::bed::spawn(&mut command)?);
        Ok(())
    }

    /// Its process id, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(Child::id)
    }

    /// Sends SIGTERM; the server finishes its open requests first.
    pub(super) fn ask_to_end(&self) -> Result<(), PeersError> {
        match self.running().as_ref() {
            Some(child) => self.signal(child, Signal::SIGTERM),
            None => Err(PeersError::NoPart(self.part)),
        }
    }

    pub(super) fn stop(&self) -> Result<Duration, PeersError> {
        let (time, ended) = measure(|| self.end(Signal::SIGTERM));
        ended.map(|()| time)
    }

    pub(super) fn kill(&self) -> Result<(), PeersError> {
        self.end(Signal::SIGKILL)
    }

    fn end(&self, signal: Signal) -> Result<(), PeersError> {
        let Some(mut child) = self.running().take() else { return Err(PeersError::NoPart(self.part)) };
        self.signal(&child, signal)?;
        let status = wait(&mut child, STOP_LIMIT);
        let status = status.map_err(|source| PeersError::Signal { part: self.part, source })?;
        let late = || PeersError::Late { what: format!("end of {:?}", self.part), limit: STOP_LIMIT };
        status.map(drop).ok_or_else(late)
    }

    fn signal(&self, child: &Child, signal: Signal) -> Result<(), PeersError> {
        let pid = i32::try_from(child.id()).map_err(io::Error::other);
        let sent = pid.and_then(|pid| kill(Pid::from_raw(pid), signal).map_err(io::Error::from));
        sent.map_err(|source| PeersError::Signal { part: self.part, source })
    }

    pub(super) fn runs(&self) -> bool {
        self.running().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// An error with the end of the log.
    pub(super) fn unready(&self, how: &'static str) -> PeersError {
        PeersError::Unready { part: self.part, how, said: self.log() }
    }

    /// The end of its log.
    fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let end = bytes.get(bytes.len().saturating_sub(LOG_BYTES)..).unwrap_or_default();
        String::from_utf8_lossy(end).into_owned()
    }

    /// Prints the end of the log.
    pub(super) fn show(&self) {
        let _ = writeln!(io::stderr(), "--- the log of {:?} ends with:\n{}", self.part, self.log());
    }

    fn running(&self) -> MutexGuard<'_, Option<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.running().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The folder `peers` is in the target folder, some levels above the test's program.
fn path_of(program: &str) -> Result<PathBuf, PeersError> {
    let near = std::env::current_exe()
        .map_err(|source| PeersError::File { path: PathBuf::from("/proc/self/exe"), source })?;
    let mut paths = near.ancestors().skip(1).map(|folder| folder.join("peers").join(program));
    let found = paths.find(|path| path.is_file());
    found.ok_or_else(|| PeersError::NotBuilt { program: program.to_owned(), near })
}
