//! Text that a hostile client writes, and a check of output that contains it.
//!
//! Invariant: all output with others' texts is checked with the same text and the same function.

/// Starts a forged line in every possible form, and hides and reverses the rest.
pub const HOSTILE: &str =
    "x\nFORGED\r\nFORGED\u{85}FORGED\u{2028}FORGED\u{1b}[2J\u{9b}1mFORGED\u{202e}\u{2066}\u{200b}z";

/// Checks that the text has no unfit characters (`is_unfit`), and that each of its lines starts with our own text.
#[track_caller]
pub fn check_lines(what: &str, text: &str, is_unfit: fn(char) -> bool) {
    for line in text.lines() {
        assert!(!line.chars().any(is_unfit), "{what}: {line:?}");
        assert!(!line.starts_with("FORGED"), "{what}: {line:?}");
    }
}
