//! Lives of the rules and ways to look at them, for tests of core and of everything above it: worlds made of facts,
//! scenarios, simulation, witnesses between ops.
//!
//! Invariant: a seed or a count decides everything, and nothing here needs more than the rules and the objects that
//! they are about, so the laws are checked without a kernel, a network or the shell.

pub mod events;
pub mod faulty;
pub mod hostile;
pub mod observing;
pub mod scenario;
pub mod simulation;
pub mod whole;
pub mod worlds;
