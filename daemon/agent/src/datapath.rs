//! The clients that the datapath turned away, for readers.
//!
//! Invariant: this module never touches the maps. Refusals come over the programs' ring buffer; a reader finds the
//! names of services in the snapshot.

mod latest;
mod lines;
mod pace;
mod refusals;

pub use refusals::{LatestRefusals, RefusalLog};
pub use refusals::{Stage, device};
