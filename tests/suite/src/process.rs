//! A process of a run: started in its own group, ended at its limit, with its CPU time and that of its children.
//!
//! Invariant: when `run` returns, the process has ended. When this program is interrupted, all processes end.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{SuiteError, at};
use crate::terminal;

/// Tells scripts that the test programs are built, so that none waits for cargo's lock while another one builds.
const BUILT: &str = "TEST_PROGRAMS_BUILT";

/// How often the end of a process is polled.
const POLL: Duration = Duration::from_millis(4);

/// How long a process may clean up between SIGTERM at its limit and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// How much of a failed process's output is shown.
const SHOWN_BYTES_MAX: u64 = 200_000;

/// The exit code of an interrupted run, as in shells.
const INTERRUPTED: i32 = 130;

/// The kernel counts CPU time in hundredths of a second, whatever its own tick is.
const TICKS_PER_SECOND: u64 = 100;

/// The running groups.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// The result of a process.
#[derive(Debug)]
pub(crate) struct ProcessResult {
    pub(crate) passed: bool,
    /// `exit status: 101`, `signal: 11 (SIGSEGV)`, `ended after 60 s`.
    pub(crate) how: String,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    log: PathBuf,
}

/// Ends all processes when this program receives a signal. It uses handlers, because tested processes would inherit a
/// signal mask.
pub(crate) fn end_all_on_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = {
        let _inside = runtime.enter();
        kinds.iter().map(|kind| signal(*kind)).collect::<Result<Vec<_>, _>>()?
    };
    thread::spawn(move || {
        runtime.block_on(async {
            let [first, second, third] = signals.as_mut_slice() else { return };
            tokio::select! { _ = first.recv() => {} _ = second.recv() => {} _ = third.recv() => {} }
        });
        for group in running().iter() {
            let _ = killpg(Pid::from_raw(*group), Signal::SIGTERM);
        }
        terminal::end_progress();
        std::process::exit(INTERRUPTED);
    });
    Ok(())
}

fn running() -> std::sync::MutexGuard<'static, BTreeSet<i32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command until it ends or reaches its limit.
pub(crate) fn run(command: &mut Command, limit: Duration, log: &Path) -> Result<ProcessResult, SuiteError> {
    Ok(start(command, log)?.finish(limit))
}

/// A running process.
#[derive(Debug)]
pub(crate) struct RunningProcess {
    child: Child,
    begun: Instant,
    log: PathBuf,
}

pub(crate) fn start(command: &mut Command, log: &Path) -> Result<RunningProcess, SuiteError> {
    let file = File::create(log).map_err(at("create", log))?;
    let both = file.try_clone().map_err(at("open", log))?;
    let program = command.get_program().to_string_lossy().into_owned();
    let begun = Instant::now();
    command.env(BUILT, "1").stdin(Stdio::null()).stdout(file).stderr(both).process_group(0);
    let child = command.spawn().map_err(|source| SuiteError::Start { program, source })?;
    let started = RunningProcess { child, begun, log: log.to_owned() };
    running().insert(started.group());
    Ok(started)
}

impl RunningProcess {
    /// The id of its group, which equals its process id.
    pub(crate) fn group(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for its end, or ends it at the limit.
    pub(crate) fn finish(mut self, limit: Duration) -> ProcessResult {
        let pid = self.group();
        let is_late = !wait_until(pid, self.begun + limit);
        if is_late {
            end(pid);
        }
        let cpu = cpu_time(pid);
        let status = self.child.wait().unwrap_or_else(|_| ExitStatus::from_raw(1 << 8));
        running().remove(&pid);
        let how = if is_late { format!("ended after {} s", limit.as_secs()) } else { status.to_string() };
        let passed = status.success() && !is_late;
        ProcessResult { passed, how, wall: self.begun.elapsed(), cpu, log: self.log }
    }
}

/// Whether a process ends in time. It stays a zombie, so that its CPU time can be read.
fn wait_until(pid: i32, end: Instant) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    while let Ok(WaitStatus::StillAlive) = waitid(Id::Pid(Pid::from_raw(pid)), flags) {
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// Ends a slow group: SIGTERM first, because some clean up, then SIGKILL.
fn end(pid: i32) {
    let group = Pid::from_raw(pid);
    let _ = killpg(group, Signal::SIGTERM);
    wait_until(pid, Instant::now() + GRACE);
    let _ = killpg(group, Signal::SIGKILL);
    wait_until(pid, Instant::now() + GRACE);
}

/// The CPU time of an ended process, with its children that ended before it.
fn cpu_time(pid: i32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything; the four times are the twelfth to fifteenth field after it.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

impl ProcessResult {
    /// The end of its output.
    pub(crate) fn output(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_BYTES_MAX)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_or_else(|error| error.to_string(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(script: &str, limit: Duration) -> ProcessResult {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.keep().join("log");
        run(Command::new("sh").args(["-c", script]), limit, &log).unwrap()
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_processs_output_and_exit_are_returned() {
        let well = ended("echo out; echo err >&2", LONG);
        assert!(well.passed);
        assert_eq!(well.output(), "out\nerr\n");
        let badly = ended("echo so; exit 3", LONG);
        assert_eq!((badly.passed, badly.how.as_str()), (false, "exit status: 3"));
    }

    #[test]
    fn a_process_past_its_limit_is_ended_with_its_children() {
        let late = ended("trap 'echo term; exit 0' TERM; sleep 600 & wait", Duration::from_millis(200));
        assert_eq!((late.passed, late.how.as_str()), (false, "ended after 0 s"));
        assert_eq!(late.output(), "term\n");
    }

    #[test]
    fn a_tested_process_has_no_signal_blocked() {
        end_all_on_signals().unwrap();
        let status = ended("grep SigBlk /proc/self/status", LONG);
        assert_eq!(status.output(), "SigBlk:\t0000000000000000\n");
    }

    #[test]
    fn cpu_time_is_that_of_the_process_and_its_children() {
        let busy = ended("i=0; sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done'; true", LONG);
        assert!(busy.cpu > Duration::ZERO, "{busy:?}");
        assert_eq!(ended("true", LONG).cpu.as_secs(), 0);
    }
}
