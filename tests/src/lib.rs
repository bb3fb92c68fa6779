//! Shared code of tests and benchmarks: beds, fakes, real peers, fuzzing and measurements.
//!
//! Invariant: everything here is deterministic; a seed or a count decides. Tests make the assertions.

// Not yet by the tests' clock.
#[allow(clippy::disallowed_methods)]
pub mod bed;
pub mod fake;
pub mod figures;
pub mod formats;
pub mod fuzz;
pub mod host;
pub mod memory;
// Not yet by the tests' clock.
#[allow(clippy::disallowed_methods)]
pub mod packets;
pub mod peers;
pub mod processor;
pub mod program;
pub mod readings;
pub mod size;
// Not yet by the tests' clock.
#[allow(clippy::disallowed_methods)]
pub mod soak;
pub mod whole_daemon;
