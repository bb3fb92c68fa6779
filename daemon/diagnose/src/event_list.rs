//! The cluster's Events, one row each, with the knowledge of each.
//!
//! Invariant: fields are added, never renamed or removed; `schema` names the version. Every foreign text is clean and
//! bounded. The list is bounded too, and counts what it omits. If Events could not be read, it says why and names the
//! missing right.

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

/// The version of this format.
const SCHEMA: &str = "holdfast.events/1";

/// Exit codes with and without Events that were read; they match those of a diagnosis.
const EXIT_READ: u8 = 0;
const EXIT_NOT_READ: u8 = 5;

/// The scope of the list, and the daemon's tables, time and version.
#[derive(Clone, Copy, Debug)]
pub struct EventScope<'a> {
    /// The service; `None`: what all services depend on.
    pub service: Option<&'a ObjectName>,
    pub snapshot: &'a Snapshot,
    pub now: Timestamp,
    pub version: &'static str,
}

/// Events, the latest first, each with what is known of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventList {
    schema: &'static str,
    /// The queried service; null: what all services depend on.
    service: Option<String>,
    node: String,
    version: &'static str,
    taken: Rfc3339,
    /// Whether Events were read recently. If not, nothing is known of them.
    read: bool,
    /// Why they were not read.
    why_not: Option<String>,
    /// The missing right, if that is the reason.
    missing_right: Option<MissingRight>,
    /// Whether there are more than were read.
    more: bool,
    events: Vec<EventRow>,
    /// Number of older Events that were read and are not listed.
    omitted: usize,
    /// The exit code of `holdfast events`.
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
    /// Makes the list. It calls `knowledge` only if there are Events, because building that takes some milliseconds.
    pub fn new<'a>(
        received: &ReceivedEvents,
        knowledge: impl FnOnce() -> &'a Knowledge,
        scope: EventScope<'_>,
    ) -> Self {
        let mut events = match received.list.answer() {
            Some(events) if !events.is_empty() => build_rows(events, knowledge(), scope),
            _ => Vec::new(),
        };
        let omitted = events.len().saturating_sub(EVENTS_LISTED_MAX);
        events.truncate(EVENTS_LISTED_MAX);
        let read = received.list.answer().is_some();
        let missing_right = match &received.list {
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
            why_not: received.list.unavailable_reason().as_deref().map(clean),
            missing_right,
            more: received.more,
            events,
            omitted,
            exit: if read { EXIT_READ } else { EXIT_NOT_READ },
        }
    }

    /// Renders the list for people. `all` adds everything that is known of each Event.
    pub fn to_text(&self, all: bool) -> String {
        text::render_text(self, all)
    }
}
