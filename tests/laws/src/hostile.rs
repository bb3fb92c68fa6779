//! What a hostile client writes, and how a reader would notice that it got through.
//!
//! Invariant: whatever shows texts of others is looked at with the same text and the same eyes.

/// A line of its own, by each way to begin one, and what hides and turns the rest.
pub const HOSTILE: &str =
    "x\nFORGED\r\nFORGED\u{85}FORGED\u{2028}FORGED\u{1b}[2J\u{9b}1mFORGED\u{202e}\u{2066}\u{200b}z";

/// Whether nothing in the text is more than it seems (`is_unfit` tells of each character), and each of its lines begins
/// with what is ours.
#[track_caller]
pub fn check_lines(what: &str, text: &str, is_unfit: fn(char) -> bool) {
    for line in text.lines() {
        assert!(!line.chars().any(is_unfit), "{what}: {line:?}");
        assert!(!line.starts_with("FORGED"), "{what}: {line:?}");
    }
}
