//! A person at the machines of a cluster: types lines, and waits for what they bring about.
//!
//! Invariant: a line that fails is shown with all that it said.

use std::time::{Duration, Instant};

use holdfast_conformance::Cluster;

/// A busy machine with two processors starts pods slowly.
const SOON: Duration = Duration::from_secs(120);

#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Types a line into a shell of a machine.
#[track_caller]
pub(crate) fn typed(cluster: &Cluster, machine: &str, line: &str) -> String {
    let said = cluster.on(machine).unwrap().run(&["sh", "-c", line]).unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{machine}: {line}: {out}{err}");
    out.into_owned()
}
