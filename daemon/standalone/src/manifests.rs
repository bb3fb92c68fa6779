//! A folder of Kubernetes manifests, watched.
//!
//! Invariant: the first group is the whole folder and ends with `Synced`.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::keys::Source;
use holdfast_objects::manifests::{self, Contents, FILE_BYTES_MAX, Folder, FolderLook};

use super::folder::{Files, Watched};
use holdfast_config::FileAuthor;

/// The folder of manifests, whether it is there or not.
pub type Manifests = Watched<Folder>;

impl Files for Folder {
    type Contents = Contents;
    type News = Event;

    const NAMED: &'static str = "manifests";
    const TABLE: &'static str = "manifests";
    const ENDINGS: &'static [&'static str] = &[".yaml", ".yml", ".json"];
    const FILE_BYTES_MAX: usize = FILE_BYTES_MAX;
    /// What the objects of 100,000 services with ten endpoints each take, twice.
    const FOLDER_BYTES_MAX: u64 = 1 << 30;
    const SOURCE: Source = Source::Manifests;

    fn of(folder: &Path) -> Self {
        Self::new(&folder.to_string_lossy())
    }

    fn decode(_: &Path, file: &Arc<str>, bytes: &[u8], _: FileAuthor) -> Result<Contents, String> {
        let contents = manifests::decode(file, bytes)?;
        let objects = contents.objects.len();
        let ignored = contents.ignored.values().sum::<usize>();
        tracing::debug!(file = &**file, objects, ignored, "manifest read");
        Ok(contents)
    }

    fn take(&mut self, look: FolderLook) -> Vec<Event> {
        self.apply(look)
    }

    fn is_between(&self, look: &FolderLook) -> bool {
        Self::is_between(self, look)
    }

    fn refuse(&mut self, files: &[Arc<str>], reason: &str) -> Vec<Event> {
        Self::refuse(self, files, reason)
    }

    fn again(&mut self) -> Vec<Event> {
        self.tell_again()
    }

    fn whole() -> Event {
        Event::Synced(Source::Manifests)
    }

    fn hangs(folder: &str, reason: &str) -> Event {
        manifests::refused(folder, reason)
    }

    fn answers(&self) -> Vec<Event> {
        self.own_rejection()
    }
}
