//! Tracks a folder's inotify events.
//!
//! Invariant: a file counts as closed only if no write followed its last close, and as being written until it is
//! closed. Events alone are not trusted: the poll finds changes without one (another host's write, a full queue).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};

use super::FILES_MAX;

/// The suffixes of the files to read.
pub(super) type Endings = &'static [&'static str];

/// The file's name, if the file is to be read.
pub(super) fn file_name(name: &OsStr, endings: Endings) -> Option<Arc<str>> {
    is_readable_name(name, endings).then(|| name.to_str().map(Into::into)).flatten()
}

pub(super) fn is_readable_name(name: &OsStr, endings: Endings) -> bool {
    let bytes = name.as_bytes();
    let readable = endings.iter().any(|ending| bytes.ends_with(ending.as_bytes()));
    readable && !bytes.starts_with(b".")
}

/// Events since the last scan.
#[derive(Debug)]
pub(super) struct PendingChanges {
    endings: Endings,
    /// Files that were closed after writing, or renamed into place.
    pub(super) closed: BTreeSet<Arc<str>>,
    /// Files that were written and not closed since.
    pub(super) writing: BTreeSet<Arc<str>>,
}

/// When an event needs a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanDue {
    /// A change is under way.
    No,
    /// A change has begun that another event may complete.
    Soon,
    /// A change is complete.
    Now,
}

impl PendingChanges {
    pub(super) const fn new(endings: Endings) -> Self {
        Self { endings, closed: BTreeSet::new(), writing: BTreeSet::new() }
    }

    /// Clears the files being written: their folder is not watched any more, so no close event would arrive.
    pub(super) fn clear_writing(&mut self) {
        self.writing.clear();
    }

    /// Records an event; returns when to scan.
    pub(super) fn record_event(&mut self, mask: EventMask, name: Option<&OsStr>) -> ScanDue {
        if mask.contains(EventMask::Q_OVERFLOW) {
            self.writing.clear();
            return ScanDue::Soon;
        }
        let Some(file) = name.and_then(|name| file_name(name, self.endings)) else {
            return due_for_other(mask);
        };
        if mask.contains(EventMask::MODIFY) {
            self.closed.remove(&file);
            // A folder with more files is not read at all.
            if self.writing.len() < FILES_MAX {
                self.writing.insert(file);
            }
            return ScanDue::No;
        }
        self.writing.remove(&file);
        if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
            self.closed.insert(file);
            return ScanDue::Now;
        }
        self.closed.remove(&file);
        if mask.intersects(CHANGE_STARTED) { ScanDue::Soon } else { ScanDue::No }
    }
}

/// When to scan after an event of another name: any name may be a link that leads to a file, such as `..data` in a
/// mounted ConfigMap.
fn due_for_other(mask: EventMask) -> ScanDue {
    if mask.contains(EventMask::MOVED_TO) {
        ScanDue::Now
    } else if mask.intersects(CHANGE_STARTED) {
        ScanDue::Soon
    } else {
        ScanDue::No
    }
}

/// Events that create or remove a name or the folder. The scan waits: a created file is written next, and a removed
/// name may return.
const CHANGE_STARTED: EventMask = EventMask::CREATE
    .union(EventMask::DELETE)
    .union(EventMask::MOVED_FROM)
    .union(EventMask::DELETE_SELF)
    .union(EventMask::MOVE_SELF)
    .union(EventMask::UNMOUNT);

const WATCH_MASK: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVE)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::MODIFY)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::ONLYDIR);

/// The buffer for a few dozen events per read; the kernel queues the rest.
const BUFFER_BYTES: usize = 4096;

/// The kernel's inotify queue, which is bounded and reports overflows.
#[derive(Debug)]
pub(super) struct InotifyQueue {
    stream: EventStream<Box<[u8]>>,
    watched: Option<WatchDescriptor>,
}

impl InotifyQueue {
    /// Creates a queue without a watch.
    pub(super) fn new() -> io::Result<Self> {
        let stream = Inotify::init()?.into_event_stream(vec![0; BUFFER_BYTES].into_boxed_slice())?;
        Ok(Self { stream, watched: None })
    }

    /// Watches only the folder that this path leads to now. `true`: it replaced another one.
    pub(super) fn watch(&mut self, folder: &Path) -> io::Result<bool> {
        let mut watches = self.stream.watches();
        let watched = watches.add(folder, WATCH_MASK)?;
        let Some(before) = self.watched.replace(watched.clone()).filter(|before| *before != watched) else {
            return Ok(false);
        };
        // The kernel has already removed the watch of a deleted folder.
        let _gone_already = watches.remove(before);
        Ok(true)
    }

    /// Waits for an event of the watched folder, or of the queue itself. Events of an earlier folder are skipped: their
    /// names would be mistaken for this folder's files.
    pub(super) async fn next_event(&mut self) -> io::Result<EventOwned> {
        loop {
            let next =
                self.stream.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
            if next.mask.contains(EventMask::Q_OVERFLOW) || self.watched.as_ref() == Some(&next.wd) {
                return Ok(next);
            }
        }
    }
}
