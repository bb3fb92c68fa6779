//! The queries of a diagnosis: to this daemon, the apiserver, this host, backends and name servers.
//!
//! Invariant: it reads and changes nothing. The result is the `Evidence`, which [`holdfast_diagnose`] judges.

mod daemon_state;
mod flows;
pub mod gather;
pub mod limits;

pub use daemon_state::gather_daemon_state;
pub use flows::gather_flows;

/// The response header with the exit code of the command line.
pub const EXIT_HEADER: &str = "holdfast-exit";
