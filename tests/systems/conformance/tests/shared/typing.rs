//! A user at the machines of a cluster: runs lines, and waits for their effects.
//!
//! Invariant: a failed line is shown with its output.

use std::time::Duration;

use holdfast_conformance::Cluster;
use holdfast_fixtures::clock::{Deadline, pause};

/// A busy machine with two processors starts pods slowly, so this is more than other tests wait.
const SOON: Duration = Duration::from_secs(300);

#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Deadline::after(SOON);
    while !is_so() {
        assert!(!end.is_over(), "never: {what}");
        pause(Duration::from_millis(200));
    }
}

/// Runs a line in a machine's shell.
#[track_caller]
pub(crate) fn typed(cluster: &Cluster, machine: &str, line: &str) -> String {
    let said = cluster.on(machine).unwrap().run(&["sh", "-c", line]).unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{machine}: {line}: {out}{err}");
    out.into_owned()
}
