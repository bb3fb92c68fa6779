//! Names clusters, and removes what clusters of dead processes left behind.
//!
//! Invariant: clusters of living processes stay; a cluster's name contains its process id.

use std::fs;
use std::path::Path;
use std::process::Command;

use holdfast_remains::is_left_over;

use crate::ClusterError;
use crate::cgroups::Cgroups;
use crate::program::said;

const PREFIX: &str = "holdfast-cluster-";

/// The folder of `ip netns`.
const NETWORKS: &str = "/run/netns";

/// A unique cluster name.
pub(crate) fn new_name() -> String {
    holdfast_remains::new_name(PREFIX)
}

/// Removes leftovers of dead processes: processes, cgroups, networks, folders.
pub(crate) fn sweep(cgroups: &Cgroups, folder: &Path) -> Result<(), ClusterError> {
    for name in cgroups.names().into_iter().filter(|name| is_left_over(PREFIX, name)) {
        cgroups.remove(&name)?;
    }
    for network in names_in(Path::new(NETWORKS)).iter().filter(|name| is_left_over(PREFIX, name)) {
        // Another process may be removing this network as well.
        let _ = remove_network(network);
    }
    for name in names_in(folder).iter().filter(|name| is_left_over(PREFIX, name)) {
        crate::cluster::keep_logs(&folder.join(name));
    }
    Ok(())
}

/// Removes all networks of one cluster.
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
