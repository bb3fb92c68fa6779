//! What was told of what is rejected.
//!
//! Invariant: each rejection is told once for as long as it says the same, and its end is.

use std::collections::BTreeMap;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};

/// What is rejected.
pub(super) type Rejections = BTreeMap<ObjectKey, Rejection>;

/// The rejections that were told, and have not ended.
#[derive(Debug, Default)]
pub(super) struct RejectionLog(Rejections);

impl RejectionLog {
    /// What is new since the last call, now that these are all.
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
