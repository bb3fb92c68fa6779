//! Events that were read by themselves, from one question or several.
//!
//! Invariant: what could not be read is said, and never taken for "there is none".

use holdfast_knowledge::ClusterEvent;

use super::Lookup;

/// Events that were read.
#[derive(Clone, Debug, Default)]
pub struct ReceivedEvents {
    pub list: Lookup<Vec<ClusterEvent>>,
    /// Whether there are more Events than were read, or a question about some of them got no answer.
    pub more: bool,
}

impl ReceivedEvents {
    pub const fn from_lookup(list: Lookup<Vec<ClusterEvent>>) -> Self {
        Self { list, more: false }
    }

    /// Keeps the Events that are wanted.
    pub fn filter_events(self, is_wanted: impl Fn(&ClusterEvent) -> bool) -> Self {
        let list = self.list.map(|list| list.into_iter().filter(|event| is_wanted(event)).collect());
        Self { list, more: self.more }
    }

    /// Joins the Events of both. `other` had to be asked for: if it got no answer, `more` says that Events are missing.
    pub fn merge_required(self, other: Self) -> Self {
        let more = other.list.answer().is_none() || self.more;
        Self { more, ..self }.merge(other)
    }

    /// Joins the Events of both. A side that was not asked for is left out. If `self` got no answer, the whole has none
    /// either; if only `other` got none, `more` says that Events are missing.
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
