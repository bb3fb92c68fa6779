//! What a folder of manifests says, without a file system: whoever has the texts of all files gets the same events.
//!
//! Invariant: pure; when a file is looked at is up to whoever has files.

mod decode;
mod folder;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::event::Event;

pub use decode::{Contents, Facts, Version, decode};
pub use folder::{Folder, Reading, refused};

/// A list of all Services and slices of a cluster with 10,000 services has about 30 MB.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// A folder whose files are all at hand, as tests have them.
#[derive(Debug)]
pub struct Texts {
    folder: Folder,
}

impl Texts {
    /// A folder of which nothing is known yet; the path is for messages.
    pub fn new(path: &str) -> Self {
        Self { folder: Folder::new(path) }
    }

    /// These are all files now, by name. Gives what that changed.
    pub fn replace(&mut self, files: &BTreeMap<Arc<str>, Vec<u8>>) -> Vec<Event> {
        let read = |(name, bytes): (&Arc<str>, &Vec<u8>)| (Arc::clone(name), decode(name, bytes));
        let present = Ok(files.keys().cloned().collect());
        self.folder.apply(Reading { present, files: files.iter().map(read).collect() })
    }
}
