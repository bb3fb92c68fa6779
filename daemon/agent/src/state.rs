//! Saves the table in one file, so that a node that boots while the apiserver is away still serves.
//!
//! Invariant: a record is whole or ignored, and a damaged one affects no other. A new file replaces the old one in
//! one step, and the old one stays next to it. Only another daemon that uses the folder can stop this one: a fault of
//! the folder or the file is logged, and the write is retried. This module decides nothing from the table, and the
//! history has its own files.

mod claim;
mod codec;
mod damage;
mod file;
mod form;
mod frames;
mod parallel_decoder;
mod sample;
mod snapshot_writer;

#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use holdfast_core::engine::SavedSnapshot;
use holdfast_core::snapshot::Snapshot;

use holdfast_kubernetes::source::UntabledByKind;

pub use claim::{Claim, StateInUse};
pub use damage::{Damage, LoadError, OmittedServices};
pub use file::{StoreError, StoreOutcome};
pub use sample::Sample;
pub use snapshot_writer::{SnapshotWrite, SnapshotWriter};

/// The only format that is written and read. No other format was ever released: `docs/versions.md` has what a further
/// one has to keep.
const VERSION: u32 = 9;

const FILE: &str = "snapshot";

const PREVIOUS: &str = "snapshot.before";

/// The name of a damaged file, kept so that an operator can find out why.
const DAMAGED: &str = "snapshot.damaged";

/// The name of a file in another format, kept for the version of holdfast that reads it.
fn format_file(format: u32) -> String {
    format!("{FILE}.v{format}")
}

/// The data saved with the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotContext {
    /// The boot in which the table was written; wall clocks may jump between two boots.
    pub boot: Arc<str>,
    /// The uid of the cluster that the objects came from.
    pub cluster: Option<Arc<str>>,
    /// The node's zone, from the apiserver.
    pub zone: Option<Arc<str>>,
    /// The Services that were selected: those with this `service-proxy-name`, or those without any.
    pub proxy_name: Option<Arc<str>>,
    /// The apiserver's objects that the table lacks.
    pub oddities: UntabledByKind,
    /// The lowest record number known to be unused; 0 if unknown.
    pub numbers_below: u64,
}

/// The content of the file.
#[derive(Clone, Debug, Default)]
pub struct SavedState {
    /// The data saved with the table.
    pub context: SnapshotContext,
    /// The last published table.
    pub remembered: SavedSnapshot,
    /// The damage of the file, if any.
    pub damage: Option<Arc<Damage>>,
}

/// The folder of the state that survives a restart.
#[derive(Clone, Debug)]
pub struct StateFolder {
    path: PathBuf,
}

impl StateFolder {
    /// The folder at this path; the first write creates it.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Keeps other daemons out of the folder; claim it before reading it.
    pub fn claim(&self) -> Result<Claim, StateInUse> {
        claim::claim(&self.path)
    }

    /// The same for a command that checks whether a daemon runs: a missing folder has no daemon, and the command must
    /// not create it.
    pub fn claim_existing(&self) -> Result<Option<Claim>, StateInUse> {
        self.path.is_dir().then(|| self.claim()).transpose()
    }

    /// Loads the whole records of a former process; `None` if nothing was written yet. A file that is damaged, or of
    /// another format, gets a second name, and stays in its place until a whole one replaces it: it may have the only
    /// copy of its whole records.
    pub fn load(&self) -> Result<Option<SavedState>, LoadError> {
        let path = self.path.join(FILE);
        let newest = file::load(&path);
        let second_name = match &newest {
            Err(LoadError::Version { found, .. }) => Some(format_file(*found)),
            Err(_) => Some(DAMAGED.to_owned()),
            Ok(found) => found.as_ref().is_some_and(|it| it.is_damaged).then(|| DAMAGED.to_owned()),
        };
        let is_other_format = matches!(newest, Err(LoadError::Version { .. }));
        let load = |name: &str| file::load(&self.path.join(name)).ok().flatten();
        // Another version kept the last file of this format when it replaced it.
        let kept = || is_other_format.then(|| load(&format_file(VERSION))).flatten();
        let damaged = || LoadError::Damaged(path.clone());
        let saved = damage::merge_files(newest, || load(PREVIOUS).or_else(kept), damaged);
        if let Some(name) = second_name {
            // If the file cannot be set aside, writing fails too, and that is reported.
            let _ = file::set_aside(&path, &self.path.join(name));
        }
        saved
    }

    /// Why the file in its place must not give way to a table that lacks a source's objects: another version of
    /// holdfast, or this one later, may read more from it.
    pub(crate) fn find_unread(&self) -> Option<LoadError> {
        file::check_version(&self.path.join(FILE)).err().filter(LoadError::may_be_whole)
    }

    /// The age of the file. If it is unknown, for example because the clock was set back, it counts as old.
    pub fn age(&self) -> Duration {
        let written = std::fs::metadata(self.path.join(FILE)).and_then(|file| file.modified()).ok();
        written.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or(Duration::MAX)
    }

    /// A sample of the saved services; `None` if there are few, or they cannot be read.
    pub fn sample(&self) -> Option<Sample> {
        sample::read_sample(&self.path.join(FILE)).ok().flatten()
    }

    /// Writes context and table, without services that are too large; on an error the existing file stays.
    pub fn store(&self, context: &SnapshotContext, snapshot: &Snapshot) -> Result<StoreOutcome, StoreError> {
        file::store(&self.path, (FILE, PREVIOUS, DAMAGED), context, snapshot, frames::RECORD_BYTES_MAX)
    }
}
