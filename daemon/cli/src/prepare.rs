//! `prepare`: makes, before the daemon starts, what sockets of clients fill.
//!
//! Invariant: nothing here keeps the daemon from its start. What cannot be made is said, and the daemon makes it
//! itself; then what clients do counts against its limit of memory, and that is all.

use std::path::Path;

use holdfast_datapath::{PrepareOutcome, StartError};
use serde_json::json;

use super::report::Report;
use super::{Exit, cleanup};
use holdfast_config::DatapathKind;

/// Makes it where it is missing, and says what became of it.
pub(super) fn prepare(config: Option<&Path>) -> Report {
    let done = match cleanup::load_config(config) {
        Ok(config) if config.datapath.kind == DatapathKind::Memory => Ok("nothing is in the kernel"),
        Ok(config) => prepare_maps(&config.datapath.bpffs).map_err(|error| error.to_string()),
        // The daemon makes nothing from such a file either: it ends with that.
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
        Ok(PrepareOutcome::Created) => Ok("made"),
        Ok(PrepareOutcome::Existing) => Ok("there already"),
        // A daemon that runs has it, and after a cleanup the next start comes here again.
        Err(StartError::Locked { .. }) => Ok("left alone, for a daemon runs or is cleaned up"),
        Err(error) => Err(error),
    }
}
