//! What the cluster's components said, one Event after another, each by what is known of it.
//!
//! Invariant: fields are added, never renamed or taken away; `schema` names the version. Every text in it that others
//! wrote is clean and bounded, and so is the list: what is left out is counted. What was not read is said, with the
//! right that is missing.

mod row;
#[cfg(test)]
mod tests;
mod text;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::Snapshot;
use holdfast_knowledge::Knowledge;
use schemars::JsonSchema;
use serde::Serialize;

use super::evidence::{Lookup, ReceivedEvents, Right};
use super::formatting::clean;
use super::limits::EVENTS_LISTED_MAX;
use holdfast_status::rfc3339::Rfc3339;
use row::{EventRow, build_rows};

/// The version of this form.
const SCHEMA: &str = "holdfast.events/1";

/// How the command ends if Events were read, and if they could not be: the exit codes of a diagnosis mean the same.
const EXIT_READ: u8 = 0;
const EXIT_NOT_READ: u8 = 5;

/// What the list is about, and the daemon's tables, time and version.
#[derive(Clone, Copy, Debug)]
pub struct EventScope<'a> {
    /// The service that the list is about; `None`: what all services depend on.
    pub service: Option<&'a ObjectName>,
    pub snapshot: &'a Snapshot,
    pub now: Timestamp,
    pub version: &'static str,
}

/// Events, the latest first, each by what is known of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventList {
    schema: &'static str,
    /// The service that was asked about; null: what all services depend on.
    service: Option<String>,
    node: String,
    version: &'static str,
    taken: Rfc3339,
    /// Whether they were read, lately at least. If not, nothing is known of what the cluster says.
    read: bool,
    /// Why they were not.
    why_not: Option<String>,
    /// The right that is missing, if it is that.
    missing_right: Option<MissingRight>,
    /// There are more than were read.
    more: bool,
    events: Vec<EventRow>,
    /// How many that were read are not in the list; they are older.
    omitted: usize,
    /// How `holdfast events` ends.
    pub exit: u8,
}

/// A rule of RBAC.
#[derive(Debug, Serialize, JsonSchema)]
struct MissingRight {
    /// Empty for the core group.
    api_group: &'static str,
    resource: &'static str,
    verb: &'static str,
    /// Null: of all namespaces.
    namespace: Option<String>,
}

impl From<&Right> for MissingRight {
    fn from(right: &Right) -> Self {
        Self {
            api_group: right.group,
            resource: right.resource,
            verb: right.verbs,
            namespace: right.namespace.as_deref().map(clean),
        }
    }
}

impl EventList {
    /// Makes the list. `knowledge` is asked for only where there are Events: to put it together takes some
    /// milliseconds.
    pub fn new<'a>(
        heard: &ReceivedEvents,
        knowledge: impl FnOnce() -> &'a Knowledge,
        scope: EventScope<'_>,
    ) -> Self {
        let mut events = match heard.list.answer() {
            Some(events) if !events.is_empty() => build_rows(events, knowledge(), scope),
            _ => Vec::new(),
        };
        let omitted = events.len().saturating_sub(EVENTS_LISTED_MAX);
        events.truncate(EVENTS_LISTED_MAX);
        let read = heard.list.answer().is_some();
        let missing_right = match &heard.list {
            Lookup::Forbidden(right) => Some(MissingRight::from(right)),
            Lookup::Skipped(_) | Lookup::Failed(_) | Lookup::Answered(_) => None,
        };
        Self {
            schema: SCHEMA,
            service: scope.service.map(ToString::to_string),
            node: clean(&scope.snapshot.node.name),
            version: scope.version,
            taken: Rfc3339(scope.now),
            read,
            why_not: heard.list.unavailable_reason().as_deref().map(clean),
            missing_right,
            more: heard.more,
            events,
            omitted,
            exit: if read { EXIT_READ } else { EXIT_NOT_READ },
        }
    }

    /// The list for people; `all`: with everything that is known of each Event.
    pub fn to_text(&self, all: bool) -> String {
        text::render_text(self, all)
    }
}
