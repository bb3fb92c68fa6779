//! What a command that asks no daemon found or did: for a person, or for a program.
//!
//! Invariant: a program gets one JSON object on standard output and nothing elsewhere; a person reads what went well
//! there, and what did not on standard error.

use std::io::{self, Write};

use serde_json::Value;

use super::Exit;
use holdfast_api::form::Form;

/// Both forms of an outcome, of which one is written.
pub(super) struct Report {
    pub(super) exit: Exit,
    /// What a program reads instead of the lines.
    pub(super) json: Value,
    /// What went well, as lines.
    pub(super) good: Vec<String>,
    /// What did not go well, as lines.
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
