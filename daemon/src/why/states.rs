//! The one spelling of states, for tables, metrics and explanations, and which verdict is worse for a client.
//!
//! Invariant: every place that shows a state shows this word. Deliberately absent: words that core has for its own types.

use holdfast_core::list::{Row, SlotState};
use holdfast_core::snapshot::{Status, Verdict};

/// The one spelling of a chosen row's state.
pub(crate) const fn chosen_state(row: &Row) -> &'static str {
    match row.state() {
        _ if row.is_held() => "held",
        SlotState::Active => "active",
        SlotState::Draining => "draining",
    }
}

/// The one spelling of a status, and the error if it is one.
pub(crate) fn status(status: &Status) -> (&'static str, Option<&str>) {
    match status {
        Status::Pending => ("pending", None),
        Status::Done => ("done", None),
        Status::Error(error) => ("error", Some(error)),
    }
}

/// The one spelling of an endpoint's state.
pub(crate) fn state(row: &Row) -> &'static str {
    if row.is_chosen() { chosen_state(row) } else { "unused" }
}

/// How much a client of the frontend is worse off; what is meant to be comes before what is not.
pub(crate) const fn severity(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Serving => 0,
        Verdict::Bypassed => 1,
        Verdict::Draining => 2,
        Verdict::Held => 3,
        Verdict::Conflict => 4,
        Verdict::Unprogrammed => 5,
        Verdict::Passing => 6,
        Verdict::Dropping => 7,
        Verdict::Refusing => 8,
    }
}
