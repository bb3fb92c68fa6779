//! The memory and processor time of a measured process, from the kernel.

use std::fs;
use std::time::Duration;

use holdfast_tests::memory;

/// The processor time of all threads of a process.
pub(super) fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = tasks.filter_map(|task| {
        // An ended thread takes its time with it; the daemon's working threads do not end.
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Bytes that a process has written to disks.
pub(super) fn written(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap()
}

/// Resets the peak of memory use.
pub(super) fn forget_most(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

/// Resident megabytes, now and at the peak.
pub(super) fn megabytes(pid: u32) -> (f64, f64) {
    (memory::resident(pid).unwrap(), memory::most(pid).unwrap())
}
