//! The engine over the kernel's maps: scenarios, drift, and the records of refused clients. Needs root.
//!
//! Invariant: each test has its own maps and cgroup.

#[cfg(test)]
// Not yet by the tests' clock.
#[allow(clippy::disallowed_methods)]
#[path = "../../../daemon/datapath/tests/kernel/bed.rs"]
mod bed;
#[cfg(test)]
mod drift;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod scenarios;
