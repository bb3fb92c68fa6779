//! What components of Kubernetes say, word for word, and what tests that bring it about compare with it.
//!
//! Invariant: each message says where it is from. Nothing counts as heard that is not on record from a run.

use std::fmt;

use crate::{ClusterEvent, Confidence, Knowledge};

/// One at least of each reason and each cause, in columns: reason, component, kind, cause, where it is from, message.
pub const MESSAGES: &str = include_str!("tests/fixtures/messages.tsv");

/// What a real component is to be heard with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard<'a> {
    pub reason: &'a str,
    pub component: &'a str,
    /// Of its object.
    pub kind: &'a str,
    /// The id of the cause that is found in its message; `-`: none.
    pub cause: &'a str,
}

/// Why an Event does not count as heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeard {
    /// It is another one.
    #[error("it is another reason, sender, kind or cause")]
    Other,
    /// The reason is not spelled so, or the sender not known to use it.
    #[error("it is recognised as {0:?} only: correct the reason in knowledge/")]
    Unsure(Confidence),
    /// No message of that kind is from a run.
    #[error("messages.tsv has no such message from a run: add it")]
    NotOnRecord,
}

impl Heard<'_> {
    /// Whether an Event is one of these.
    pub fn is(&self, event: &ClusterEvent) -> bool {
        let recognised = Knowledge::built_in().recognise(event);
        let cause = recognised.cause.map_or("-", |cause| cause.id.as_str());
        (self.reason, self.component, self.kind, self.cause)
            == (event.reason.as_str(), event.component.as_str(), event.object.kind.as_str(), cause)
    }

    /// Whether an Event is one of these, recognised for sure, and on record from a run.
    pub fn check(&self, event: &ClusterEvent) -> Result<(), NotHeard> {
        if !self.is(event) {
            return Err(NotHeard::Other);
        }
        match Knowledge::built_in().recognise(event).confidence {
            Confidence::Exact => {}
            other => return Err(NotHeard::Unsure(other)),
        }
        self.is_on_record().then_some(()).ok_or(NotHeard::NotOnRecord)
    }

    fn is_on_record(&self) -> bool {
        let wanted = [self.reason, self.component, self.kind, self.cause, "run"];
        MESSAGES.lines().any(|line| line.split('\t').take(wanted.len()).eq(wanted))
    }
}

impl fmt::Display for Heard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} about a {}, cause {}", self.reason, self.component, self.kind, self.cause)
    }
}
