//! Settings of a file that a block does not have.
//!
//! Invariant: a note is complete by itself: the content of the line, and what to do about it, if anything.

use std::fmt;

/// The most notes to keep; more are counted. It is more than a person reads before the first change.
const NOTES_MAX: usize = 1_000;

/// One setting that no block has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The line of the file, from 1 on.
    pub line: usize,
    /// The setting, and its fate.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

#[derive(Debug, Default)]
pub(super) struct Notes {
    all: Vec<Note>,
    omitted: usize,
}

impl Notes {
    pub(super) fn add(&mut self, line: usize, what: impl Into<String>) {
        if self.all.len() < NOTES_MAX {
            self.all.push(Note { line, message: what.into() });
        } else {
            self.omitted += 1;
        }
    }

    /// Notes a word of a line without a counterpart.
    pub(super) fn add_unsupported(&mut self, line: usize, word: &str) {
        self.add(line, format!("{} has no counterpart", quote_excerpt(word)));
    }

    pub(super) fn into_sorted(mut self) -> Vec<Note> {
        self.all.sort_by_key(|note| note.line);
        if self.omitted > 0 {
            let line = self.all.last().map_or(0, |note| note.line);
            self.all.push(Note { line, message: format!("and {} more notes", self.omitted) });
        }
        self.all
    }
}

/// The most characters of a file's words in a note.
const EXCERPT_MAX: usize = 60;

/// A text of the file in quotes, on one line and cut if it is long: a terminal shows it, and a stranger may have
/// written it.
pub(super) fn quote_excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_MAX) {
        Some((cut, _)) => format!("{:?}...", text.get(..cut).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
