//! Limits on the memory and CPU time of a process.
//!
//! Invariant: a limit is a cgroup of its own, in the hierarchy that has the controller. Dropping the limit kills its
//! processes and removes the cgroup. On a host with v2 alone, root may first have to enable the controller for its
//! children, as for every container.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_remains::{is_left_over, new_name, remove_cgroup};

use super::{BedError, at, mount_point};

const PREFIX: &str = "holdfast-limit-";
const EMPTY_WAIT: Duration = Duration::from_secs(10);

/// The mount point of v1's controllers.
const V1: &str = "/sys/fs/cgroup";

/// One limit.
#[derive(Debug)]
pub struct Limit {
    folder: PathBuf,
    is_v2: bool,
}

impl Limit {
    /// Limits memory to this many bytes; the kernel kills a process that takes more.
    pub fn memory(bytes: u64) -> Result<Self, BedError> {
        let limit = Self::new("memory")?;
        let file = if limit.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        limit.write(file, &bytes.to_string())?;
        Ok(limit)
    }

    /// Limits CPU time to this many hundredths of a processor.
    pub fn cpu(hundredths: u32) -> Result<Self, BedError> {
        let limit = Self::new("cpu")?;
        let quota = (hundredths * 1_000).to_string();
        if limit.is_v2 {
            limit.write("cpu.max", &format!("{quota} 100000"))?;
        } else {
            limit.write("cpu.cfs_period_us", "100000")?;
            limit.write("cpu.cfs_quota_us", &quota)?;
        }
        Ok(limit)
    }

    fn new(controller: &str) -> Result<Self, BedError> {
        let v1 = Path::new(V1).join(controller);
        let is_v2 = !v1.is_dir();
        let mount = if is_v2 { mount_point()? } else { v1 };
        for left in fs::read_dir(&mount).map_err(at("read", &mount))?.filter_map(Result::ok) {
            if is_left_over(PREFIX, &left.file_name().to_string_lossy()) {
                remove_cgroup(&left.path(), EMPTY_WAIT).map_err(at("remove", &left.path()))?;
            }
        }
        if is_v2 {
            let control = mount.join("cgroup.subtree_control");
            fs::write(&control, format!("+{controller}")).map_err(at("write", &control))?;
        }
        let folder = mount.join(new_name(PREFIX));
        fs::create_dir(&folder).map_err(at("create", &folder))?;
        Ok(Self { folder, is_v2 })
    }

    fn write(&self, file: &str, text: &str) -> Result<(), BedError> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(at("write", &path))
    }

    /// Moves a running process into the limit.
    pub fn take(&self, pid: u32) -> Result<(), BedError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// How often the kernel killed a process for exceeding the limit.
    pub fn kills(&self) -> Result<u64, BedError> {
        let path = self.folder.join(if self.is_v2 { "memory.events" } else { "memory.oom_control" });
        let text = fs::read_to_string(&path).map_err(at("read", &path))?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        Ok(count.unwrap_or_default())
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = remove_cgroup(&self.folder, EMPTY_WAIT);
    }
}
