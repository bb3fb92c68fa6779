//! The knowledge in force, of what Events mean: what came with this program, and the operator's files that change it.
//!
//! Invariant: files are read when the configuration is, and at no other time. Faulty parts of them are named and left
//! out, and what is built in holds in their place. The knowledge is put together at its first use, so a node that reads
//! no Event keeps none of it in memory.

mod files;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use holdfast_knowledge::{Fault, Knowledge};
use tokio::sync::watch;

/// The folder beside the configuration, with files that add to the knowledge.
const FOLDER: &str = "events.d";

/// The knowledge between two readings of the files.
#[derive(Debug, Default)]
pub struct Edition {
    /// The name and the text of each file. The texts are short, and are kept because a file that is read again may have
    /// changed since it was judged.
    files: Vec<(String, String)>,
    faults: Vec<Fault>,
    knowledge: OnceLock<Knowledge>,
}

/// A receiver that always has the newest edition.
pub type Editions = watch::Receiver<Arc<Edition>>;

/// The folder of these files that belongs to a configuration.
pub fn knowledge_folder(config: &Path) -> PathBuf {
    config.with_file_name(FOLDER)
}

/// What came with this program, without any files.
pub fn built_in() -> Editions {
    watch::channel(Arc::default()).1
}

impl Edition {
    /// Reads the files of a folder, which need not be there, and judges them. It may block for as long as a file system
    /// likes.
    pub fn read(folder: &Path) -> Self {
        let (files, unread) = files::read_files(folder);
        Self::from_files(files, unread)
    }

    /// The edition of files that were read, with what was wrong with others.
    pub fn from_files(files: Vec<(String, String)>, unread: Vec<Fault>) -> Self {
        let mut edition = Self { files, faults: unread, knowledge: OnceLock::new() };
        if !edition.files.is_empty() {
            // Only the faults are kept: the knowledge itself may never be asked for.
            let (_, faults) = edition.build_knowledge();
            edition.faults.extend(faults);
        }
        edition
    }

    /// All that is known; the first call takes some milliseconds.
    pub fn knowledge(&self) -> &Knowledge {
        self.knowledge.get_or_init(|| self.build_knowledge().0)
    }

    /// What is wrong in the files, a bounded number of faults.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    #[cfg(test)]
    pub(crate) fn is_loaded(&self) -> bool {
        self.knowledge.get().is_some()
    }

    fn build_knowledge(&self) -> (Knowledge, Vec<Fault>) {
        let files: Vec<(&str, &str)> =
            self.files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        Knowledge::with_overrides(&files)
    }
}

#[cfg(test)]
mod tests;
