//! Knowledge of Kubernetes' Events: the meaning of each reason, the cause behind a message, the remedies and their
//! risks. The knowledge is data in `knowledge/*.toml`; this crate reads and applies it.
//!
//! Invariant: pure: no file, no socket, no clock; time is an argument. An Event is foreign text: it is cleaned and cut
//! before anything reads it, is never a format or a part of a command, and makes nothing panic.

mod entries;
mod entry;
mod event;
mod event_state;
#[cfg(any(test, feature = "heard"))]
pub mod expected_event;
mod fault;
mod index;
mod keywords;
pub mod limits;
mod placeholders;
mod recognition;
mod rfc3339;
mod store;
mod text;
mod validate;

#[cfg(test)]
mod tests;

pub use entry::{
    Belief, Cause, ConditionalCauses, Emitted, EventReason, EventType, ForbiddenPhrase, Impact, RefusedWrite,
    Remedy, Retry, Risk, Severity, Step, Subject, Symptom,
};
pub use event::{ClusterEvent, ObjectRef};
pub use event_state::{ClosedReason, CurrentObject, EventState};
pub use fault::Fault;
pub use placeholders::Values;
pub use recognition::{Advice, Confidence, Recognition};
pub use rfc3339::Time;
pub use store::Knowledge;
