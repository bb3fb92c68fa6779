//! Events that were read by themselves, from one question or several.
//!
//! Invariant: what could not be read is said, and never taken for "there is none".

use holdfast_knowledge::ClusterEvent;

use super::Asked;

/// Events that were read.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    pub list: Asked<Vec<ClusterEvent>>,
    /// Whether there are more Events than were read, or a question about some of them got no answer.
    pub more: bool,
}

impl Heard {
    pub const fn without(list: Asked<Vec<ClusterEvent>>) -> Self {
        Self { list, more: false }
    }

    /// Keeps the Events that are wanted.
    pub fn only(self, is_wanted: impl Fn(&ClusterEvent) -> bool) -> Self {
        let list = self.list.map(|list| list.into_iter().filter(|event| is_wanted(event)).collect());
        Self { list, more: self.more }
    }

    /// Joins the Events of both. `other` had to be asked for: if it got no answer, `more` says that Events are missing.
    pub fn and(self, other: Self) -> Self {
        let more = other.list.answer().is_none() || self.more;
        Self { more, ..self }.with(other)
    }

    /// Joins the Events of both. A side that was not asked for is left out. If `self` got no answer, the whole has none
    /// either; if only `other` got none, `more` says that Events are missing.
    pub fn with(self, other: Self) -> Self {
        match (self.list, other.list) {
            (Asked::Not(_), list) => Self { list, more: other.more },
            (Asked::Answered(mut list), Asked::Answered(others)) => {
                list.extend(others);
                Self { list: Asked::Answered(list), more: self.more || other.more }
            }
            (list, Asked::Not(_)) => Self { list, more: self.more },
            (Asked::Answered(list), _) => Self { list: Asked::Answered(list), more: true },
            (list, _) => Self { list, more: self.more },
        }
    }
}
