//! Events from one query or several.
//!
//! Invariant: a failed query is recorded, and never counts as "there is none".

use holdfast_knowledge::ClusterEvent;

use super::Lookup;

#[derive(Clone, Debug, Default)]
pub struct ReceivedEvents {
    pub list: Lookup<Vec<ClusterEvent>>,
    /// Whether there are more Events than were read, or a query for some of them failed.
    pub more: bool,
}

impl ReceivedEvents {
    pub const fn from_lookup(list: Lookup<Vec<ClusterEvent>>) -> Self {
        Self { list, more: false }
    }

    /// Keeps only the wanted Events.
    pub fn filter_events(self, is_wanted: impl Fn(&ClusterEvent) -> bool) -> Self {
        let list = self.list.map(|list| list.into_iter().filter(|event| is_wanted(event)).collect());
        Self { list, more: self.more }
    }

    /// Joins the Events of both. `other` was required: if it has no answer, `more` is set.
    pub fn merge_required(self, other: Self) -> Self {
        let more = other.list.answer().is_none() || self.more;
        Self { more, ..self }.merge(other)
    }

    /// Joins the Events of both. A skipped side is left out. Without an answer in `self` the whole has none; without
    /// one in `other` only, `more` is set.
    pub fn merge(self, other: Self) -> Self {
        match (self.list, other.list) {
            (Lookup::Skipped(_), list) => Self { list, more: other.more },
            (Lookup::Answered(mut list), Lookup::Answered(others)) => {
                list.extend(others);
                Self { list: Lookup::Answered(list), more: self.more || other.more }
            }
            (list, Lookup::Skipped(_)) => Self { list, more: self.more },
            (Lookup::Answered(list), _) => Self { list: Lookup::Answered(list), more: true },
            (list, _) => Self { list, more: self.more },
        }
    }
}
