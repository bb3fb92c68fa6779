//! The resources of processes, as the kernel counts them.

use std::fs;
use std::time::Duration;

/// The private megabytes of a process.
pub(crate) fn private(pid: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let own = rollup.lines().filter(|line| line.starts_with("Private_"));
    own.map(|line| line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()).sum::<f64>() / 1024.0
}

/// The processes of a group with this word in their command line.
pub(crate) fn in_group(group: u32, word: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| group_of(*pid) == Some(group) && command_has(*pid, word)).collect()
}

fn group_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()
}

fn command_has(pid: u32, word: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| String::from_utf8_lossy(&text).contains(word))
}

/// The CPU time of a process's threads, or of those with one name.
pub(crate) fn cpu(pid: u32, name: Option<&str>) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let named = threads.filter(|thread| {
        let comm = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.is_none_or(|name| comm.trim() == name)
    });
    let run = named.filter_map(|thread| {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(run.sum())
}
