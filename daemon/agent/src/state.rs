//! What survives a restart: the table as readers saw it, in one file, so that a node that boots while the apiserver is
//! away still serves.
//!
//! Invariant: a record is whole or it is not used, and what is damaged takes no other with it; a new file replaces the
//! old one in one step, and the old one stays beside it. Only another daemon that uses the folder can stop this one: a
//! fault of the folder or the file is named, and the write is tried again. This module decides nothing from the table,
//! and the history has files of its own.

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
mod tests;

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

/// The only format of the file that is written and read. No other format was ever released.
const VERSION: u32 = 9;

/// The name of the file in the state's folder.
const FILE: &str = "snapshot";

/// The name under which the file before that one is kept.
const PREVIOUS: &str = "snapshot.before";

/// The name of a file that was found damaged, kept so that an operator can find out why.
const DAMAGED: &str = "snapshot.damaged";

/// What goes with the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotContext {
    /// The boot in which the table was written; wall clocks may jump between two boots.
    pub boot: Arc<str>,
    /// The uid of the cluster that the objects came from.
    pub cluster: Option<Arc<str>>,
    /// The node's zone, as the apiserver told it.
    pub zone: Option<Arc<str>>,
    /// Which Services were asked for: those with this `service-proxy-name`, or those without any.
    pub proxy_name: Option<Arc<str>>,
    /// What the table does not say of the apiserver's objects.
    pub oddities: UntabledByKind,
    /// The lowest record number that was not given out, as far as that is known; 0: nothing is known of it.
    pub numbers_below: u64,
}

/// All that the file holds.
#[derive(Clone, Debug, Default)]
pub struct SavedState {
    /// What goes with the table.
    pub context: SnapshotContext,
    /// The table as readers saw it last.
    pub remembered: SavedSnapshot,
    /// What was wrong with the file, if anything was.
    pub damage: Option<Arc<Damage>>,
}

/// The folder of what survives a restart.
#[derive(Clone, Debug)]
pub struct StateFolder {
    path: PathBuf,
}

impl StateFolder {
    /// The folder at this path, which is made when something is written first.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Keeps other daemons out of the folder, from before the first look at what is there.
    pub fn claim(&self) -> Result<Claim, StateInUse> {
        claim::claim(&self.path)
    }

    /// The same for a command that only looks whether a daemon runs: no daemon has a folder that is not there, and the
    /// command makes none.
    pub fn claim_existing(&self) -> Result<Option<Claim>, StateInUse> {
        self.path.is_dir().then(|| self.claim()).transpose()
    }

    /// What a former process wrote down, as far as it is whole. `None`: nothing was written yet. A damaged file gets a
    /// second name, and stays in its place until a whole one takes that: what is whole in it may be nowhere else.
    pub fn load(&self) -> Result<Option<SavedState>, LoadError> {
        let path = self.path.join(FILE);
        let older = || file::load(&self.path.join(PREVIOUS)).ok().flatten();
        let damaged = || LoadError::Damaged(path.clone());
        let newest = file::load(&path);
        let is_damaged = newest.as_ref().map_or(true, |found| found.as_ref().is_some_and(|it| it.is_damaged));
        let kept = damage::merge_files(newest, older, damaged);
        if is_damaged {
            // Where the file cannot be put aside nothing else can be written either, and that is told.
            let _ = file::set_aside_damaged(&path, &self.path.join(DAMAGED));
        }
        kept
    }

    /// How long ago the table was written down. Where nothing tells it, as where the clock was put back, it counts as
    /// long ago.
    pub fn age(&self) -> Duration {
        let written = std::fs::metadata(self.path.join(FILE)).and_then(|file| file.modified()).ok();
        written.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or(Duration::MAX)
    }

    /// Some of the services that a former process wrote down. `None`: there are few, or they cannot be read.
    pub fn sample(&self) -> Option<Sample> {
        sample::read_sample(&self.path.join(FILE)).ok().flatten()
    }

    /// Writes context and table, but for services that are too large, or leaves the file that is there.
    pub fn store(&self, context: &SnapshotContext, snapshot: &Snapshot) -> Result<StoreOutcome, StoreError> {
        file::store(&self.path, (FILE, PREVIOUS, DAMAGED), context, snapshot, frames::RECORD_BYTES_MAX)
    }
}
