//! What a diagnosis asks: of this daemon, the apiserver, this host, backends and name servers.
//!
//! Invariant: it asks and changes nothing. What came of it is the `Material`, which [`holdfast_judgement`] judges.

mod flows;
pub mod gather;
pub(crate) mod limits;
mod own;

pub(crate) use flows::flows;
pub(crate) use own::own;

/// The header of an answer that says how the command line ends.
pub(crate) const EXIT_HEADER: &str = "holdfast-exit";
