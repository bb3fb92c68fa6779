//! `cleanup`: takes everything out of the kernel that a daemon left there.
//!
//! Invariant: programs go first, so no client meets programs without maps, and with `--drain` no earlier than clients
//! outside have ended what they have; a running daemon keeps what it has. The daemon is not asked; it does not run when
//! this makes sense.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::report::Report;
use super::{CONFIG_PATH, Exit};
use crate::config::{Config, ConfigErrors, Datapath};

/// Says what was removed, or what stands in the way.
pub(super) fn cleanup(config: Option<&Path>, drains: bool) -> Report {
    let pins = match pins(config) {
        Ok(pins) => pins,
        Err(errors) => {
            let texts: Vec<String> = errors.errors.iter().map(ToString::to_string).collect();
            let json = json!({"pins": null, "found": null, "removed": false, "flows": 0, "errors": texts});
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
    match if drains { holdfast_datapath::drain(&pins) } else { Ok(0) } {
        Ok(0) => remove(&pins),
        Ok(flows) => goes_on(&pins, flows),
        Err(error) => outcome(&pins, true, "", &[error]),
    }
}

fn remove(pins: &Path) -> Report {
    let removed = "removed; no connection is translated any more";
    match holdfast_datapath::cleanup(pins) {
        Ok(errors) => outcome(pins, true, removed, &errors),
        Err(error) => outcome(pins, true, removed, &[error]),
    }
}

/// Somebody is still there: no failure, and all the same not what was asked for.
fn goes_on(pins: &Path, flows: u64) -> Report {
    let pins = pins.display().to_string();
    let said = format!(
        "{pins}: {flows} flows of clients outside go on, and no other begins; processes of this node are not served any \
         more. Run this again until all is removed"
    );
    let json = json!({"pins": pins, "found": true, "removed": false, "flows": flows, "errors": []});
    Report { exit: Exit::Finding, json, good: vec![said], bad: Vec::new() }
}

fn outcome(pins: &Path, found: bool, good: &str, errors: &[impl Display]) -> Report {
    let (is_good, pins) = (errors.is_empty(), pins.display().to_string());
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Report {
        exit: if is_good { Exit::Good } else { Exit::Finding },
        json: json!({"pins": pins, "found": found, "removed": found && is_good, "flows": 0, "errors": texts}),
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
