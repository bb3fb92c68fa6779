//! Reads a folder of manifests without a file system: the same texts give the same events.
//!
//! Invariant: pure; the caller has the files and decides when to scan them.

mod decode;
mod folder;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::event::Event;

pub use decode::{FileContents, ObjectFacts, ObjectVersion, decode_file, parse_documents};
pub use folder::{Folder, FolderScan, file_rejection_event};

/// The largest file that is read. A list of all Services and slices of a cluster with 10,000 services has about 30 MB.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// A folder with all its files in memory, for tests.
#[derive(Debug)]
pub struct TextFolder {
    folder: Folder,
}

impl TextFolder {
    /// An empty folder; the path is for messages.
    pub fn new(path: &str) -> Self {
        Self { folder: Folder::new(path) }
    }

    /// Replaces all files, and returns the resulting events.
    pub fn replace_files(&mut self, files: &BTreeMap<Arc<str>, Vec<u8>>) -> Vec<Event> {
        let read = |(name, bytes): (&Arc<str>, &Vec<u8>)| (Arc::clone(name), decode_file(name, bytes));
        let present = Ok(files.keys().cloned().collect());
        self.folder.apply_scan(FolderScan { present, files: files.iter().map(read).collect() })
    }
}
