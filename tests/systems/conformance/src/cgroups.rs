//! The cgroups of a cluster: in each hierarchy one folder that is removed as a whole, with a folder for each machine.
//!
//! Invariant: nothing above the cluster's folder is written, except, with v2 alone, its children's controllers; every
//! container runtime does that too.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_remains::{folders_in, remove_cgroup};

use crate::ClusterError;
use crate::error::{at, write};

const MOUNT: &str = "/sys/fs/cgroup";

/// A killed process leaves its cgroup within milliseconds; all of three nodes on a busy machine within seconds.
const EMPTY_LIMIT: Duration = Duration::from_secs(30);

/// How this machine's cgroups are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One hierarchy, v2.
    Pure,
    /// v2 as `unified` next to v1 hierarchies, which have the controllers.
    Hybrid,
}

impl Layout {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Hybrid => "hybrid",
        }
    }
}

/// The hierarchies of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    pub(crate) layout: Layout,
    mounts: Vec<PathBuf>,
}

impl Cgroups {
    pub(crate) fn find() -> Result<Self, ClusterError> {
        let path = Path::new("/proc/self/mounts");
        let (layout, mounts) = mounted(&fs::read_to_string(path).map_err(at("read", path))?)?;
        Ok(Self { layout, mounts })
    }

    /// Only the v2 hierarchy, for tests.
    #[cfg(test)]
    pub(crate) fn only_v2(mut self) -> Self {
        self.mounts.retain(|mount| mount.join("cgroup.controllers").exists());
        self.layout = Layout::Pure;
        self
    }

    /// Creates the folders of one machine, or keeps existing ones.
    pub(crate) fn create(&self, cluster: &str, machine: &str) -> Result<(), ClusterError> {
        for mount in &self.mounts {
            let top = mount.join(cluster);
            for folder in [top.clone(), top.join(machine)] {
                self.delegate(mount, &folder)?;
                fs::create_dir_all(&folder).map_err(at("create", &folder))?;
                inherit(&folder)?;
            }
        }
        Ok(())
    }

    /// The folders of a machine, as its first process sees them.
    pub(crate) fn machine_folders(&self, cluster: &str, machine: &str) -> Vec<PathBuf> {
        self.mounts.iter().map(|mount| mount.join(cluster).join(machine)).collect()
    }

    /// The cgroups of a machine's processes; with v2 alone they are a leaf.
    pub(crate) fn process_folders(&self, cluster: &str, machine: &str) -> Vec<PathBuf> {
        let leaf = if self.layout == Layout::Pure { "init.scope" } else { "" };
        self.machine_folders(cluster, machine).into_iter().map(|folder| folder.join(leaf)).collect()
    }

    /// The names of the top folders of the hierarchies.
    pub(crate) fn names(&self) -> Vec<String> {
        let folders = self.mounts.iter().filter_map(|mount| folders_in(mount).ok()).flatten();
        folders.filter_map(|folder| Some(folder.file_name()?.to_string_lossy().into_owned())).collect()
    }

    /// Ends the processes below a folder of each hierarchy, and removes it. A missing one is no error.
    pub(crate) fn remove(&self, below: &str) -> Result<(), ClusterError> {
        self.mounts
            .iter()
            .map(|mount| mount.join(below))
            .try_for_each(|folder| remove_cgroup(&folder, EMPTY_LIMIT).map_err(at("remove", &folder)))
    }

    /// With v2 alone, enables the controllers of the parent for a folder.
    fn delegate(&self, mount: &Path, folder: &Path) -> Result<(), ClusterError> {
        let above = folder.parent().unwrap_or(mount);
        if self.layout == Layout::Hybrid {
            return Ok(());
        }
        let path = above.join("cgroup.controllers");
        let controllers = fs::read_to_string(&path).map_err(at("read", &path))?;
        let control = above.join("cgroup.subtree_control");
        let given = fs::read_to_string(&control).map_err(at("read", &control))?;
        let missing =
            controllers.split_whitespace().filter(|name| !given.split_whitespace().any(|n| n == *name));
        missing.into_iter().try_for_each(|name| write(&control, format!("+{name}")))
    }
}

/// The layout and its mounts, from the table of mounts.
fn mounted(table: &str) -> Result<(Layout, Vec<PathBuf>), ClusterError> {
    let rows = table.lines().map(|line| line.split(' ').skip(1).take(2).collect::<Vec<_>>());
    let all: Vec<(String, bool)> = rows
        .filter_map(|row| match row.as_slice() {
            [path, kind @ ("cgroup" | "cgroup2")] => Some(((*path).to_owned(), *kind == "cgroup2")),
            _ => None,
        })
        .collect();
    if all.iter().any(|(path, is_v2)| *is_v2 && path == MOUNT) {
        return Ok((Layout::Pure, vec![PathBuf::from(MOUNT)]));
    }
    let mounts: Vec<PathBuf> = all.iter().map(|(path, _)| PathBuf::from(path)).collect();
    let is_child = |path: &PathBuf| path.parent() == Some(Path::new(MOUNT));
    let unified = all.iter().any(|(path, is_v2)| *is_v2 && path == "/sys/fs/cgroup/unified");
    if unified && mounts.iter().all(is_child) {
        Ok((Layout::Hybrid, mounts))
    } else {
        Err(ClusterError::NoCgroups)
    }
}

/// In v1, a new cpuset is empty, and memory accounting excludes children by default.
fn inherit(folder: &Path) -> Result<(), ClusterError> {
    let Some(above) = folder.parent() else { return Ok(()) };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (own, from) = (folder.join(file), above.join(file));
        if folder.starts_with("/sys/fs/cgroup/cpuset") && own.exists() {
            write(&own, fs::read_to_string(&from).map_err(at("read", &from))?)?;
        }
    }
    let hierarchical = folder.join("memory.use_hierarchy");
    if hierarchical.exists() {
        // Writing it fails if it is set already.
        let _ = write(&hierarchical, "1");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_read_from_the_mounts() {
        let pure = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(mounted(pure).unwrap(), (Layout::Pure, vec![PathBuf::from(MOUNT)]));
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let (layout, mounts) = mounted(hybrid).unwrap();
        assert_eq!((layout, mounts.len()), (Layout::Hybrid, 2));
        let v1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        assert!(matches!(mounted(v1), Err(ClusterError::NoCgroups)));
    }

    #[test]
    fn with_v2_alone_processes_live_in_a_leaf() {
        let of = |layout| Cgroups { layout, mounts: vec![PathBuf::from("/c")] }.process_folders("x", "n1");
        assert_eq!(of(Layout::Pure), [PathBuf::from("/c/x/n1/init.scope")]);
        assert_eq!(of(Layout::Hybrid), [PathBuf::from("/c/x/n1/")]);
    }
}
