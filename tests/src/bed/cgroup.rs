//! The cgroups of a bed: one top that is removed as a whole, with the node's cgroup and an outside one below it.
//!
//! Invariant: the name of a top contains its process, so that a later bed finds the leftovers of dead processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_remains::{is_left_over, new_name, remove_cgroup};

use super::{BedError, Location, at};

const PREFIX: &str = "holdfast-bed-";

/// The suite names the cgroup of a slow run here. Outside of it a bed would have all processors.
const SLOW_CGROUP: &str = "HOLDFAST_TEST_CGROUP";

/// A killed process leaves its cgroup within milliseconds, on a busy machine within a second.
const EMPTY_WAIT: Duration = Duration::from_secs(10);

/// The cgroups of one bed.
#[derive(Debug)]
pub(super) struct Tree {
    top: PathBuf,
    node: PathBuf,
    outside: PathBuf,
}

impl Tree {
    /// Removes leftovers of dead processes, then creates the cgroups.
    pub(super) fn create() -> Result<Self, BedError> {
        let folder = std::env::var_os(SLOW_CGROUP).map_or_else(mount_point, |path| Ok(path.into()))?;
        sweep(&folder)?;
        let top = folder.join(new_name(PREFIX));
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

    pub(super) fn folder(&self, location: Location<'_>) -> &Path {
        if location.inside { &self.node } else { &self.outside }
    }
}

/// `drop` cannot report a failure; the keeper and the next bed try again.
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

/// Removes the cgroups of dead processes.
fn sweep(mount: &Path) -> Result<(), BedError> {
    for entry in fs::read_dir(mount).map_err(at("read", mount))?.filter_map(Result::ok) {
        if is_left_over(PREFIX, &entry.file_name().to_string_lossy()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Kills the processes of a cgroup and removes it with its children. A missing cgroup is no error.
pub(super) fn remove(top: &Path) -> Result<(), BedError> {
    remove_cgroup(top, EMPTY_WAIT).map_err(at("remove", top))
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
}
