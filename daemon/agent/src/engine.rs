//! Runs the one writer, `holdfast_core::engine`: with the clock, the queues, and the channel for queries.
//!
//! Invariant: it decides when the engine steps, and never what a step does.

pub mod query;
pub mod run;
pub mod steps;

#[cfg(test)]
mod tests;
