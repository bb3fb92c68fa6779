//! Network policies while connections are open: which of them, and which new ones, pass with each proxy.
//!
//! Invariant: a program that enforces policies says when it does; before that nobody asks.

mod stage;
mod verdicts;

pub(crate) use self::stage::Stage;
pub(crate) use self::verdicts::{compare, table, table_of, within};
