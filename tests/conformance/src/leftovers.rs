//! The name of a cluster, and what clusters left whose process is no more.
//!
//! Invariant: a name holds the process that made it and when that process began, so that what a dead one left is told
//! from what a living one uses.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ClusterError;
use crate::cgroups::Cgroups;
use crate::program::said;

const PREFIX: &str = "holdfast-cluster-";

/// Where `ip netns` keeps its names.
const NETWORKS: &str = "/run/netns";

static CLUSTERS: AtomicU32 = AtomicU32::new(0);

/// A name that no other cluster has.
pub(crate) fn new_name() -> String {
    let pid = std::process::id();
    let began = began(pid).unwrap_or_default();
    format!("{PREFIX}{pid}-{began}-{}", CLUSTERS.fetch_add(1, Ordering::Relaxed))
}

/// Removes what dead processes left: processes, cgroups, networks, folders.
pub(crate) fn sweep(cgroups: &Cgroups, folder: &Path) -> Result<(), ClusterError> {
    for name in cgroups.names().into_iter().filter(|name| is_left_over(name)) {
        cgroups.remove(&name)?;
    }
    for network in names_in(Path::new(NETWORKS)).iter().filter(|name| is_left_over(name)) {
        // Another start may be removing it as well.
        let _ = remove_network(network);
    }
    for name in names_in(folder).iter().filter(|name| is_left_over(name)) {
        crate::cluster::keep_logs(&folder.join(name));
    }
    Ok(())
}

/// Takes away all networks of one cluster.
pub(crate) fn remove_networks(cluster: &str) {
    for network in names_in(Path::new(NETWORKS)).iter().filter(|name| name.starts_with(cluster)) {
        let _ = remove_network(network);
    }
}

fn remove_network(name: &str) -> Result<String, ClusterError> {
    said(Command::new("ip").args(["netns", "del", name]), "")
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn is_left_over(name: &str) -> bool {
    let Some(maker) = name.strip_prefix(PREFIX) else { return false };
    let mut numbers = maker.split('-').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(since))) = (numbers.next(), numbers.next()) else { return false };
    u32::try_from(pid).map(began) != Ok(Some(since))
}

/// When a process began, in ticks since boot; nothing when there is none.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_process_made_is_left_over() {
        let (mine, pid) = (new_name(), std::process::id());
        assert!(!is_left_over(&mine), "{mine}");
        assert!(!is_left_over(&format!("{mine}-n1")), "a network of a living cluster");
        let again = format!("{PREFIX}{pid}-{}-0", began(pid).unwrap() + 1);
        assert!(is_left_over(&again), "the number was given again: {again}");
        assert!(is_left_over(&format!("{PREFIX}4194305-1-0-n1")), "no such process");
        assert!(!is_left_over("system.slice") && !is_left_over("holdfast-bed-4194305-1-0"));
        assert_ne!(mine, new_name());
    }
}
