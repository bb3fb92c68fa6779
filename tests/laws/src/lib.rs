//! Simulations of the rules and ways to observe them, for tests of core and everything above it: generated worlds,
//! scenarios, simulations, witnesses between ops.
//!
//! Invariant: a seed or a count decides everything. The crate needs only the rules and their objects, so the laws are
//! checked without a kernel, a network or the daemon around them.

pub mod events;
pub mod faulty;
pub mod hostile;
pub mod observing;
pub mod scenario;
pub mod simulation;
pub mod whole;
pub mod worlds;
