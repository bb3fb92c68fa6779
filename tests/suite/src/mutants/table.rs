//! The table of mistakes, `tests/mutants.toml`.
//!
//! Invariant: a row's number is its place in the table, from 1 on, whichever rows are run.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::{SuiteError, at};

/// Where the table stands, below the repository.
pub(super) const TABLE: &str = "tests/mutants.toml";

/// What opens and closes the code that a mistake takes the place of, within the text around it.
pub(super) const MARKS: [char; 2] = ['⟦', '⟧'];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutants {
    /// What the copy has beside the mistakes, so that programs in C learn the number.
    #[serde(rename = "seam", default)]
    pub(super) seams: Vec<Seam>,
    #[serde(rename = "mutant")]
    pub(super) rows: Vec<Row>,
}

/// Code that is put into a file of the copy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seam {
    pub(super) file: String,
    /// The text after which it is put, which stands in the file once.
    pub(super) after: String,
    pub(super) insert: String,
}

/// One mistake.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) file: String,
    /// Code that stands in the file once, with marks around the expression or the statements that the mistake takes the
    /// place of.
    pub(super) code: String,
    pub(super) mistake: String,
    /// Tests as `package/target/test`, with `*` for any text. Of each of these, one has to fail.
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
    /// What stands before the marks, between them and after them.
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
