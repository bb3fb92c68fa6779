//! A folder of files that say what is served, watched; in which language they say it is the caller's.
//!
//! Invariant: what one look at the folder finds goes out as one group, at once; only a change that takes an object away
//! waits for the file that may have the object now, so an object that moves from file to file is never gone in between.
//! The first group is the whole folder, and the last news of it says so. What cannot be read keeps its last good
//! version. Subfolders are not read.

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

/// The most files that are read: with one object per file, more services than a node usually has.
pub(super) const FILES_MAX: usize = 10_000;

/// How often every file is looked at, for changes without a notice (another host's write, a link's target); one `stat`
/// each.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// How long a file must rest to count as complete where no notice says so; longer than programs pause within one write.
pub(super) const SETTLE_TIME: Duration = Duration::from_secs(1);

/// How far apart the files are written at most between which an object moves (`mv`, `cp *.yaml`, an unpacked archive).
pub(super) const MOVE_WINDOW: Duration = Duration::from_millis(20);

/// How long an object that goes is held at most, in a folder that never rests; after that it counts as gone.
pub(super) const HOLD_MAX: Duration = Duration::from_millis(200);

/// How long a look may take until it is logged: 10,000 files on a slow disk take a few seconds.
const HANG_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the first list waits for files that are being written.
pub(super) const START_WAIT_MAX: Duration = Duration::from_secs(10);

/// A language of files, and what is known of the files of one folder.
pub trait FileFormat: std::fmt::Debug + Send + Sized + 'static {
    /// What one file says.
    type Contents: std::fmt::Debug + Send;
    /// What is told of the folder.
    type News: std::fmt::Debug + Send;

    /// What the files are, in a message.
    const NAMED: &'static str;
    /// The table of the configuration that names the folder.
    const TABLE: &'static str;
    /// How the names of the files end.
    const ENDINGS: &'static [&'static str];
    /// The largest file that is read.
    const FILE_BYTES_MAX: usize;
    /// The most bytes of all files that are read together.
    const FOLDER_BYTES_MAX: u64;
    /// The source that these files belong to.
    const SOURCE: Source;

    /// A folder of which nothing is known yet.
    fn for_folder(folder: &Path) -> Self;

    /// Reads a file that this author may have written; an error says why nothing in it can be read.
    fn decode(
        folder: &Path,
        file: &Arc<str>,
        bytes: &[u8],
        author: FileAuthor,
    ) -> Result<Self::Contents, String>;

    /// Takes in what a look at the folder brought, and gives what that changed.
    fn take_scan(&mut self, look: FolderScan<Self::Contents>) -> Vec<Self::News>;

    /// Whether an object may be on its way from one file to another.
    fn is_object_moving(&self, look: &FolderScan<Self::Contents>) -> bool;

    /// Refuses files that cannot be read now; whatever was known of them stays.
    fn reject_files(&mut self, files: &[Arc<str>], reason: &str) -> Vec<Self::News>;

    /// Everything that counts, once more.
    fn redeliver_all(&mut self) -> Vec<Self::News>;

    /// The news that the folder was told whole.
    fn complete_news() -> Self::News;

    /// The news that the folder does not answer.
    fn hang_news(folder: &str, reason: &str) -> Self::News;

    /// The news that the folder answers again.
    fn recovery_news(&self) -> Vec<Self::News>;
}

/// The folder cannot be read now. That may change.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; create the folder, or change `path` under [{table}]", folder.display())]
pub struct FolderError {
    pub folder: PathBuf,
    /// What the system said.
    pub reason: String,
    table: &'static str,
}

/// A folder, whether it is there or not: it may come and go.
#[derive(Debug)]
pub struct FolderSource<F> {
    folder: PathBuf,
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    files: PhantomData<fn() -> F>,
}

impl<F: FileFormat> FolderSource<F> {
    /// The source for this folder; nothing is read yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), snapshots: None, files: PhantomData }
    }

    /// Why the folder cannot be read now, if it cannot.
    pub fn check_folder(folder: &Path) -> Result<(), FolderError> {
        scan::probe_folder::<F>(folder).map_err(|reason| Self::folder_error(folder, reason))
    }

    /// Makes the source deliver everything once more when these snapshots ask for it.
    pub fn with_snapshots(self, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { snapshots: Some(snapshots), ..self }
    }

    /// Sends what the folder says and every change of it, until `stop` says so or the receiver takes no more.
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

    /// The error of a folder that cannot be read.
    pub fn folder_error(folder: &Path, reason: String) -> FolderError {
        FolderError { folder: folder.to_owned(), reason, table: F::TABLE }
    }
}
