//! Reads files on a thread that may block.
//!
//! Invariant: every wait for a read ends, and a timeout names the file. A thread that hangs in a file system cannot
//! be ended, so the task keeps it and polls it again instead of starting another.

use std::sync::mpsc;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};

use super::files::{CurrentFile, FileReader, FileSnapshot};
use super::{FileContents, GatherError, Locations, gather_into};

/// The time limit for reading all files: a hanging network file system must not hang the daemon.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The contents of the files, and the snapshots of all that were read.
pub(super) type ReadOutcome = (Result<FileContents, GatherError>, Vec<FileSnapshot>);

#[derive(Debug)]
pub(super) struct ReadTask {
    // Returns `None` if no file changed, so nothing was read.
    task: JoinHandle<Option<ReadOutcome>>,
    current: CurrentFile,
}

impl ReadTask {
    /// Begins a read. Files unchanged since they were `seen` are read only if `must`.
    pub(super) fn begin(locations: &Locations, seen: Vec<FileSnapshot>, must: bool) -> Self {
        let locations = locations.clone();
        let current = CurrentFile::default();
        let files = FileReader::new(locations.author, current.clone());
        let task = tokio::task::spawn_blocking(move || {
            (must || files.have_changed(&seen)).then(|| gather(&locations, files))
        });
        Self { task, current }
    }

    /// The result of the read, if it ends in time.
    pub(super) async fn wait_for_outcome(
        &mut self,
        patience: Duration,
    ) -> Option<Result<Option<ReadOutcome>, JoinError>> {
        tokio::time::timeout(patience, &mut self.task).await.ok()
    }

    /// Names the file on which the read hangs.
    pub(super) fn describe_hang(&self) -> String {
        format!("{}: cannot be read in time; does its file system hang?", self.current.path().display())
    }
}

/// Reads every named file, and returns their snapshots too.
fn gather(locations: &Locations, mut files: FileReader) -> ReadOutcome {
    let gathered = gather_into(locations, &mut files);
    (gathered, files.into_snapshots())
}

/// Reads every file before a runtime exists; `None` after a timeout.
pub(super) fn gather_within_timeout(locations: &Locations) -> Option<Result<FileContents, GatherError>> {
    let (outcome, received) = mpsc::sync_channel(1);
    let locations = locations.clone();
    let work = move || {
        // After a timeout the receiver is gone.
        let files = FileReader::new(locations.author, CurrentFile::default());
        let _ = outcome.send(gather(&locations, files).0);
    };
    std::thread::Builder::new().name("files".to_owned()).spawn(work).ok()?;
    received.recv_timeout(READ_TIMEOUT).ok()
}
