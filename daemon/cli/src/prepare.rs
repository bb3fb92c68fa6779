//! `prepare`: creates the maps of client sockets before the daemon starts.
//!
//! Invariant: nothing here prevents the daemon's start. It reports a map that it cannot create, and the daemon creates
//! that itself; then clients' entries count against the daemon's memory limit.

use std::path::Path;

use holdfast_datapath::{PrepareOutcome, StartError};
use serde_json::json;

use super::report::Report;
use super::{Exit, cleanup};
use holdfast_config::DatapathKind;

/// Creates the maps if they are missing, and reports the result.
pub(super) fn prepare(config: Option<&Path>) -> Report {
    let done = match cleanup::load_config(config) {
        Ok(config) if config.datapath.kind == DatapathKind::Memory => Ok("nothing is in the kernel"),
        Ok(config) => prepare_maps(&config.datapath.bpffs).map_err(|error| error.to_string()),
        // The daemon creates nothing from such a file either: it ends with these errors.
        Err(errors) => {
            let why = errors.to_string();
            let bad = vec![format!("holdfast: {why}")];
            let json = json!({"prepared": false, "error": why});
            return Report { exit: Exit::Good, json, good: Vec::new(), bad };
        }
    };
    let good = done.iter().map(|said| format!("the map of sockets: {said}")).collect();
    let why = done.as_ref().err();
    let bad = why.iter().map(|why| format!("holdfast: {why}; the daemon makes it itself")).collect();
    Report { exit: Exit::Good, json: json!({"prepared": done.is_ok(), "error": why}), good, bad }
}

fn prepare_maps(bpffs: &Path) -> Result<&'static str, StartError> {
    match holdfast_datapath::prepare_socket_maps(bpffs) {
        Ok(PrepareOutcome::Created) => Ok("created"),
        Ok(PrepareOutcome::Existing) => Ok("exists already"),
        // A running daemon has them, and after a cleanup the next start calls this again.
        Err(StartError::Locked { .. }) => Ok("left unchanged, because a daemon runs or is being cleaned up"),
        Err(error) => Err(error),
    }
}
