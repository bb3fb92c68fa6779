//! The parts of a daemon that a scenario needs besides the rules and the objects.

use holdfast_core::drains::Drains;
use holdfast_core::engine::SavedSnapshot;
use holdfast_core::event::Event;
use holdfast_core::snapshot::Snapshot;

/// What only a whole daemon can do.
pub trait Daemon {
    /// The first events of a configuration with these `[[service]]` blocks.
    fn blocks(&self, toml: &str) -> Result<Vec<Event>, String>;
    /// The saved state as a restart reads it back.
    fn written_down(&self, snapshot: &Snapshot) -> Result<SavedSnapshot, String>;
    /// The drains in force as a restart reads them back.
    fn drains_written_down(&self, drains: &Drains) -> Result<Drains, String>;
}

/// The rules without a daemon: no configuration can be read, and saved state returns unchanged.
#[derive(Clone, Copy, Debug)]
pub struct RulesAlone;

impl Daemon for RulesAlone {
    fn blocks(&self, _: &str) -> Result<Vec<Event>, String> {
        Err("a configuration needs a whole daemon".to_owned())
    }

    fn written_down(&self, snapshot: &Snapshot) -> Result<SavedSnapshot, String> {
        Ok(SavedSnapshot::from(snapshot))
    }

    fn drains_written_down(&self, drains: &Drains) -> Result<Drains, String> {
        Ok(drains.clone())
    }
}
