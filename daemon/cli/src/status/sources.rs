//! The line of sources: those that are configured, and whether each has delivered.
//!
//! Invariant: it names them by the words of the API and of the log.

use std::collections::BTreeMap;

use holdfast_core::keys::Source;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{Status, join_or_none};

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct SourceState {
    pub(super) source: String,
    synced: bool,
}

impl SourceState {
    pub(super) fn describe_state(&self) -> String {
        let state = if self.synced { "" } else { " (no first list yet)" };
        format!("{}{state}", self.source)
    }
}

/// The part of the configuration with services.
#[derive(Debug, Deserialize)]
pub(super) struct ConfiguredServices {
    #[serde(default)]
    service: Vec<IgnoredAny>,
    services: Option<BTreeMap<String, IgnoredAny>>,
}

impl ConfiguredServices {
    pub(super) fn has_any(&self) -> bool {
        let has_folder = self.services.as_ref().is_some_and(|it| it.contains_key("path"));
        has_folder || !self.service.is_empty()
    }
}

impl Status {
    /// The sources that are configured. The daemon has that of `[[service]]` always.
    pub(super) fn describe_sources(&self) -> String {
        let is_configured = |it: &&SourceState| self.has_blocks || it.source != Source::Config.as_str();
        join_or_none(self.sources.iter().filter(is_configured).map(SourceState::describe_state))
    }
}
