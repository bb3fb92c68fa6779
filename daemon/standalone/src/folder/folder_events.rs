//! What the kernel tells about a folder while it changes.
//!
//! Invariant: a file counts as closed only if no write came after its last close, and as being written until a close
//! comes. Notices alone are not trusted: the poll finds changes that have none (another host's write, a full queue).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};

use super::FILES_MAX;

/// How the names of files end that are read.
pub(super) type Endings = &'static [&'static str];

/// The file's name, if it is one that is read.
pub(super) fn file_name(name: &OsStr, endings: Endings) -> Option<Arc<str>> {
    is_readable_name(name, endings).then(|| name.to_str().map(Into::into)).flatten()
}

pub(super) fn is_readable_name(name: &OsStr, endings: Endings) -> bool {
    let bytes = name.as_bytes();
    let readable = endings.iter().any(|ending| bytes.ends_with(ending.as_bytes()));
    readable && !bytes.starts_with(b".")
}

/// What was noticed since the last look.
#[derive(Debug)]
pub(super) struct PendingChanges {
    endings: Endings,
    /// Files that were closed after writing, or renamed into place.
    pub(super) closed: BTreeSet<Arc<str>>,
    /// Files that were written to, and not closed since.
    pub(super) writing: BTreeSet<Arc<str>>,
}

/// When the folder should be looked at because of what was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanDue {
    /// Something goes on that is not complete.
    No,
    /// Something began that another notice may complete.
    Soon,
    /// Something is complete.
    Now,
}

impl PendingChanges {
    pub(super) const fn new(endings: Endings) -> Self {
        Self { endings, closed: BTreeSet::new(), writing: BTreeSet::new() }
    }

    /// Forgets which files are written: their folder is watched no more, so nothing would tell that they are closed.
    pub(super) fn clear_writing(&mut self) {
        self.writing.clear();
    }

    /// Takes one notice in; returns when the folder should be looked at.
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
            // With more files than that the folder is not read at all.
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

/// When the folder should be looked at for a name that is not read: any name may be a link on the way to a
/// file, as `..data` is in a mounted ConfigMap.
fn due_for_other(mask: EventMask) -> ScanDue {
    if mask.contains(EventMask::MOVED_TO) {
        ScanDue::Now
    } else if mask.intersects(CHANGE_STARTED) {
        ScanDue::Soon
    } else {
        ScanDue::No
    }
}

/// Notices that a name or the folder itself came or went. The folder is not looked at at once: a file that was created
/// is written next, and what goes may come back.
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

/// Room for a few dozen notices per read; the kernel keeps the rest.
const BUFFER_BYTES: usize = 4096;

/// The kernel's queue of notices, which has its own bound and says when it overflowed.
#[derive(Debug)]
pub(super) struct InotifyQueue {
    stream: EventStream<Box<[u8]>>,
    watched: Option<WatchDescriptor>,
}

impl InotifyQueue {
    /// A queue that watches nothing yet.
    pub(super) fn new() -> io::Result<Self> {
        let stream = Inotify::init()?.into_event_stream(vec![0; BUFFER_BYTES].into_boxed_slice())?;
        Ok(Self { stream, watched: None })
    }

    /// Watches the folder that this path leads to now, and no other. `true`: it was another one before.
    pub(super) fn watch(&mut self, folder: &Path) -> io::Result<bool> {
        let mut watches = self.stream.watches();
        let watched = watches.add(folder, WATCH_MASK)?;
        let Some(before) = self.watched.replace(watched.clone()).filter(|before| *before != watched) else {
            return Ok(false);
        };
        // The kernel has removed the watch by itself if that folder is gone.
        let _gone_already = watches.remove(before);
        Ok(true)
    }

    /// Waits for a notice of the folder that is watched, or of the queue itself. What waits there of a folder from
    /// before would be taken for news of files with the same names.
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
