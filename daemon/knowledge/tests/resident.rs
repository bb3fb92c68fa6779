//! The memory of the knowledge, measured over a whole process; nothing else runs in it.
#![cfg(test)]

use holdfast_knowledge::Knowledge;

/// Kilobytes, read and indexed; it took 1,400 when this was written.
const RESIDENT_KB_MAX: i64 = 5_000;

fn resident_kb() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn the_knowledge_is_small_in_memory_and_read_on_first_use() {
    let before = resident_kb();
    assert!(!Knowledge::built_in().reasons().is_empty());
    let taken = resident_kb() - before;
    assert!(taken < RESIDENT_KB_MAX, "{taken} kB");
}
