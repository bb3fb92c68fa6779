//! The end of a cgroup and of everything below it.
//!
//! Invariant: nothing above or beside the folder is touched, and no wait is longer than the caller said.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const POLL: Duration = Duration::from_millis(5);

/// Kills what runs in a cgroup and removes it with all below, within the limit. One that is gone is fine.
pub fn remove_cgroup(top: &Path, limit: Duration) -> io::Result<()> {
    let until = Instant::now() + limit;
    loop {
        kill_all(top);
        match remove_folders(top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < until => thread::sleep(POLL),
            other => return other,
        }
    }
}

/// The cgroups right below one; files are none.
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

/// One by one: v1 has no other way, and `cgroup.kill` came with 5.14 only. The next round meets what starts meanwhile.
fn kill_all(folder: &Path) {
    let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    folders_in(folder).unwrap_or_default().iter().for_each(|child| kill_all(child));
}
