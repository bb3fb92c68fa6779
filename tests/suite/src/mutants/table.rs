//! The table of mutants, `tests/mutants.toml`.
//!
//! Invariant: a row's number is its position in the table, from 1, whichever rows run.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::{SuiteError, at};

/// The table's path in the repository.
pub(super) const TABLE: &str = "tests/mutants.toml";

/// The marks around the replaced code in a row's text.
pub(super) const MARKS: [char; 2] = ['⟦', '⟧'];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutants {
    /// Additions to the copy through which C programs read the number.
    #[serde(rename = "seam", default)]
    pub(super) seams: Vec<Seam>,
    #[serde(rename = "mutant")]
    pub(super) rows: Vec<Row>,
}

/// Code that is inserted into a file of the copy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seam {
    pub(super) file: String,
    /// The text before it, which occurs once in the file.
    pub(super) after: String,
    pub(super) insert: String,
}

/// One mutant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) file: String,
    /// Code that occurs once in the file, with marks around the replaced expression or statements.
    pub(super) code: String,
    pub(super) mistake: String,
    /// Tests as `package/target/test`, with `*` for any text. For each of these, one test must fail.
    pub(super) tests: Vec<String>,
}

impl Mutants {
    pub(super) fn read(root: &Path) -> Result<Self, SuiteError> {
        let path = root.join(TABLE);
        let text = fs::read_to_string(&path).map_err(at("read", &path))?;
        let read: Self =
            toml::from_str(&text).map_err(|source| SuiteError::Table { path, source: Box::new(source) })?;
        match read.rows.iter().find(|row| row.tests.is_empty() || row.parts().is_none()) {
            Some(row) => {
                let why = format!("{}: {} needs tests, and one pair of marks", row.file, row.code);
                Err(SuiteError::Mutant(why))
            }
            None => Ok(read),
        }
    }

    /// Each row with its number.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, &Row)> {
        (1..).zip(&self.rows)
    }
}

impl Row {
    /// The text before the marks, between them and after them.
    pub(super) fn parts(&self) -> Option<[&str; 3]> {
        let [open, close] = MARKS;
        let (before, rest) = self.code.split_once(open)?;
        let (original, after) = rest.split_once(close)?;
        let has_more = after.contains(MARKS) || original.contains(MARKS);
        (!has_more).then_some([before, original, after])
    }

    pub(super) fn original(&self) -> &str {
        self.parts().map_or("", |[_, original, _]| original)
    }
}
