//! `check-config`: every error of a configuration in one run.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use super::Exit;

/// What reading a configuration gave, already in words: one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What makes it bad.
    pub errors: Vec<String>,
    /// What is worth a look.
    pub warnings: Vec<String>,
}

/// Errors and warnings go where errors go; a good configuration is said to be good.
pub(super) fn report(
    file: &Path,
    checked: &Checked,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    lines(err, "warning", &checked.warnings)?;
    lines(err, "error", &checked.errors)?;
    if !checked.errors.is_empty() {
        return Ok(Exit::Config);
    }
    writeln!(out, "{}: good", file.display())?;
    Ok(Exit::Good)
}

fn lines(err: &mut impl Write, kind: &str, lines: &[impl Display]) -> io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(err, "{kind}: {line}"))
}
