//! `prepare`: makes, before the daemon starts, what sockets of clients fill.
//!
//! Invariant: nothing here keeps the daemon from its start. What cannot be made is said, and the daemon makes it itself;
//! then what clients do counts against its limit of memory, and that is all.

use std::path::Path;

use holdfast_datapath::{Prepared, StartError};
use serde_json::json;

use super::report::Report;
use super::{Exit, cleanup};
use crate::config::DatapathKind;

/// Makes it where it is missing, and says what became of it.
pub(super) fn prepare(config: Option<&Path>) -> Report {
    match cleanup::found(config) {
        Ok(config) if config.datapath.kind == DatapathKind::Memory => outcome(Ok("nothing is in the kernel")),
        Ok(config) => outcome(prepared(&config.datapath.bpffs).map_err(|error| error.to_string()).as_deref()),
        Err(errors) => outcome(Err(&errors.to_string())),
    }
}

fn prepared(bpffs: &Path) -> Result<&'static str, StartError> {
    match holdfast_datapath::prepare(bpffs) {
        Ok(Prepared::Made) => Ok("made"),
        Ok(Prepared::WereThere) => Ok("there already"),
        // A daemon that runs has it.
        Err(StartError::Locked { .. }) => Ok("there already, and a daemon runs"),
        Err(error) => Err(error),
    }
}

fn outcome(done: Result<&str, impl AsRef<str>>) -> Report {
    let (good, bad) = match &done {
        Ok(said) => (vec![format!("the map of sockets: {said}")], Vec::new()),
        Err(why) => (Vec::new(), vec![format!("holdfast: {}; the daemon makes it itself", why.as_ref())]),
    };
    let json = json!({"prepared": done.is_ok(), "error": done.err().map(|why| why.as_ref().to_owned())});
    Report { exit: Exit::Good, json, good, bad }
}
