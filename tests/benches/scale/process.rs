//! What the kernel says of a process that is measured: its memory, and the time of a processor that it has had.

use std::fs;
use std::time::Duration;

use holdfast_tests::memory;

/// The time of a processor that all threads of a process have had.
pub(super) fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = tasks.filter_map(|task| {
        // A thread that ends meanwhile takes its time with it; the daemon keeps those that work.
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Bytes that a process has had written to disks.
pub(super) fn written(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap()
}

/// Has the most memory counted anew from now on.
pub(super) fn forget_most(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

/// Megabytes that are resident now, and at most since.
pub(super) fn megabytes(pid: u32) -> (f64, f64) {
    (memory::resident(pid).unwrap(), memory::most(pid).unwrap())
}
