//! What Kubernetes says of itself in Events, as knowledge: what each reason means, what is behind a message, what helps
//! and how much harm that can do. The knowledge is data, in `knowledge/*.toml`; this crate reads it and applies it.
//!
//! Invariant: pure: no file, no socket, no clock; time is an argument. Whatever an Event says is text of a stranger: it
//! is cleaned and cut before anything looks at it, is never a format or a part of a command, and makes nothing panic.

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
