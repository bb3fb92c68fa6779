//! What tests and benchmarks of the whole share: worlds made of facts, and ways to look at what became of them.
//!
//! Invariant: everything here is deterministic; a seed or a count decides. Assertions belong to the tests.

pub mod bed;
pub mod fake;
pub mod figures;
pub mod fuzz;
pub mod host;
pub mod memory;
pub mod packets;
pub mod patience;
pub mod peers;
pub mod processor;
pub mod program;
pub mod readings;
pub mod size;
pub mod soak;
pub mod whole_daemon;
