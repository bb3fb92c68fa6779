//! `prepare`: creates the maps of client sockets before the daemon starts, or says that there is nothing to start for.
//!
//! Invariant: nothing here prevents the daemon's start. It reports a map that it cannot create, and the daemon creates
//! that itself; then clients' entries count against the daemon's memory limit.

use std::path::Path;

use holdfast_datapath::{PrepareOutcome, StartError};
use serde_json::json;

use super::report::Report;
use super::{CONFIG_PATH, Exit, cleanup};
use holdfast_config::{DatapathKind, NOTHING_CONFIGURED};

/// Creates the maps, or with `condition` creates nothing and reports whether the daemon has something to do.
pub(super) fn run_prepare(config: Option<&Path>, condition: bool) -> Report {
    if condition { check_condition(config) } else { prepare(config) }
}

/// Creates the maps if they are missing, and reports the result.
fn prepare(config: Option<&Path>) -> Report {
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

/// Reports whether the daemon has something to do: services to serve, or programs of a former one to look after. A bad
/// configuration counts too, because a start says what is wrong with it.
fn check_condition(config: Option<&Path>) -> Report {
    let idle =
        cleanup::load_config(config).ok().filter(|it| !it.has_services() && !has_pins(&it.datapath.bpffs));
    let file = config.unwrap_or(Path::new(CONFIG_PATH)).display();
    let bad = idle.iter().map(|_| {
        format!("holdfast: nothing is configured, so nothing is started. {file}: {NOTHING_CONFIGURED}; see man holdfast.toml")
    });
    Report {
        exit: if idle.is_some() { Exit::Finding } else { Exit::Good },
        json: json!({"configured": idle.is_none()}),
        good: Vec::new(),
        bad: bad.collect(),
    }
}

/// Whether a former daemon left something in the kernel.
fn has_pins(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, pins: bool, expected: Exit) {
        let folder = tempfile::tempdir().unwrap();
        let (file, bpffs) = (folder.path().join("holdfast.toml"), folder.path().join("pins"));
        std::fs::create_dir(&bpffs).unwrap();
        if pins {
            std::fs::write(bpffs.join("maps"), "").unwrap();
        }
        std::fs::write(&file, format!("{text}[datapath]\nbpffs = {bpffs:?}\n")).unwrap();
        let report = check_condition(Some(&file));
        assert_eq!(report.exit, expected, "{text}");
        assert_eq!(report.bad.len(), usize::from(expected == Exit::Finding), "{:?}", report.bad);
    }

    #[test]
    fn a_daemon_without_anything_to_serve_is_not_started() {
        check("", false, Exit::Finding);
        check("[admin]\nlisten = \"127.0.0.1:9890\"\n", false, Exit::Finding);
        // It looks after what a former one serves, until an operator cleans up.
        check("", true, Exit::Good);
        check("[manifests]\npath = \"manifests\"\n", false, Exit::Good);
        // The start says what is wrong.
        check("[nodes]\n", false, Exit::Good);
    }
}
