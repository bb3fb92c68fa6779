//! What a diagnosis asks: of this daemon, the apiserver, this host, backends and name servers.
//!
//! Invariant: it asks and changes nothing. What came of it is the `Evidence`, which [`holdfast_diagnose`] judges.

mod daemon_state;
mod flows;
pub mod gather;
pub mod limits;

pub use daemon_state::gather_daemon_state;
pub use flows::gather_flows;

/// The header of an answer that says how the command line ends.
pub const EXIT_HEADER: &str = "holdfast-exit";
