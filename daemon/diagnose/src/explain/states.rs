//! The one spelling of states, for tables, metrics and explanations.
//!
//! Invariant: every place that shows a state uses this word.

use holdfast_core::list::{Row, SlotState};
use holdfast_core::snapshot::Status;
use holdfast_core::words;

words! {
    /// The state of a backend in the list of a frontend.
    pub enum BackendState {
        /// It is ready.
        Active = "active",
        /// It is terminating, and no ready one is left.
        Draining = "draining",
        /// No slice lists it any more, and its list is held.
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
        /// No slice lists it any more, and its list is held.
        Held = "held",
        /// It is in no list.
        Unused = "unused",
    }
}

words! {
    /// Whether the maps hold what they should.
    pub enum WriteStatus {
        /// The write has not been tried yet.
        Pending = "pending",
        /// The maps match.
        Done = "done",
        /// The last write failed; it is retried.
        Error = "error",
    }
}

pub const fn backend_state(row: &Row) -> BackendState {
    match row.state() {
        _ if row.is_held() => BackendState::Held,
        SlotState::Active => BackendState::Active,
        SlotState::Draining => BackendState::Draining,
    }
}

pub fn endpoint_state(row: &Row) -> EndpointState {
    match backend_state(row) {
        _ if !row.is_chosen() => EndpointState::Unused,
        BackendState::Active => EndpointState::Active,
        BackendState::Draining => EndpointState::Draining,
        BackendState::Held => EndpointState::Held,
    }
}

pub fn write_status(status: &Status) -> (WriteStatus, Option<&str>) {
    match status {
        Status::Pending => (WriteStatus::Pending, None),
        Status::Done => (WriteStatus::Done, None),
        Status::Error(error) => (WriteStatus::Error, Some(error)),
    }
}
