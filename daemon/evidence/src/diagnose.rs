//! What a diagnosis asks: of this daemon, the apiserver, this host, backends and name servers.
//!
//! Invariant: it asks and changes nothing. What came of it is the `Material`, which [`holdfast_diagnose`] judges.

mod flows;
pub mod gather;
pub mod limits;
mod own;

pub use flows::flows;
pub use own::own;

/// The header of an answer that says how the command line ends.
pub const EXIT_HEADER: &str = "holdfast-exit";
