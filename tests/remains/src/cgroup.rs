//! Removes a cgroup with everything below it.
//!
//! Invariant: nothing above or next to the folder is touched, and no wait exceeds the caller's limit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, pause};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const POLL: Duration = Duration::from_millis(5);

/// Kills the processes of a cgroup and removes it with its children, within the limit. A missing one is no error.
pub fn remove_cgroup(top: &Path, limit: Duration) -> io::Result<()> {
    let until = Deadline::after(limit);
    loop {
        kill_all(top);
        match remove_folders(top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if !until.is_over() => pause(POLL),
            other => return other,
        }
    }
}

/// The cgroups directly below one; files are skipped.
pub fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.filter_map(Result::ok);
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.map(|entry| entry.path()).collect())
}

fn remove_folders(folder: &Path) -> io::Result<()> {
    for child in folders_in(folder)? {
        remove_folders(&child)?;
    }
    fs::remove_dir(folder)
}

/// Kills the processes one by one: v1 has no other way, and `cgroup.kill` exists only since 5.14. The next round finds
/// new ones.
fn kill_all(folder: &Path) {
    let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    folders_in(folder).unwrap_or_default().iter().for_each(|child| kill_all(child));
}
