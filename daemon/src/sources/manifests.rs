//! A folder of Kubernetes manifests, watched.
//!
//! Invariant: what one look at the folder finds goes out as one group, at once; only a change that takes an object away
//! waits for the file that may have the object now, so an object that moves from file to file is never gone in between.
//! The first group is the whole folder and ends with `Synced`. What cannot be read keeps its last good version.
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

/// The most files that are read: with one object per file, more services than a node usually has.
const FILES_MAX: usize = 10_000;

/// How often every file is looked at, for changes without a notice (another host's write, a link's target); one `stat`
/// each.
const POLL: Duration = Duration::from_secs(3);

/// How long a file must rest to count as complete where no notice says so; longer than programs pause within one write.
const SETTLE: Duration = Duration::from_secs(1);

/// How far apart the files are written at most between which an object moves (`mv`, `cp *.yaml`, an unpacked archive).
const QUIET: Duration = Duration::from_millis(20);

/// How long an object that goes is held at most, in a folder that never rests; after that it counts as gone.
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
    /// The source for this folder; nothing is read yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), snapshots: None }
    }

    /// Why the folder cannot be read now, if it cannot.
    pub fn check(folder: &Path) -> Result<(), FolderError> {
        scan::probe(folder).map_err(|reason| FolderError { folder: folder.to_owned(), reason })
    }

    /// Makes the source deliver everything once more when these snapshots ask for it.
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
