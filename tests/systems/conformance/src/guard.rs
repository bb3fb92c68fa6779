//! Runs a program in a child process, with a guard that cleans up.
//!
//! Invariant: when the guard has ended, by an interrupt too (SIGINT, SIGTERM, SIGHUP) or because the run was killed,
//! only logs are left of the run's clusters. If the guard itself is killed, the run ends with it, and the next start
//! cleans up.

use std::env;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, pause};
use nix::errno::Errno;
use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cgroups::Cgroups;
use crate::{Built, leftovers};

/// The variable with the process id of the run's guard.
const GUARD: &str = "HOLDFAST_CLUSTER_GUARD";

/// The run's processes end within seconds, once their cgroups are gone.
const END_LIMIT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(100);

/// Shells add this to the number of the signal that ended a process.
const SIGNALLED: u8 = 128;

/// Runs the work in a child, which is this program again, and cleans up after it.
pub fn guarded(work: impl FnOnce() -> ExitCode) -> ExitCode {
    if env::var(GUARD).is_ok_and(|guard| guard == parent_id().to_string()) {
        // Without it, only the end with the guard is lost.
        let _ = set_pdeathsig(Signal::SIGKILL);
        return work();
    }
    guard().unwrap_or_else(|error| {
        // If this cannot be written, there is no other place to report it.
        let _ = writeln!(io::stderr(), "the run cannot be guarded: {error}");
        ExitCode::FAILURE
    })
}

fn guard() -> io::Result<ExitCode> {
    let awaited = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD]);
    awaited.thread_block()?;
    // The run's orphans become children of this process, which must reap them.
    set_child_subreaper(true)?;
    let mut run = started()?;
    loop {
        let signal = awaited.wait()?;
        if signal != Signal::SIGCHLD {
            end(&mut run);
            clean();
            return Ok(ExitCode::from(SIGNALLED + number(signal as i32)));
        }
        if let Some(code) = reaped(Pid::from_raw(run.id().cast_signed())) {
            clean();
            return Ok(ExitCode::from(code));
        }
    }
}

/// A process group of its own: the terminal's interrupt is for the guard.
fn started() -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1)).env(GUARD, std::process::id().to_string());
    command.process_group(0).spawn()
}

/// Kills the run at once, because the guard cleans up.
fn end(run: &mut Child) {
    // It may have ended by itself.
    let _ = killpg(Pid::from_raw(run.id().cast_signed()), Signal::SIGKILL);
    let _ = run.wait();
}

/// Sweeps again after the end: a machine that was about to boot may appear after the first sweep.
fn clean() {
    let end = Deadline::after(END_LIMIT);
    while sweep() && !end.is_over() {
        pause(POLL);
    }
    sweep();
}

/// Whether a process is left that may start others.
fn sweep() -> bool {
    // The next sweep or the next start removes what remains.
    if let (Ok(cgroups), Ok(built)) = (Cgroups::find(), Built::find()) {
        let _ = leftovers::sweep(&cgroups, &built.folder.join("run"));
    }
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return false,
            Ok(WaitStatus::StillAlive) => return true,
            // One has ended; there may be more.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Reaps ended processes, and returns the run's exit code if it was among them.
fn reaped(run: Pid) -> Option<u8> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(_) => return None,
            Ok(ended) if ended.pid() == Some(run) => return code(ended),
            Ok(_) => {}
        }
    }
}

fn code(ended: WaitStatus) -> Option<u8> {
    match ended {
        WaitStatus::Exited(_, code) => Some(number(code)),
        WaitStatus::Signaled(_, signal, _) => Some(SIGNALLED + number(signal as i32)),
        _ => None,
    }
}

fn number(of: i32) -> u8 {
    u8::try_from(of).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_is_reported_as_in_a_shell() {
        let run = Pid::from_raw(1);
        assert_eq!(code(WaitStatus::Signaled(run, Signal::SIGKILL, false)), Some(137));
        assert_eq!(code(WaitStatus::Exited(run, 3)), Some(3));
        assert_eq!(code(WaitStatus::StillAlive), None);
    }
}
