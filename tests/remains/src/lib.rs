//! Leftovers of tests whose process has died: how the next process recognises them, and how it removes a leftover
//! cgroup.
//!
//! Invariant: resources of a living process, or without a test's name, are never taken for leftovers.

mod cgroup;
mod name;

pub use self::cgroup::{folders_in, remove_cgroup};
pub use self::name::{is_left_over, new_name};
