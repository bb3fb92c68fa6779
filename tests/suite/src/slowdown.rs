//! A slower machine: a run with a share of the processors, or beside processes that take them.
//!
//! Invariant: all processes of a slow run have the share together, also those in cgroups that tests make. It ends with
//! the run, or with this program.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};

use holdfast_remains::{is_left_over, new_name};

use crate::error::{SuiteError, at};

/// Tells tests where their cgroups lie: below the cgroup of a slow run.
pub(crate) const CGROUP: &str = "HOLDFAST_TEST_CGROUP";

/// The names of these cgroups begin with it.
const PREFIX: &str = "holdfast-slow-";

/// The microseconds in which a share of the processors is used up and renewed.
const PERIOD: u32 = 100_000;

/// How much slower the machine is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slowdown {
    /// The processors give one part in so many.
    pub(crate) slow: u32,
    /// The number of busy loops beside the run.
    pub(crate) busy: u32,
}

impl Slowdown {
    pub(crate) const NONE: Self = Self { slow: 1, busy: 0 };

    /// By how much the limits of tests grow.
    pub(crate) fn factor(self, processors: u32) -> u32 {
        self.slow.max(1) * (1 + self.busy.div_ceil(processors.max(1)))
    }

    /// The name under which a run is recorded. `None`: it is not.
    pub(crate) fn row_name(self, run: &str) -> Option<String> {
        if self == Self::NONE {
            return Some(run.to_owned());
        }
        (self.busy == 0).then(|| slow_row(run))
    }

    /// Slows this program and all that it starts, as long as `during` takes.
    pub(crate) fn beside<T>(
        self,
        during: impl FnOnce(Option<&Path>) -> Result<T, SuiteError>,
    ) -> Result<T, SuiteError> {
        let share = (self.slow > 1).then(|| Share::enter(self.slow)).transpose()?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            self.spawn_loops(scope, &is_over);
            let done = during(share.as_ref().and_then(|share| share.beds.as_deref()));
            is_over.store(true, Ordering::Relaxed);
            done
        })
    }

    fn spawn_loops<'scope>(self, scope: &'scope Scope<'scope, '_>, is_over: &'scope AtomicBool) {
        for _ in 0..self.busy {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
    }
}

/// The names of rows of slow runs begin with it.
const SLOW: &str = "slow ";

/// The name of a slow run's row.
pub(crate) fn slow_row(run: &str) -> String {
    format!("{SLOW}{run}")
}

/// The run of a row, which may be a slow one.
pub(crate) fn run_of_row(row: &str) -> &str {
    row.strip_prefix(SLOW).unwrap_or(row)
}

/// The number of processors.
pub(crate) fn count_processors() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

/// The cgroup with a share of the processors.
struct Share {
    cgroup: PathBuf,
    /// Where the cgroups of tests lie, if they have to lie below this one.
    beds: Option<PathBuf>,
    /// The file that takes this program back.
    former: PathBuf,
}

impl Share {
    fn enter(slow: u32) -> Result<Self, SuiteError> {
        let mounts = read(Path::new("/proc/self/mountinfo"))?;
        let (mount, is_unified) = find_controller(&mounts).ok_or(SuiteError::NoProcessorCgroups)?;
        sweep(mount);
        let cgroup = mount.join(new_name(PREFIX));
        fs::create_dir(&cgroup).map_err(at("create", &cgroup))?;
        let beds = is_unified.then(|| cgroup.clone());
        let share = Self { cgroup, beds, former: mount.join("cgroup.procs") };
        let quota = PERIOD * count_processors() / slow;
        if is_unified {
            share.write("cpu.max", &format!("{quota} {PERIOD}"))?;
        } else {
            share.write("cpu.cfs_period_us", &PERIOD.to_string())?;
            share.write("cpu.cfs_quota_us", &quota.to_string())?;
        }
        share.write("cgroup.procs", &std::process::id().to_string())?;
        Ok(share)
    }

    fn write(&self, file: &str, value: &str) -> Result<(), SuiteError> {
        let path = self.cgroup.join(file);
        fs::write(&path, value).map_err(at("write", &path))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = fs::write(&self.former, std::process::id().to_string());
        let _ = fs::remove_dir(&self.cgroup);
    }
}

/// The hierarchy with the controller of processors, and whether it is the unified one, which has the cgroups of tests.
fn find_controller(mounts: &str) -> Option<(&Path, bool)> {
    let mut all = mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        Some((Path::new(mount.split(' ').nth(4)?), kind))
    });
    let is_v1 = |kind: &str| {
        kind.starts_with("cgroup ")
            && kind.rsplit(' ').next().is_some_and(|it| it.split(',').any(|it| it == "cpu"))
    };
    all.clone()
        .find_map(|(mount, kind)| is_v1(kind).then_some((mount, false)))
        .or_else(|| all.find_map(|(mount, kind)| kind.starts_with("cgroup2 ").then_some((mount, true))))
}

/// Removes the cgroups of runs that were killed.
fn sweep(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        if is_left_over(PREFIX, &entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn read(path: &Path) -> Result<String, SuiteError> {
    fs::read_to_string(path).map_err(at("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_the_slowdown() {
        let factors = [(1, 0), (4, 0), (1, 8), (4, 8)].map(|(slow, busy)| Slowdown { slow, busy }.factor(2));
        assert_eq!(factors, [1, 4, 5, 20]);
    }

    #[test]
    fn the_controller_is_found_in_either_hierarchy() {
        let unified = "25 23 0:22 / /sys/fs/cgroup rw - cgroup2 none rw";
        let hybrid = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      30 29 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                      31 29 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu";
        assert_eq!(find_controller(unified), Some((Path::new("/sys/fs/cgroup"), true)));
        assert_eq!(find_controller(hybrid), Some((Path::new("/sys/fs/cgroup/cpu"), false)));
        assert_eq!(find_controller(""), None);
    }

    #[test]
    fn kernel_a_slow_run_gets_its_share_of_the_processors() {
        let throttled = Slowdown { slow: 4, busy: 0 }.beside(|_| {
            let groups = read(Path::new("/proc/self/cgroup"))?;
            Ok(groups.lines().any(|line| line.contains(PREFIX)))
        });
        assert!(throttled.unwrap());
        assert!(!read(Path::new("/proc/self/cgroup")).unwrap().contains(PREFIX));
    }

    #[test]
    fn busy_loops_end_with_the_run() {
        assert_eq!(Slowdown { slow: 1, busy: 3 }.beside(|_| Ok(7)).unwrap(), 7);
    }
}
