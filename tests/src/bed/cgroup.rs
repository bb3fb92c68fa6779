//! The cgroups of a bed: one top that is removed whole, the node below it, and a place beside the node.
//!
//! Invariant: a top's name holds the process that made it and when that process began, so that what a dead process left
//! is told from what a living one uses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{BedError, Location, at};

const PREFIX: &str = "holdfast-bed-";

/// A killed process leaves its cgroup within milliseconds; on a busy machine within a second.
const EMPTY_WAIT: Duration = Duration::from_secs(10);

const EMPTY_POLL: Duration = Duration::from_millis(5);

static BEDS: AtomicU32 = AtomicU32::new(0);

/// The cgroups of one bed.
#[derive(Debug)]
pub(super) struct Tree {
    top: PathBuf,
    node: PathBuf,
    outside: PathBuf,
}

impl Tree {
    /// Makes the cgroups, after what dead processes left was removed.
    pub(super) fn create() -> Result<Self, BedError> {
        let mount = mount_point()?;
        sweep(&mount)?;
        let pid = std::process::id();
        let began = began(pid).unwrap_or_default();
        let top = mount.join(format!("{PREFIX}{pid}-{began}-{}", BEDS.fetch_add(1, Ordering::Relaxed)));
        let tree = Self { node: top.join("node"), outside: top.join("outside"), top };
        for path in [&tree.node, &tree.outside] {
            fs::create_dir_all(path).map_err(at("create", path))?;
        }
        Ok(tree)
    }

    pub(super) fn top(&self) -> &Path {
        &self.top
    }

    pub(super) fn node(&self) -> &Path {
        &self.node
    }

    pub(super) fn of(&self, location: Location<'_>) -> &Path {
        if location.inside { &self.node } else { &self.outside }
    }
}

/// Dropping tells nobody of a failure; the keeper and the next bed try again.
impl Drop for Tree {
    fn drop(&mut self) {
        let _ = remove(&self.top);
    }
}

/// Where cgroup2 is mounted: `/sys/fs/cgroup`, or below it on hybrid machines.
pub(crate) fn mount_point() -> Result<PathBuf, BedError> {
    let path = Path::new("/proc/self/mountinfo");
    let mounts = fs::read_to_string(path).map_err(at("read", path))?;
    mounts.lines().find_map(cgroup2).map(PathBuf::from).ok_or(BedError::NoCgroup2)
}

/// The mount point in a line of mountinfo, if a cgroup2 is there.
fn cgroup2(line: &str) -> Option<&str> {
    let (mount, kind) = line.split_once(" - ")?;
    kind.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4)).flatten()
}

/// Removes what processes left that are no more.
fn sweep(mount: &Path) -> Result<(), BedError> {
    for entry in fs::read_dir(mount).map_err(at("read", mount))?.filter_map(Result::ok) {
        if is_left_over(&entry.file_name().to_string_lossy()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn is_left_over(name: &str) -> bool {
    let Some(maker) = name.strip_prefix(PREFIX) else { return false };
    let mut parts = maker.split('-').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(since))) = (parts.next(), parts.next()) else { return false };
    u32::try_from(pid).map(began) != Ok(Some(since))
}

/// When a process began, in ticks since boot; nothing when there is none.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Kills what runs in a cgroup and removes it with all below. One that is gone is fine.
pub(super) fn remove(top: &Path) -> Result<(), BedError> {
    let until = Instant::now() + EMPTY_WAIT;
    loop {
        kill_all(top);
        match remove_folders(top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < until => thread::sleep(EMPTY_POLL),
            other => return other.map_err(at("remove", top)),
        }
    }
}

fn remove_folders(folder: &Path) -> io::Result<()> {
    for child in children(folder)? {
        remove_folders(&child)?;
    }
    fs::remove_dir(folder)
}

fn children(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.filter_map(Result::ok);
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.map(|entry| entry.path()).collect())
}

/// One by one: `cgroup.kill` came with 5.14 only. What starts meanwhile is met by the next round.
fn kill_all(folder: &Path) {
    let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    children(folder).unwrap_or_default().iter().for_each(|child| kill_all(child));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_by_its_kind() {
        let hybrid = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        assert_eq!(cgroup2(hybrid), Some("/sys/fs/cgroup/unified"));
        assert_eq!(
            cgroup2("25 23 0:22 / /sys/fs/cgroup rw shared:9 - cgroup2 none rw"),
            Some("/sys/fs/cgroup")
        );
        assert_eq!(cgroup2("40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd"), None);
    }

    #[test]
    fn only_a_dead_makers_cgroup_is_left_over() {
        let pid = std::process::id();
        let mine = began(pid).unwrap();
        assert!(!is_left_over(&format!("{PREFIX}{pid}-{mine}-0")));
        assert!(is_left_over(&format!("{PREFIX}{pid}-{}-0", mine + 1)), "the pid was given again");
        assert!(is_left_over(&format!("{PREFIX}4194305-1-0")), "no such process");
        assert!(!is_left_over("system.slice") && !is_left_over("holdfast-bed-x"));
    }
}
