//! Faults in an operator's file, reported so that they can be found and fixed.

use std::fmt;

use crate::limits::SENTENCE_BYTES_MAX;
use crate::text::clean;

/// One fault: its place, its entry, what is wrong and what to do. An entry with a fault is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub file: String,
    /// The line of the file, counted from 1.
    pub line: Option<usize>,
    /// The entry's id, if it is readable.
    pub id: Option<String>,
    pub message: String,
}

impl Fault {
    /// A fault of the file itself, or of a part outside any entry.
    pub fn for_file(file: &str, line: Option<usize>, message: &str) -> Self {
        Self::for_entry(file, line, None, message)
    }

    pub(crate) fn for_entry(file: &str, line: Option<usize>, id: Option<&str>, message: &str) -> Self {
        let shown = |text: &str| clean(text, SENTENCE_BYTES_MAX);
        Self { file: shown(file), line, id: id.map(shown), message: shown(message) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(id) = &self.id {
            write!(f, ": {id}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Fault {}
