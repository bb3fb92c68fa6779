//! What of a daemon a scenario needs beside the rules and the objects.

use holdfast_core::drains::Drains;
use holdfast_core::engine::SavedSnapshot;
use holdfast_core::event::Event;
use holdfast_core::snapshot::Snapshot;

/// What only a whole daemon has.
pub trait Daemon {
    /// What a configuration with these `[[service]]` blocks sends first.
    fn blocks(&self, toml: &str) -> Result<Vec<Event>, String>;
    /// What comes back after a restart of what was written down.
    fn written_down(&self, snapshot: &Snapshot) -> Result<SavedSnapshot, String>;
    /// What comes back of the drains in force.
    fn drains_written_down(&self, drains: &Drains) -> Result<Drains, String>;
}

/// The rules without a daemon around them: no configuration can be read, and a record comes back as it was written.
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
