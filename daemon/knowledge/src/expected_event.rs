//! Messages of Kubernetes components, word for word. Tests that provoke them compare their Events with these.
//!
//! Invariant: each message names its origin. Only a message on record from a run counts as observed.

use std::fmt;

use crate::{ClusterEvent, Confidence, Knowledge};

/// At least one message of each reason and of each cause, in columns: reason, component, kind, cause, origin, message.
pub const MESSAGES: &str = include_str!("tests/fixtures/messages.tsv");

/// The Event that a test expects from a real component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedEvent<'a> {
    pub reason: &'a str,
    pub component: &'a str,
    pub kind: &'a str,
    /// The id of the cause that matches its message; `-`: none.
    pub cause: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MismatchReason {
    #[error("it is another reason, sender, kind or cause")]
    Different,
    /// The knowledge spells its reason differently, or does not expect the sender.
    #[error("it is recognised as {0:?} only: correct the reason in knowledge/")]
    Unsure(Confidence),
    /// No such message is from a run.
    #[error("messages.tsv has no such message from a run: add it")]
    NotRecorded,
}

impl ExpectedEvent<'_> {
    pub fn matches(&self, event: &ClusterEvent) -> bool {
        let recognised = Knowledge::built_in().recognise(event);
        let cause = recognised.cause.map_or("-", |cause| cause.id.as_str());
        (self.reason, self.component, self.kind, self.cause)
            == (event.reason.as_str(), event.component.as_str(), event.object.kind.as_str(), cause)
    }

    /// Checks that an Event is the expected one, is recognised exactly, and is on record from a run.
    pub fn verify(&self, event: &ClusterEvent) -> Result<(), MismatchReason> {
        if !self.matches(event) {
            return Err(MismatchReason::Different);
        }
        match Knowledge::built_in().recognise(event).confidence {
            Confidence::Exact => {}
            other => return Err(MismatchReason::Unsure(other)),
        }
        self.is_recorded().then_some(()).ok_or(MismatchReason::NotRecorded)
    }

    fn is_recorded(&self) -> bool {
        let wanted = [self.reason, self.component, self.kind, self.cause, "run"];
        MESSAGES.lines().any(|line| line.split('\t').take(wanted.len()).eq(wanted))
    }
}

impl fmt::Display for ExpectedEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} about a {}, cause {}", self.reason, self.component, self.kind, self.cause)
    }
}
