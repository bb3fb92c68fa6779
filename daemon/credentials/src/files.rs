//! Reads files that others rewrite at any time, and detects the rewrite.
//!
//! Invariant: a stamp is taken before the file is read, so a change during the read counts as a change. Checking the
//! files with each request costs less than watching every folder along a symbolic link.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use nix::fcntl::OFlag;

use holdfast_config::FileAuthor;

/// The size limit of a credentials file: a bundle of a few hundred authorities.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The error for a file that the author of its path may not read.
const NOT_READABLE_BY_AUTHOR: &str = "is not readable by everybody who may write the file that names it; let root alone \
                               write that file, or give this one to its owner";

/// Changes when a file is rewritten or replaced, through symbolic links too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// A file just before it was read. A missing or irregular file has no stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileSnapshot {
    pub(super) path: PathBuf,
    stamp: Option<Stamp>,
}

impl FileSnapshot {
    fn take(path: &Path) -> Self {
        let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
        let stamp = found.map(|it| Stamp {
            device: it.dev(),
            inode: it.ino(),
            bytes: it.size(),
            modified: (it.mtime(), it.mtime_nsec()),
        });
        Self { path: path.to_owned(), stamp }
    }

    fn has_changed(&self) -> bool {
        *self != Self::take(&self.path)
    }

    /// When the file was last written.
    pub(super) fn modified_at(&self) -> Option<SystemTime> {
        let (seconds, nanoseconds) = self.stamp?.modified;
        let since = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }
}

/// The path of the file being read, so that a caller can name it when the wait times out.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentFile(Arc<Mutex<PathBuf>>);

impl CurrentFile {
    fn set_path(&self, path: &Path) {
        path.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads files and records their snapshots. A read may block as long as the file system hangs.
#[derive(Debug, Default)]
pub(super) struct FileReader {
    snapshots: Vec<FileSnapshot>,
    current: CurrentFile,
    author: FileAuthor,
}

impl FileReader {
    pub(super) fn new(author: FileAuthor, current: CurrentFile) -> Self {
        Self { snapshots: Vec::new(), current, author }
    }

    pub(super) fn have_changed(&self, seen: &[FileSnapshot]) -> bool {
        seen.iter().any(|seen| {
            self.current.set_path(&seen.path);
            seen.has_changed()
        })
    }

    pub(super) fn into_snapshots(self) -> Vec<FileSnapshot> {
        self.snapshots
    }

    /// The content of a file that is not empty.
    pub(super) fn read(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        self.current.set_path(path);
        self.snapshots.push(FileSnapshot::take(path));
        let fault = |what: &str| format!("{}: {what}", path.display());
        let plainly = |error: std::io::Error| fault(&describe_error(&error));
        // Only regular files are opened: opening a device may have side effects.
        if !std::fs::metadata(path).map_err(plainly)?.is_file() {
            return Err(fault("is not a regular file"));
        }
        // Without this flag, opening a pipe without a writer would block for ever.
        let opened = std::fs::OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
        let opened = opened.map_err(plainly)?;
        if !self.author.may_read(&opened).map_err(plainly)? {
            return Err(fault(NOT_READABLE_BY_AUTHOR));
        }
        let mut content = Vec::new();
        opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(plainly)?;
        match u64::try_from(content.len()) {
            Ok(0) => Err(fault("is empty")),
            Ok(1..=FILE_BYTES_MAX) => Ok(content),
            _ => Err(fault("is larger than 1 MiB")),
        }
    }

    pub(super) fn read_text(&mut self, path: &Path) -> Result<String, String> {
        String::from_utf8(self.read(path)?).map_err(|_| format!("{}: is not text", path.display()))
    }
}

fn describe_error(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        std::io::ErrorKind::PermissionDenied => "may not be read".to_owned(),
        _ => error.to_string(),
    }
}
