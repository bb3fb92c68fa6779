//! `cleanup`: takes everything out of the kernel that a daemon left there.
//!
//! Invariant: programs go first, so no client meets programs without maps; a running daemon keeps what it has. The
//! daemon is not asked; it does not run when this makes sense.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::report::Report;
use super::{CONFIG_PATH, Exit};
use crate::config::{Config, ConfigErrors, Datapath};

/// Says what was removed, or what stands in the way.
pub(super) fn cleanup(config: Option<&Path>) -> Report {
    let pins = match pins(config) {
        Ok(pins) => pins,
        Err(errors) => {
            let texts: Vec<String> = errors.errors.iter().map(ToString::to_string).collect();
            let json = json!({"pins": null, "found": null, "removed": false, "errors": texts});
            return Report {
                exit: Exit::Config,
                json,
                good: Vec::new(),
                bad: vec![format!("holdfast: {errors}")],
            };
        }
    };
    if !pins.exists() {
        return outcome(&pins, false, "nothing is there", &[] as &[String]);
    }
    let removed = "removed; no connection is translated any more";
    match holdfast_datapath::cleanup(&pins) {
        Ok(errors) => outcome(&pins, true, removed, &errors),
        Err(error) => outcome(&pins, true, removed, &[error]),
    }
}

fn outcome(pins: &Path, found: bool, good: &str, errors: &[impl Display]) -> Report {
    let (is_good, pins) = (errors.is_empty(), pins.display().to_string());
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Report {
        exit: if is_good { Exit::Good } else { Exit::Finding },
        json: json!({"pins": pins, "found": found, "removed": found && is_good, "errors": texts}),
        good: if is_good { vec![format!("{pins}: {good}")] } else { Vec::new() },
        bad: texts.iter().map(|error| format!("holdfast: {error}")).collect(),
    }
}

/// Where the configuration has them. One that is not where it usually is says nothing: the package may be gone already.
fn pins(config: Option<&Path>) -> Result<PathBuf, ConfigErrors> {
    let usual = Path::new(CONFIG_PATH);
    match config.or_else(|| usual.exists().then_some(usual)) {
        Some(path) => Config::load(path).map(|(config, _)| config.datapath.bpffs),
        None => Ok(Datapath::default().bpffs),
    }
}
