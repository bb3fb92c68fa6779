//! How many lines the journal gets: more than people read in a moment, fewer than it would drop by itself.
//!
//! Invariant: what is left out is counted by kind, and every count is told once. Services have no limits of their own;
//! what is left out here is still in the history.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Lines of level info and below in one window. With [`LOUD_MAX`] this is less than the 10,000 lines in 30 s after
/// which journald drops what a service says, warnings included.
pub(super) const LINES_MAX: u32 = 2_500;

/// Warnings and errors in one window: a flood of others must not drown them.
pub(super) const LOUD_MAX: u32 = 500;

/// How long a window is.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Kinds of lines that are counted apart; there are fewer in the program.
const KINDS_MAX: usize = 64;

/// The count of this window.
#[derive(Debug)]
pub(super) struct Flood {
    since: Instant,
    lines: u32,
    loud: u32,
    left_out: BTreeMap<String, u64>,
}

impl Flood {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, lines: 0, loud: 0, left_out: BTreeMap::new() }
    }

    /// Whether this line is written; if not, it is counted.
    pub(super) fn admits(&mut self, now: Instant, is_loud: bool, kind: &str) -> bool {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.lines, self.loud) = (now, 0, 0);
        }
        let (count, most) = if is_loud { (&mut self.loud, LOUD_MAX) } else { (&mut self.lines, LINES_MAX) };
        *count = count.saturating_add(1);
        if *count <= most {
            return true;
        }
        self.count(kind);
        false
    }

    fn count(&mut self, kind: &str) {
        let is_known = self.left_out.contains_key(kind) || self.left_out.len() < KINDS_MAX;
        let kind = if is_known { kind } else { "others" };
        *self.left_out.entry(kind.to_owned()).or_default() += 1;
    }

    /// What was left out since this was asked last: how many, and of which kinds.
    pub(super) fn take(&mut self) -> Option<(u64, String)> {
        let left_out = std::mem::take(&mut self.left_out);
        let count = left_out.values().sum();
        let mut kinds = String::new();
        for (kind, count) in &left_out {
            // Writing to a string cannot fail.
            let _ = write!(kinds, "{}{kind}: {count}", if kinds.is_empty() { "" } else { ", " });
        }
        (count > 0).then_some((count, kinds))
    }
}
