//! The whole daemon with the kernel's datapath: what an operator sees of a client that was turned away.

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, BedError, Place};
use serde_json::Value;

const NOBODY: &str =
    "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.20:80\"]\nbackends = []\non_empty = \"refuse\"\n";

/// What `holdfast refusals` says of a process; nothing while it says nothing.
fn refusal_of(daemon: &Daemon<'_>, process: u32) -> Result<Option<Value>, BedError> {
    let answer = daemon.ask(&["refusals"])?;
    let mut rows = answer["refusals"].as_array().into_iter().flatten();
    Ok(rows.find(|row| row["pid"] == process).cloned())
}

#[test]
fn kernel_holdfast_refusals_names_curl() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, NOBODY).unwrap();
    daemon.start().unwrap();
    let mut curl = bed.command(Place::NODE, "curl").unwrap();
    let mut curl = curl.args(["-s", "--max-time", "10", "http://10.96.0.20/"]).spawn().unwrap();
    assert_eq!(curl.wait().unwrap().code(), Some(7), "curl could not connect");
    daemon.wait_until(|it| Ok(refusal_of(it, curl.id())?.is_some())).unwrap();
    let row = refusal_of(&daemon, curl.id()).unwrap().unwrap();
    for (field, expected) in
        [("comm", "curl"), ("address", "10.96.0.20"), ("service", "static/web"), ("verdict", "refused")]
    {
        assert_eq!(row[field], expected, "{field} of {row}");
    }
}
