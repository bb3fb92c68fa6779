//! `check-config`: every error of a configuration in one run.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use super::Exit;
use crate::config::Config;

/// Errors and warnings go where errors go; a good configuration is said to be good.
pub(super) fn check(path: &Path, out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
    match Config::load(path) {
        Ok((_, warnings)) => {
            list(err, "warning", &warnings)?;
            writeln!(out, "{}: good", path.display())?;
            Ok(Exit::Good)
        }
        Err(refused) => {
            list(err, "warning", &refused.warnings)?;
            list(err, "error", &refused.errors)?;
            if refused.omitted > 0 {
                writeln!(err, "and {} more errors", refused.omitted)?;
            }
            Ok(Exit::Config)
        }
    }
}

fn list(err: &mut impl Write, kind: &str, problems: &[impl Display]) -> io::Result<()> {
    problems.iter().try_for_each(|problem| writeln!(err, "{kind}: {problem}"))
}
