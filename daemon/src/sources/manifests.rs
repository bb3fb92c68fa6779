//! A folder of Kubernetes manifests, watched.
//!
//! Invariant: what one look at the folder finds goes out as one group, at once; only what takes an object away
//! waits for the file that may have it now, so an object that moves from file to file is never gone in between. The
//! first group is the whole folder and ends with `Synced`. What cannot be read keeps its last good version.
//! Subfolders are not read.

mod held;
mod notice;
mod scan;
mod watching;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;

use watching::Watching;

/// One object per file, for more services than a node usually has.
const FILES_MAX: usize = 10_000;

/// How often every file is looked at, for changes without a notice (another host's write, a link's target); one `stat`
/// each.
const POLL: Duration = Duration::from_secs(3);

/// A file that rests for so long is complete, where no notice says it; longer than programs pause within one write.
const SETTLE: Duration = Duration::from_secs(1);

/// Files between which an object moves (`mv`, `cp *.yaml`, an unpacked archive) are written within so much
/// of each other.
const QUIET: Duration = Duration::from_millis(20);

/// In a folder that never rests an object that goes counts as gone after this.
const HELD_MAX: Duration = Duration::from_millis(200);

/// How long a look may take until it is logged: 10,000 files on a slow disk take a few seconds.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// How long the first list waits for files that are being written.
const START_WAIT_MAX: Duration = Duration::from_secs(10);

/// The folder cannot be read now. That may change.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; create the folder, or change `path` under [manifests]", folder.display())]
pub struct FolderError {
    pub folder: PathBuf,
    /// What the system said.
    pub reason: String,
}

/// A folder, whether it is there or not: it may come and go.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
}

impl Manifests {
    /// Nothing is read yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), snapshots: None }
    }

    /// Why the folder cannot be read now, if it cannot.
    pub fn check(folder: &Path) -> Result<(), FolderError> {
        scan::probe(folder).map_err(|reason| FolderError { folder: folder.to_owned(), reason })
    }

    /// Delivers everything once more when these snapshots ask for it.
    pub fn heeding(self, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { snapshots: Some(snapshots), ..self }
    }

    /// Sends what the folder says and every change of it, until `stop` says so or the engine takes no more events.
    pub async fn run(
        self,
        events: mpsc::Sender<Vec<Event>>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), JoinError> {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => Ok(()),
            ended = Watching::new(self.folder, self.snapshots).run(events) => ended,
        }
    }
}
