//! The engine over the kernel's maps: scenarios, drift, and what refused clients are told. Needs root.
//!
//! Invariant: each test has maps and a cgroup of its own.

#[cfg(test)]
#[path = "../../../daemon/datapath/tests/kernel/bed.rs"]
mod bed;
#[cfg(test)]
mod drift;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod scenarios;
