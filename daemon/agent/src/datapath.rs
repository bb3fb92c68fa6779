//! The clients that the datapath turned away, for readers.
//!
//! Invariant: this module never touches the maps. Refusals come over the programs' ring buffer; a reader finds the
//! names of services in the snapshot.

mod line_limiter;
mod pace;
mod recent_refusals;
mod refusals;

pub use refusals::{RefusalLog, RefusalSnapshot};
pub use refusals::{Stage, device_name};
