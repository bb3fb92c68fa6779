//! Watches a folder of Kubernetes manifests.
//!
//! Invariant: the first group is the whole folder and ends with `Synced`.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::keys::Source;
use holdfast_objects::manifests::{self, FILE_BYTES_MAX, FileContents, Folder, FolderScan};

use super::folder::{FileFormat, FolderSource};
use holdfast_config::FileAuthor;

/// The folder of manifests, which may come and go.
pub type Manifests = FolderSource<Folder>;

impl FileFormat for Folder {
    type Contents = FileContents;
    type News = Event;

    const NAMED: &'static str = "manifests";
    const TABLE: &'static str = "manifests";
    const ENDINGS: &'static [&'static str] = &[".yaml", ".yml", ".json"];
    const FILE_BYTES_MAX: usize = FILE_BYTES_MAX;
    /// Twice the size of the objects of 100,000 services with ten endpoints each.
    const FOLDER_BYTES_MAX: u64 = 1 << 30;
    const SOURCE: Source = Source::Manifests;

    fn for_folder(folder: &Path) -> Self {
        Self::new(&folder.to_string_lossy())
    }

    fn decode(_: &Path, file: &Arc<str>, bytes: &[u8], _: FileAuthor) -> Result<FileContents, String> {
        let contents = manifests::decode_file(file, bytes)?;
        let objects = contents.objects.len();
        let ignored = contents.ignored.values().sum::<usize>();
        tracing::debug!(file = &**file, objects, ignored, "manifest read");
        Ok(contents)
    }

    fn take_scan(&mut self, scan: FolderScan) -> Vec<Event> {
        self.apply_scan(scan)
    }

    fn is_object_moving(&self, scan: &FolderScan) -> bool {
        Self::is_object_moving(self, scan)
    }

    fn reject_files(&mut self, files: &[Arc<str>], reason: &str) -> Vec<Event> {
        Self::reject_files(self, files, reason)
    }

    fn redeliver_all(&mut self) -> Vec<Event> {
        self.redeliver_all()
    }

    fn complete_news() -> Event {
        Event::Synced(Source::Manifests)
    }

    fn hang_news(folder: &str, reason: &str) -> Event {
        manifests::file_rejection_event(folder, reason)
    }

    fn recovery_news(&self) -> Vec<Event> {
        self.folder_rejection()
    }
}
