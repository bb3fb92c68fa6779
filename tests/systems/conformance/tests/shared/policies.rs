//! Network policies while connections are open: which of them, and which new ones, pass with each proxy.
//!
//! Invariant: a program that enforces policies says when it does; before that nobody asks.

#[path = "policies/stage.rs"]
pub(crate) mod stage;
#[path = "policies/verdicts.rs"]
pub(crate) mod verdicts;
