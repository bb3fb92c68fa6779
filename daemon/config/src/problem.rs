//! An error of a configuration, and its place.
//!
//! Invariant: a [`Problem`] is complete in one line. The operator needs neither the file nor the manual to see which
//! key to change and to what. It is shown without the values of the file, because a value may be a password and not
//! only the file's readers see the log and the answers of the API. Only [`Problem::with_values`] has them, for
//! `check-config`, which reads the file as its caller.

use std::fmt;

/// Marks around a value of the file in a message. `quote` escapes both, so no value has them.
const VALUE_STARTS: char = '\u{2}';
const VALUE_ENDS: char = '\u{3}';

/// What stands for a value where it is not shown.
const HIDDEN_VALUE: &str = "***";

/// A value of the file for a message, which [`Message`] can hide.
pub(super) fn mark_value(shown: impl fmt::Display) -> String {
    format!("{VALUE_STARTS}{shown}{VALUE_ENDS}")
}

/// A sentence that may repeat values of the file. They are hidden unless the caller asks for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message(String);

impl Message {
    pub fn with_values(&self) -> String {
        self.0.replace([VALUE_STARTS, VALUE_ENDS], "")
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Without values.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.split([VALUE_STARTS, VALUE_ENDS]);
        f.write_str(parts.next().unwrap_or_default())?;
        while parts.next().is_some() {
            write!(f, "{HIDDEN_VALUE}{}", parts.next().unwrap_or_default())?;
        }
        Ok(())
    }
}

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
    pub message: Message,
}

impl Problem {
    /// The line with the values of the file, for a reader of the file.
    pub fn with_values(&self) -> String {
        let mut line = String::new();
        // A string takes everything.
        let _ = self.write_place(&mut line);
        line + &self.message.with_values()
    }

    fn write_place(&self, out: &mut impl fmt::Write) -> fmt::Result {
        match self.position {
            Some(at) => write!(out, "{}:{}:{}: ", self.file, at.line, at.column)?,
            None => write!(out, "{}: ", self.file)?,
        }
        match (&self.place, &self.block) {
            (Subject::Key(path), Some((block, name))) => out.write_str(&describe_in_block(path, block, name)),
            (place, _) => write!(out, "{place}"),
        }
    }
}

/// Without the values of the file.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_place(f)?;
        write!(f, "{}", self.message)
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
        let problem = Problem {
            file: file.to_owned(),
            position,
            place: Subject::File,
            block: None,
            message: message.into(),
        };
        Self { errors: vec![problem], warnings: Vec::new(), omitted: 0, is_transient: false }
    }
}

/// One line per error, without a line end after the last, and without the values of the file.
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
