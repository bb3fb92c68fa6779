//! Repairs a damaged file: its whole records, and for the others those of the previous file.
//!
//! Invariant: no record that is whole in one of the two files is lost, and a lost service is named if either file
//! names it. After any damage all objects are listed again: no version to resume a watch from is kept.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_core::keys::ServiceKey;

use super::{SavedState, VERSION};

/// The most services named; more are only counted.
const NAMED_MAX: usize = 8;

/// Why the file cannot be used. The daemon starts without it.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file was not written by holdfast.
    #[error("{} is not a snapshot of holdfast", .0.display())]
    Foreign(PathBuf),
    /// Another version of holdfast wrote the file, in a format that this one does not read.
    #[error(
        "{} has format {found} of {} holdfast; this one reads format {VERSION}, starts without the file and keeps it as {}",
        path.display(),
        if *found > VERSION { "a newer" } else { "an older" },
        super::format_file(*found)
    )]
    Version {
        path: PathBuf,
        /// The file's format.
        found: u32,
    },
    /// The file was truncated, or changed since it was written.
    #[error("{} is damaged: some of its records are not as they were written", .0.display())]
    Damaged(PathBuf),
}

impl LoadError {
    /// Whether another version of holdfast, or this one later, may read the file. It is false where no file exists.
    pub(super) fn may_be_whole(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() != io::ErrorKind::NotFound,
            Self::Version { .. } => true,
            Self::Foreign(_) | Self::Damaged(_) => false,
        }
    }
}

/// Services that the file lacks, because they were too large or damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmittedServices {
    /// The number of services, named or not.
    pub count: u64,
    /// The first ones, as `namespace/name`.
    pub named: Vec<Arc<str>>,
}

impl OmittedServices {
    /// The names, and how many more there are.
    pub fn join_names(&self) -> String {
        let more = self.count.saturating_sub(self.named.len() as u64);
        match (self.count, more) {
            (0, _) => "none".to_owned(),
            (_, 0) => self.named.join(", "),
            (_, more) => format!("{} and {more} more", self.named.join(", ")),
        }
    }

    pub(super) fn add(&mut self, key: &ServiceKey) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(key.name.to_string().into());
        }
    }
}

/// The damage of the file at a start, and which services were recovered or lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The fault of the file.
    pub error: Arc<str>,
    /// Services from the previous file; one that was deleted since is served until the first list.
    pub older: OmittedServices,
    /// Services that are whole in neither file.
    pub lost: OmittedServices,
}

#[derive(Debug, Default)]
pub(super) struct SnapshotFile {
    pub(super) saved: SavedState,
    pub(super) has_head: bool,
    /// The services that should have records in the file; `None` if their names are lost too.
    pub(super) names: Option<BTreeSet<ServiceKey>>,
    /// The services that are too large for a record.
    pub(super) left_out: BTreeSet<ServiceKey>,
    pub(super) is_damaged: bool,
}

impl SnapshotFile {
    /// The content of an undamaged file. If services were too large for a record, a resumed watch would never deliver
    /// them, so everything is to be listed.
    fn into_saved(self) -> SavedState {
        let mut saved = self.saved;
        if !self.left_out.is_empty() {
            saved.remembered.progress.clear();
        }
        saved
    }

    fn service_keys(&self) -> BTreeSet<ServiceKey> {
        self.saved.remembered.services.iter().map(|view| view.key.clone()).collect()
    }

    /// Whether the file should have a record of this service but has no whole one. If the names are lost, that may be
    /// true of any service.
    fn lacks(&self, have: &BTreeSet<ServiceKey>, key: &ServiceKey) -> bool {
        let is_named = self.names.as_ref().is_none_or(|names| names.contains(key));
        is_named && !have.contains(key) && !self.left_out.contains(key)
    }
}

/// The table of the newest file, repaired from the previous one if needed.
pub(super) fn merge_files(
    newest: Result<Option<SnapshotFile>, LoadError>,
    older: impl FnOnce() -> Option<SnapshotFile>,
    damaged: impl FnOnce() -> LoadError,
) -> Result<Option<SavedState>, LoadError> {
    let (newest, why) = match newest {
        Ok(Some(found)) if !found.is_damaged => return Ok(Some(found.into_saved())),
        Ok(Some(found)) => (Some(found), Some(damaged())),
        Ok(None) => (None, None),
        Err(error) => (None, Some(error)),
    };
    let mended = repair_file(newest.unwrap_or_default(), older());
    match (mended, why) {
        (Some((mut saved, older, lost)), why) => {
            let error = why.map_or_else(|| "it is missing".to_owned(), |why| why.to_string()).into();
            saved.damage = Some(Arc::new(Damage { error, older, lost }));
            Ok(Some(saved))
        }
        (None, Some(error)) => Err(error),
        (None, None) => Ok(None),
    }
}

/// Returns `None` if neither file has a whole head, which names the cluster of the records.
fn repair_file(
    mut newest: SnapshotFile,
    older: Option<SnapshotFile>,
) -> Option<(SavedState, OmittedServices, OmittedServices)> {
    let older = older.unwrap_or_default();
    if !newest.has_head && !older.has_head {
        return None;
    }
    if !newest.has_head {
        newest.saved.context = older.saved.context;
        newest.saved.remembered.at = older.saved.remembered.at;
    }
    let mut have = newest.service_keys();
    let mut taken = OmittedServices::default();
    for view in older.saved.remembered.services {
        if newest.lacks(&have, &view.key) {
            taken.add(&view.key);
            have.insert(view.key.clone());
            newest.saved.remembered.services.push(view);
        }
    }
    let mut lost = OmittedServices::default();
    let names = newest.names.as_ref().or(older.names.as_ref()).into_iter().flatten();
    names.filter(|key| newest.lacks(&have, key)).for_each(|key| lost.add(key));
    newest.saved.remembered.progress.clear();
    Some((newest.saved, taken, lost))
}
