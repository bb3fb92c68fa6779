//! The phase of a service between its source and the maps.
//!
//! Invariant: an unfinished service is dirty, and one that awaits its decision is stale.

use alloc::sync::Arc;

use super::{Cursor, Service};

/// The progress of a service towards the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The maps and the readers have the decision, or the part that the maps accepted.
    #[default]
    Settled,
    /// It waits for its piece, or is in it.
    Dirty,
    /// It was too heavy for a piece and continues in a later one.
    Unfinished,
}

/// Whether the last decision for a service is current. A claim won or lost needs no new decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Freshness {
    #[default]
    Current,
    /// The service's own facts, the node or the settings changed.
    Stale,
    /// Stale, and other services wait for the new decision.
    Awaited,
}

/// Whether the start of this process waits for a service to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StartupWrite {
    #[default]
    Done,
    Pending,
}

/// How the source delivered the facts of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FactsOrigin {
    /// In its first list, or restored from a former process.
    #[default]
    List,
    /// While every source was being watched.
    Watch,
}

impl Service {
    /// Whether the service may be written to.
    pub(crate) fn is_dirty(&self) -> bool {
        self.phase != Phase::Settled
    }

    /// Whether the service needs a new decision.
    pub(crate) fn is_stale(&self) -> bool {
        self.freshness != Freshness::Current
    }

    /// Whether the service continues in a later piece.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.phase == Phase::Unfinished
    }

    /// Defers the rest of its plan to a later piece.
    pub(crate) fn defer(&mut self, cursor: Cursor) {
        (self.phase, self.cursor) = (Phase::Unfinished, cursor);
    }

    /// Records why its plan was not executed; its next view shows that.
    pub(crate) fn record_error(&mut self, error: Arc<str>) {
        self.error = Some(error);
        if self.is_unfinished() {
            self.phase = Phase::Dirty;
        }
    }
}
