//! What a run prints: lines, and below them on a terminal one line of progress that is rewritten.
//!
//! Invariant: the line of progress is never part of another line, and is gone when the run has ended.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// Clears the present line of a terminal.
const CLEAR: &str = "\r\x1b[K";

/// A longer line would be wrapped, and only its last part would be cleared.
const COLUMNS: usize = 79;

/// Whether the last line of the terminal is one of progress.
static SHOWN: Mutex<bool> = Mutex::new(false);

pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Prints a line; a closed pipe is no reason to stop.
pub(crate) fn say(line: &str) {
    print(&format!("{line}\n"), false);
}

/// Replaces the line of progress on a terminal.
pub(crate) fn show_progress(line: &str) {
    print(&line.chars().take(COLUMNS).collect::<String>(), true);
}

/// Removes the line of progress.
pub(crate) fn clear_progress() {
    print("", false);
}

/// Leaves the line of progress as it is, for a process that ends in the midst of a run.
pub(crate) fn end_progress() {
    if SHOWN.try_lock().is_ok_and(|shown| *shown) {
        let _ = writeln!(io::stdout());
    }
}

fn print(text: &str, is_progress: bool) {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = if *shown { CLEAR } else { "" };
    *shown = is_progress;
    let mut out = io::stdout();
    let _ = out.write_all(format!("{before}{text}").as_bytes()).and_then(|()| out.flush());
}
