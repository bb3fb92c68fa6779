//! What a world made by a test leaves on the machine when its process dies: how the next process recognises it, and
//! how a cgroup among it is removed.
//!
//! Invariant: what a living process uses is never taken for a remainder, nor is anything that no test made.

mod cgroup;
mod name;

pub use self::cgroup::{folders_in, remove_cgroup};
pub use self::name::{is_left_over, new_name};
