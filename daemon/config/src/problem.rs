//! An error of a configuration, and its place.
//!
//! Invariant: a [`Problem`] is complete in one line. The operator needs neither the file nor the manual to see which
//! key to change and to what.

use std::fmt;

/// A line and a column, both counted from 1; the column counts characters, as editors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The file as a whole, or its top level.
    File,
    /// A table, by the words of its header: shown as `[admin]`.
    Table(String),
    /// A key or an item of a list: shown as `service[1].backends[0]:`.
    Key(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Table(path) => write!(f, "[{path}] "),
            Self::Key(path) => write!(f, "{path}: "),
        }
    }
}

/// One error: the place, the value found, and the legal ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file as the caller named it.
    pub file: String,
    /// Where in the file; absent if the file is unreadable.
    pub position: Option<Position>,
    pub place: Subject,
    /// The path of the block that has the place, and the block's name, if it has one.
    pub block: Option<(String, String)>,
    /// The error, and what is legal.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(at) => write!(f, "{}:{}:{}: ", self.file, at.line, at.column)?,
            None => write!(f, "{}: ", self.file)?,
        }
        match (&self.place, &self.block) {
            (Subject::Key(path), Some((block, name))) => {
                write!(f, "{}{}", describe_in_block(path, block, name), self.message)
            }
            (place, _) => write!(f, "{place}{}", self.message),
        }
    }
}

/// A place by its block's name: people do not count blocks.
fn describe_in_block(path: &str, block: &str, name: &str) -> String {
    let kind = block.split('[').next().unwrap_or(block);
    match path.strip_prefix(block).and_then(|rest| rest.strip_prefix('.')) {
        Some(key) => format!("{kind} {name:?}: {key}: "),
        None => format!("{kind} {name:?}: "),
    }
}

/// A rejected configuration, with every error at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// The errors in the order of the file; never empty.
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// How many more errors there are than the report holds.
    pub omitted: usize,
    /// Whether the file may be fine: it could not be read at this moment.
    pub is_transient: bool,
}

impl ConfigErrors {
    /// The exit code of a program with a bad configuration: `EX_CONFIG` of sysexits(3).
    pub const EXIT_CODE: u8 = 78;

    /// A report of one problem with the file itself.
    pub(super) fn for_file(file: &str, position: Option<Position>, message: String) -> Self {
        let problem = Problem { file: file.to_owned(), position, place: Subject::File, block: None, message };
        Self { errors: vec![problem], warnings: Vec::new(), omitted: 0, is_transient: false }
    }
}

/// One line per error, without a line end after the last.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        match self.omitted {
            0 => Ok(()),
            more => write!(f, "\nand {more} more errors, not shown"),
        }
    }
}
