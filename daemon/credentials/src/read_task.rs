//! Looking at files on a thread that may block.
//!
//! Invariant: every wait for a reading ends, and then names the file that was being read. A thread that hangs in a file
//! system cannot be ended, so it is kept and asked again instead of being joined by another one.

use std::sync::mpsc;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};

use super::files::{CurrentFile, FileReader, FileSnapshot};
use super::{FileContents, GatherError, Locations, gather_into};

/// How long the reading of all files may take: a file on a network that hangs must not hang us.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// What the files say, and which they were.
pub(super) type ReadOutcome = (Result<FileContents, GatherError>, Vec<FileSnapshot>);

/// A look at the files that has begun.
#[derive(Debug)]
pub(super) struct ReadTask {
    // Gives `None` if no file has changed and so none was read.
    task: JoinHandle<Option<ReadOutcome>>,
    current: CurrentFile,
}

impl ReadTask {
    /// Begins a reading. Files that are as they were when they were `seen` are read only if they `must` be.
    pub(super) fn begin(locations: &Locations, seen: Vec<FileSnapshot>, must: bool) -> Self {
        let locations = locations.clone();
        let current = CurrentFile::default();
        let files = FileReader::new(locations.author, current.clone());
        let task = tokio::task::spawn_blocking(move || {
            (must || files.have_changed(&seen)).then(|| gather(&locations, files))
        });
        Self { task, current }
    }

    /// The result of the reading, if it ends in time.
    pub(super) async fn wait_for_outcome(
        &mut self,
        patience: Duration,
    ) -> Option<Result<Option<ReadOutcome>, JoinError>> {
        tokio::time::timeout(patience, &mut self.task).await.ok()
    }

    /// Names the file at which the reading hangs.
    pub(super) fn describe_hang(&self) -> String {
        format!("{}: cannot be read in time; does its file system hang?", self.current.path().display())
    }
}

/// Reads every file that is named, and tells which those were.
fn gather(locations: &Locations, mut files: FileReader) -> ReadOutcome {
    let gathered = gather_into(locations, &mut files);
    (gathered, files.into_snapshots())
}

/// Reads every file where there is no runtime yet; nothing if it takes too long.
pub(super) fn gather_within_timeout(locations: &Locations) -> Option<Result<FileContents, GatherError>> {
    let (read, told) = mpsc::sync_channel(1);
    let locations = locations.clone();
    let work = move || {
        // If it took too long, the receiver is gone.
        let files = FileReader::new(locations.author, CurrentFile::default());
        let _ = read.send(gather(&locations, files).0);
    };
    std::thread::Builder::new().name("files".to_owned()).spawn(work).ok()?;
    told.recv_timeout(READ_TIMEOUT).ok()
}
