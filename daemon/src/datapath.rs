//! What the datapath says of itself, for readers: its state, and the clients that it turned away.
//!
//! Invariant: this module never touches the maps. The engine publishes a view, the programs' ring buffer gives the
//! refusals. A reader finds the names of services in the snapshot.

mod latest;
mod lines;
mod pace;
mod refusals;

pub use refusals::{LatestRefusals, RefusalLog};
pub(crate) use refusals::{Stage, device};
