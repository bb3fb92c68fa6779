//! That one daemon uses the folder: two would write over each other's table and records.
//!
//! Invariant: the claim ends with the process, however it ends. Deliberately absent: a claim on a folder that cannot be
//! written to; nobody can spoil that one, and the daemon serves without it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The name of the file that is locked.
const FILE: &str = "lock";

/// Only root reads what is in the folder.
const MODE: u32 = 0o600;

/// How often it is tried again.
const POLL: Duration = Duration::from_millis(50);

/// Somebody else uses the folder.
#[derive(Debug, thiserror::Error)]
#[error("another holdfast uses {}; stop it, or set another `path` under [state]", .0.display())]
pub struct Taken(PathBuf);

/// The right to use the folder, as long as this lives.
#[derive(Debug)]
pub struct Claim {
    _lock: Option<Flock<File>>,
}

/// Takes the folder. A process that was killed keeps it until it is gone, so it is waited for.
pub(super) fn claim(folder: &Path, patience: Duration) -> Result<Claim, Taken> {
    let mut file = match open(folder) {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "nothing can be kept here over a restart");
            return Ok(Claim { _lock: None });
        }
    };
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Claim { _lock: Some(lock) }),
            Err((file, Errno::EWOULDBLOCK)) if begun.elapsed() < patience => file,
            Err((_, Errno::EWOULDBLOCK)) => return Err(Taken(folder.to_owned())),
            Err((_, error)) => {
                tracing::warn!(folder = %folder.display(), %error, "it is not known whether another holdfast uses this");
                return Ok(Claim { _lock: None });
            }
        };
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!(folder = %folder.display(), "another holdfast uses this; its end is waited for");
        }
        std::thread::sleep(POLL);
    }
}

fn open(folder: &Path) -> std::io::Result<File> {
    fs::create_dir_all(folder)?;
    OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    #[test]
    fn two_daemons_do_not_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let first = claim(&path, SOON).unwrap();
        let refused = claim(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(refused.starts_with("another holdfast uses ") && refused.contains("[state]"), "{refused}");
        let waiting = std::thread::spawn(move || claim(&path, Duration::from_secs(20)).map(drop));
        std::thread::sleep(SOON);
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.join().unwrap().is_ok(), "who waits gets it");
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(claim(&path.join("state"), SOON).is_ok());
    }
}
