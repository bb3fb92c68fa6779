//! The clients that the datapath denied, for readers.
//!
//! Invariant: this module never touches the maps. Refusals arrive through the programs' ring buffer; the snapshot
//! supplies the services' names.

mod line_limiter;
mod pace;
mod recent_refusals;
mod refusals;

pub use refusals::{RefusalLog, RefusalSnapshot};
pub use refusals::{Stage, device_name};
