//! The table of verdicts where the program that enforces policies runs from the start.
//!
//! Invariant: each policy comes while connections are open.

use crate::policies::stage::Stage;
use crate::policies::verdicts::{HEADING, policies, rows_of};

/// Enforces each policy alone, and asks.
pub(crate) fn table(stage: &Stage) -> String {
    let rows = policies().map(|policy| {
        stage.hold();
        stage.enforce(policy);
        rows_of(stage, policy)
    });
    [HEADING.to_owned()].into_iter().chain(rows).collect()
}
