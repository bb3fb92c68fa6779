//! The processes that hold sockets open, by /proc.
//!
//! Invariant: bounded in processes and descriptors. A process that the daemon may not read has no name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Processes and open files that are searched for the owner of a socket.
const PROCESSES_MAX: usize = 8_192;
const DESCRIPTORS_MAX: usize = 262_144;

/// A process, with its name for people: a tenant may choose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOwner {
    pub pid: u32,
    pub name: String,
}

impl SocketOwner {
    /// Whether it is this daemon.
    pub fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }
}

/// The process that holds each socket open, with its name. It searches this daemon first.
pub fn find_owners(proc: &Path, wanted: &BTreeSet<u32>) -> BTreeMap<u32, SocketOwner> {
    let own = std::process::id();
    let listed = fs::read_dir(proc).into_iter().flatten().take(PROCESSES_MAX).filter_map(Result::ok);
    let others =
        listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid != own);
    let mut found = BTreeMap::new();
    let mut left = DESCRIPTORS_MAX;
    for pid in std::iter::once(own).chain(others) {
        let sockets = open_sockets(&proc.join(pid.to_string()), wanted, &mut left);
        if !sockets.is_empty() {
            let name = fs::read_to_string(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
            let name = name.trim().replace(char::is_control, "?");
            let owner = SocketOwner { pid, name };
            sockets.into_iter().for_each(|inode| _ = found.entry(inode).or_insert_with(|| owner.clone()));
        }
        if left == 0 || found.len() == wanted.len() {
            break;
        }
    }
    found
}

fn open_sockets(process: &Path, wanted: &BTreeSet<u32>, left: &mut usize) -> Vec<u32> {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().filter_map(Result::ok).take(*left);
    let mut searched = 0;
    let found = open
        .inspect(|_| searched += 1)
        .filter_map(|it| parse_inode(fs::read_link(it.path()).ok()?.to_str()?));
    let found = found.filter(|inode| wanted.contains(inode)).collect();
    *left -= searched;
    found
}

/// The inode of a link such as `socket:[4711]`.
fn parse_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_no_socket_has_no_inode() {
        assert_eq!(
            (parse_inode("socket:[12]"), parse_inode("pipe:[12]"), parse_inode("socket:[x]")),
            (Some(12), None, None)
        );
    }

    #[test]
    fn a_process_that_may_not_be_seen_has_no_name() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("7/fd")).unwrap();
        std::os::unix::fs::symlink("socket:[5]", proc.path().join("7/fd/3")).unwrap();
        fs::write(proc.path().join("7/comm"), "evil\x1b[31m\n").unwrap();
        fs::create_dir_all(proc.path().join("8")).unwrap();
        let found = find_owners(proc.path(), &BTreeSet::from([5, 6]));
        assert_eq!(found, BTreeMap::from([(5, SocketOwner { pid: 7, name: "evil?[31m".to_owned() })]));
    }
}
