//! The result of a command that needs no daemon: for a person, or for a program.
//!
//! Invariant: a program gets one JSON object on standard output and nothing elsewhere; a person reads successes there,
//! and problems on standard error.

use std::io::{self, Write};

use serde_json::Value;

use super::Exit;
use holdfast_api::form::Form;

/// Both formats of a result, one of them to write.
pub(super) struct Report {
    pub(super) exit: Exit,
    /// The JSON for a program.
    pub(super) json: Value,
    /// Successes, as lines.
    pub(super) good: Vec<String>,
    /// Problems, as lines.
    pub(super) bad: Vec<String>,
}

impl Report {
    pub(super) fn write(&self, output: Form, out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
        match output {
            Form::Json => writeln!(out, "{}", self.json)?,
            Form::Table | Form::Wide => {
                self.bad.iter().try_for_each(|line| writeln!(err, "{line}"))?;
                self.good.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
        }
        Ok(self.exit)
    }
}
