//! Where a service stands between its source and the maps.
//!
//! Invariant: an unfinished service is dirty, and one whose decision is awaited is stale.

use alloc::sync::Arc;

use super::{Cursor, Service};

/// How far a service is on its way to the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The maps and the readers have what was decided, or what the maps took of it.
    #[default]
    Settled,
    /// It waits for its piece, or is in it.
    Dirty,
    /// A piece was too small for it, so it goes on with a later one.
    Unfinished,
}

/// Whether the last decision for a service still stands. A claim won or lost needs no new decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Freshness {
    #[default]
    Current,
    /// The service's own facts, the node or the settings changed.
    Stale,
    /// The same, and other services wait for the new decision.
    Awaited,
}

/// Whether the start of this process waits for a service to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StartupWrite {
    #[default]
    Done,
    Pending,
}

/// How the source told the facts of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FactsOrigin {
    /// In its first list, or a former process remembered them.
    #[default]
    List,
    /// While every source was followed.
    Watch,
}

impl Service {
    /// Whether the service may be written to.
    pub(crate) fn is_dirty(&self) -> bool {
        self.phase != Phase::Settled
    }

    /// Whether what the service wants has to be decided again.
    pub(crate) fn is_stale(&self) -> bool {
        self.freshness != Freshness::Current
    }

    /// Whether the service goes on with a later piece.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.phase == Phase::Unfinished
    }

    /// Leaves the rest of its plan to a later piece.
    pub(crate) fn defer(&mut self, cursor: Cursor) {
        (self.phase, self.cursor) = (Phase::Unfinished, cursor);
    }

    /// Notes what kept its plan from being carried out; that is told with its next view.
    pub(crate) fn record_error(&mut self, error: Arc<str>) {
        self.error = Some(error);
        if self.is_unfinished() {
            self.phase = Phase::Dirty;
        }
    }
}
