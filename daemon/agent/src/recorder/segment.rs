//! Lists the segments of the history in their folder.
//!
//! Invariant: a file without a segment's name is left alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The end of a segment's name; the number of its first record precedes it, in 20 digits.
pub(super) const SUFFIX: &str = ".history";

/// Only root may read the history: it names every service of the cluster.
pub(super) const FILE_MODE: u32 = 0o600;
pub(super) const FOLDER_MODE: u32 = 0o700;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    /// The number of its first record, from its name.
    pub(super) first: u64,
    pub(super) bytes: u64,
}

/// The segments in a folder, oldest first. A missing folder has none.
pub(super) fn segments(folder: &Path) -> io::Result<Vec<Segment>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut segments = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        let found = entry.metadata()?;
        if let Some(first) = digits.and_then(|digits| digits.parse().ok()).filter(|_| found.is_file()) {
            segments.push(Segment { path: entry.path(), first, bytes: found.len() });
        }
    }
    segments.sort_by_key(|segment: &Segment| segment.first);
    Ok(segments)
}
