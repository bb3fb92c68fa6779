//! The table of verdicts where the program that enforces policies comes when connections are open.
//!
//! Invariant: nobody asks before the proxy knows that the program has come.

use crate::policies::stage::{Stage, policy_name};
use crate::policies::verdicts::{HEADING, policies, rows_of};

/// These policies alone, because the program comes and goes for each.
pub(crate) const LATER: [&str; 3] = ["nobody-to-servers", "clients-to-servers", "clients-to-servers-alone"];

/// What starts the program, waits until the proxy knows, and takes the program and its rules away.
pub(crate) struct Firewall<'a> {
    pub(crate) begin: &'a dyn Fn(),
    pub(crate) wait: &'a dyn Fn(),
    pub(crate) end: &'a dyn Fn(),
}

pub(crate) fn table(stage: &Stage, firewall: &Firewall<'_>) -> String {
    let rows = policies().filter(|policy| LATER.contains(&policy_name(policy))).map(|policy| {
        stage.hold();
        (firewall.begin)();
        stage.enforce(policy);
        (firewall.wait)();
        let rows = rows_of(stage, policy);
        (firewall.end)();
        rows
    });
    [HEADING.to_owned()].into_iter().chain(rows).collect()
}
