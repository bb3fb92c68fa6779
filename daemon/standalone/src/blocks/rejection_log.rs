//! Turns the present rejections into events.
//!
//! Invariant: each rejection is reported once while it is unchanged, and so is its end.

use std::collections::BTreeMap;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};

/// The present rejections.
pub(super) type Rejections = BTreeMap<ObjectKey, Rejection>;

/// The reported rejections that have not ended.
#[derive(Debug, Default)]
pub(super) struct RejectionLog(Rejections);

impl RejectionLog {
    /// Replaces the rejections; returns the changes.
    pub(super) fn update_rejections(&mut self, now: Rejections) -> Vec<Event> {
        let ended = self.0.keys().filter(|object| !now.contains_key(*object));
        let begun = now.iter().filter(|(object, it)| self.0.get(*object) != Some(*it));
        let events = ended
            .map(|object| Event::RejectionEnded(object.clone()))
            .chain(begun.map(|(_, rejection)| Event::Rejected(rejection.clone())))
            .collect();
        self.0 = now;
        events
    }
}
