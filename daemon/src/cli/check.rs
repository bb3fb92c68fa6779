//! `check-config`: every error of a configuration in one run.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use super::Exit;
use crate::apiserver::{Access, SetupError};
use crate::config::Config;

/// Errors and warnings go where errors go; a good configuration is said to be good.
pub(super) fn check(path: &Path, out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
    match Config::load(path) {
        Ok((config, warnings)) => {
            list(err, "warning", &warnings)?;
            if let Some(problem) = access_problem(&config) {
                list(err, "error", &[format!("{}: {problem}", path.display())])?;
                return Ok(Exit::Config);
            }
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

/// What a kubeconfig says that nobody can follow. Files that are not there may come, and are no problem.
fn access_problem(config: &Config) -> Option<SetupError> {
    if !config.kubernetes.enabled {
        return None;
    }
    Access::check(&config.apiserver).err()
}

fn list(err: &mut impl Write, kind: &str, problems: &[impl Display]) -> io::Result<()> {
    problems.iter().try_for_each(|problem| writeln!(err, "{kind}: {problem}"))
}
