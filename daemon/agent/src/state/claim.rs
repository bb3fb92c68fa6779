//! Claims the folder for one daemon: two would overwrite each other's table and records.
//!
//! Invariant: the claim ends with the process, however it ends. A read-only folder is not claimed: no daemon can
//! spoil it, and this one serves without it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const FILE: &str = "lock";

/// Only root may read the folder's files.
const MODE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
#[error("another holdfast runs with the state in {}; stop it first{}", path.display(), holdfast_datapath::describe_process(*holder))]
pub struct StateInUse {
    path: PathBuf,
    /// The process of the other daemon, if the kernel reports it.
    pub holder: Option<u32>,
}

/// The claim on the folder, as long as this lives.
#[derive(Debug)]
pub struct Claim {
    _lock: Option<Flock<File>>,
}

/// Claims the folder, if no other daemon has it now.
pub(super) fn claim(folder: &Path) -> Result<Claim, StateInUse> {
    let file = match open_lock(folder) {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "cannot write to the state folder; a restart would lose the state");
            return Ok(Claim { _lock: None });
        }
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Claim { _lock: Some(lock) }),
        Err((file, Errno::EWOULDBLOCK)) => {
            Err(StateInUse { path: folder.to_owned(), holder: holdfast_datapath::lock_holder(&file) })
        }
        Err((_, error)) => {
            tracing::warn!(folder = %folder.display(), %error, "cannot lock the state folder; another holdfast may use it");
            Ok(Claim { _lock: None })
        }
    }
}

fn open_lock(folder: &Path) -> std::io::Result<File> {
    fs::create_dir_all(folder)?;
    OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_daemons_do_not_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let first = claim(&path).unwrap();
        let refused = claim(&path).unwrap_err().to_string();
        let (folder, own) = (path.display(), std::process::id());
        let expected =
            format!("another holdfast runs with the state in {folder}; stop it first (it is process {own})");
        assert_eq!(refused, expected);
        drop(first);
        assert!(claim(&path).is_ok());
    }

    #[test]
    fn a_read_only_folder_stops_no_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(claim(&path.join("state")).is_ok());
    }
}
