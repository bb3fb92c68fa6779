//! The one spelling of states, for tables, metrics and explanations.
//!
//! Invariant: every place that shows a state shows this word.

use holdfast_core::list::{Row, SlotState};
use holdfast_core::snapshot::Status;
use holdfast_core::words;

words! {
    /// The state of a backend in the list of a frontend.
    pub enum ChosenState {
        /// It is ready.
        Active = "active",
        /// It is terminating, and no ready one is left.
        Draining = "draining",
        /// No slice lists it any more, and the list is kept.
        Held = "held",
    }
}

words! {
    /// How an endpoint is used.
    pub enum EndpointState {
        /// It is ready, and in a list.
        Active = "active",
        /// It is terminating, and in a list because no ready one is left.
        Draining = "draining",
        /// No slice lists it any more, and the list that has it is kept.
        Held = "held",
        /// It is in no list.
        Unused = "unused",
    }
}

words! {
    /// Whether the maps hold what they should.
    pub enum WriteStatus {
        /// The write was not tried yet.
        Pending = "pending",
        /// The maps hold what they should.
        Done = "done",
        /// The last try failed; it is tried again.
        Error = "error",
    }
}

/// The state of a row that is in a list.
pub const fn chosen_state(row: &Row) -> ChosenState {
    match row.state() {
        _ if row.is_held() => ChosenState::Held,
        SlotState::Active => ChosenState::Active,
        SlotState::Draining => ChosenState::Draining,
    }
}

/// The state of any row.
pub fn state(row: &Row) -> EndpointState {
    match chosen_state(row) {
        _ if !row.is_chosen() => EndpointState::Unused,
        ChosenState::Active => EndpointState::Active,
        ChosenState::Draining => EndpointState::Draining,
        ChosenState::Held => EndpointState::Held,
    }
}

/// What a status is, and the error if it is one.
pub fn status(status: &Status) -> (WriteStatus, Option<&str>) {
    match status {
        Status::Pending => (WriteStatus::Pending, None),
        Status::Done => (WriteStatus::Done, None),
        Status::Error(error) => (WriteStatus::Error, Some(error)),
    }
}
