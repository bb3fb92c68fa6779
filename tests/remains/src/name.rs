//! The names of tests' resources.
//!
//! Invariant: a name has the process id and the start time of its creator, so that leftovers of a dead process differ
//! from the resources of a living one, even if the id is reused.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// A new name with the prefix.
pub fn new_name(prefix: &str) -> String {
    let pid = std::process::id();
    let began = began(pid).unwrap_or_default();
    format!("{prefix}{pid}-{began}-{}", WORLDS.fetch_add(1, Ordering::Relaxed))
}

/// Whether a name, or its beginning, belongs to a process that has died.
pub fn is_left_over(prefix: &str, name: &str) -> bool {
    let Some(maker) = name.strip_prefix(prefix) else { return false };
    let mut numbers = maker.split('-').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(since))) = (numbers.next(), numbers.next()) else { return false };
    u32::try_from(pid).map(began) != Ok(Some(since))
}

/// The start time of a process, in ticks since boot; `None` if there is no such process.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "holdfast-world-";

    #[test]
    fn only_resources_of_a_dead_process_are_leftovers() {
        let (mine, pid) = (new_name(PREFIX), std::process::id());
        assert!(!is_left_over(PREFIX, &mine), "{mine}");
        assert!(!is_left_over(PREFIX, &format!("{mine}-n1")), "a part of a living world");
        let again = format!("{PREFIX}{pid}-{}-0", began(pid).unwrap() + 1);
        assert!(is_left_over(PREFIX, &again), "the number was given again: {again}");
        assert!(is_left_over(PREFIX, &format!("{PREFIX}4194305-1-0-n1")), "no such process");
    }

    #[test]
    fn resources_without_a_tests_name_are_kept() {
        for name in ["system.slice", "holdfast-world-x", "holdfast-other-4194305-1-0", ""] {
            assert!(!is_left_over(PREFIX, name), "{name}");
        }
    }

    #[test]
    fn no_two_worlds_have_one_name() {
        assert_ne!(new_name(PREFIX), new_name(PREFIX));
    }
}
