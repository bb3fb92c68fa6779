//! Watches a folder of service files; the caller supplies their [`FileFormat`].
//!
//! Invariant: the findings of one scan go out at once as one group. Only a removal waits for the file that the object
//! may have moved to, so a moving object is never gone in between. The first group is the whole folder, and its last
//! news says so. An unreadable file keeps its last good version. Subfolders are not read.

mod folder_events;
mod held_scan;
mod scan;
mod watch_task;

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use holdfast_objects::manifests::FolderScan;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;

#[cfg(test)]
pub(super) use held_scan::HeldScan;
use holdfast_config::FileAuthor;
pub use scan::read_folder;
use watch_task::FolderWatcher;

/// The most files to read: with one object per file, more services than a node usually has.
pub(super) const FILES_MAX: usize = 10_000;

/// How often every file is polled for changes without an inotify event (another host's write, a link's target); one
/// `stat` each.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// How long a file must be unchanged to count as complete without an event; longer than programs pause within one
/// write.
pub(super) const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The longest gap between the writes of one move (`mv`, `cp *.yaml`, an unpacked archive).
pub(super) const MOVE_WINDOW: Duration = Duration::from_millis(20);

/// The longest hold of a removal in a folder that keeps changing; then the object counts as gone.
pub(super) const HOLD_MAX: Duration = Duration::from_millis(200);

/// The duration after which a scan is logged as hanging: 10,000 files on a slow disk take a few seconds.
const HANG_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait of the first list for files that are being written.
pub(super) const START_WAIT_MAX: Duration = Duration::from_secs(10);

/// A file format, and the state of one folder in it.
pub trait FileFormat: std::fmt::Debug + Send + Sized + 'static {
    /// The contents of one file.
    type Contents: std::fmt::Debug + Send;
    /// A change of the folder.
    type News: std::fmt::Debug + Send;

    /// What messages call the files.
    const NAMED: &'static str;
    /// The configuration's table of the folder.
    const TABLE: &'static str;
    /// The suffixes of the files.
    const ENDINGS: &'static [&'static str];
    /// The largest file to read.
    const FILE_BYTES_MAX: usize;
    /// The most bytes of all files together.
    const FOLDER_BYTES_MAX: u64;
    /// The source of these files.
    const SOURCE: Source;

    /// A folder without known files.
    fn for_folder(folder: &Path) -> Self;

    /// Decodes a file that this author may have written; an error rejects the whole file.
    fn decode(
        folder: &Path,
        file: &Arc<str>,
        bytes: &[u8],
        author: FileAuthor,
    ) -> Result<Self::Contents, String>;

    /// Applies a scan and returns the changes.
    fn take_scan(&mut self, scan: FolderScan<Self::Contents>) -> Vec<Self::News>;

    /// Whether an object may be moving between files.
    fn is_object_moving(&self, scan: &FolderScan<Self::Contents>) -> bool;

    /// Rejects files that are unreadable now; their earlier contents stay.
    fn reject_files(&mut self, files: &[Arc<str>], reason: &str) -> Vec<Self::News>;

    /// Returns everything that counts, again.
    fn redeliver_all(&mut self) -> Vec<Self::News>;

    /// The news that the whole folder was delivered.
    fn complete_news() -> Self::News;

    /// The news that the folder does not respond.
    fn hang_news(folder: &str, reason: &str) -> Self::News;

    /// The news that the folder responds again.
    fn recovery_news(&self) -> Vec<Self::News>;
}

/// The folder cannot be read now, which may change.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; create the folder, or change `path` under [{table}]", folder.display())]
pub struct FolderError {
    pub folder: PathBuf,
    /// The system's error.
    pub reason: String,
    table: &'static str,
}

/// A folder, which may come and go.
#[derive(Debug)]
pub struct FolderSource<F> {
    folder: PathBuf,
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    files: PhantomData<fn() -> F>,
}

impl<F: FileFormat> FolderSource<F> {
    /// Creates the source; reads nothing yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), snapshots: None, files: PhantomData }
    }

    /// Returns why the folder cannot be read now.
    pub fn check_folder(folder: &Path) -> Result<(), FolderError> {
        scan::probe_folder::<F>(folder).map_err(|reason| Self::folder_error(folder, reason))
    }

    /// Makes the source deliver everything again when these snapshots request it.
    pub fn with_snapshots(self, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { snapshots: Some(snapshots), ..self }
    }

    /// Sends the folder and each change, until `stop` is set or the receiver is gone.
    pub async fn run(
        self,
        news: mpsc::Sender<Vec<F::News>>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), JoinError> {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => Ok(()),
            ended = FolderWatcher::<F>::new(self.folder, self.snapshots).run(news) => ended,
        }
    }

    /// The error of an unreadable folder.
    pub fn folder_error(folder: &Path, reason: String) -> FolderError {
        FolderError { folder: folder.to_owned(), reason, table: F::TABLE }
    }
}
