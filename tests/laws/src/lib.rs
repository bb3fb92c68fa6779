//! Lives of the rules and ways to look at them, for tests of core and of everything above it: worlds made of facts,
//! simulation, witnesses between ops.
//!
//! Invariant: a seed or a count decides everything, and nothing here needs more than `holdfast-core`, so the laws of
//! the rules are checked without a kernel, a network or the shell.

pub mod observing;
pub mod simulation;
pub mod whole;
pub mod worlds;
