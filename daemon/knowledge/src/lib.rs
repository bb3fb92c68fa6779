//! What Kubernetes says of itself in Events, as knowledge: what each reason means, what is behind a message, what helps
//! and how much harm that can do. The knowledge is data, in `knowledge/*.toml`; this crate reads it and applies it.
//!
//! Invariant: pure: no file, no socket, no clock; time is an argument. Whatever an Event says is text of a stranger: it
//! is cleaned and cut before anything looks at it, is never a format or a part of a command, and makes nothing panic.

mod entry;
mod event;
mod fault;
mod fill;
#[cfg(any(test, feature = "heard"))]
pub mod heard;
mod index;
mod judge;
mod keywords;
pub mod limits;
mod read;
mod recognise;
mod rfc3339;
mod standing;
mod store;
mod text;

#[cfg(test)]
mod tests;

pub use entry::{
    Belief, Cause, Emitted, EventReason, EventType, Impact, Never, RefusedWrite, Remedy, Retry, Risk,
    Severity, Step, Subject, Symptom, When,
};
pub use event::{ClusterEvent, ObjectRef};
pub use fault::Fault;
pub use fill::Values;
pub use recognise::{Advice, Confidence, Recognised};
pub use rfc3339::Time;
pub use standing::{Closed, Present, Standing};
pub use store::Knowledge;
