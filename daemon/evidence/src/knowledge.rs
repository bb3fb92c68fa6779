//! The knowledge of Events in force: the built-in one, and the operator's files that change it.
//!
//! Invariant: files are read with the configuration, and at no other time. Faulty parts are reported and left out, and
//! the built-in knowledge replaces them. The knowledge is built at its first use, so a node that reads no Events keeps
//! none in memory.

mod files;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use holdfast_knowledge::{Fault, Knowledge};
use tokio::sync::watch;

/// The folder next to the configuration with files that add to the knowledge.
const FOLDER: &str = "events.d";

/// The knowledge between two reads of the files.
#[derive(Debug, Default)]
pub struct Edition {
    /// The name and the text of each file. The short texts are kept, because a file that is read again may have changed
    /// since its validation.
    files: Vec<(String, String)>,
    faults: Vec<Fault>,
    knowledge: OnceLock<Knowledge>,
}

/// A receiver of the newest edition.
pub type Editions = watch::Receiver<Arc<Edition>>;

/// The folder of knowledge files next to a configuration.
pub fn knowledge_folder(config: &Path) -> PathBuf {
    config.with_file_name(FOLDER)
}

/// The built-in knowledge, without any files.
pub fn built_in() -> Editions {
    watch::channel(Arc::default()).1
}

impl Edition {
    /// Reads and validates the files of a folder, which may be missing. It blocks as long as the file system does.
    pub fn read(folder: &Path) -> Self {
        let (files, unread) = files::read_files(folder);
        Self::from_files(files, unread)
    }

    /// The edition of these files, with the faults of unreadable ones.
    pub fn from_files(files: Vec<(String, String)>, unread: Vec<Fault>) -> Self {
        let mut edition = Self { files, faults: unread, knowledge: OnceLock::new() };
        if !edition.files.is_empty() {
            // Only the faults are kept: no caller may ever need the knowledge itself.
            let (_, faults) = edition.build_knowledge();
            edition.faults.extend(faults);
        }
        edition
    }

    /// The whole knowledge; the first call takes some milliseconds.
    pub fn knowledge(&self) -> &Knowledge {
        self.knowledge.get_or_init(|| self.build_knowledge().0)
    }

    /// The faults in the files, a bounded number.
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
