//! What every part of the daemon needs of its machine: the journal, sockets that no program translates, one timer for
//! all, small files that are replaced in one step, and where the error of a socket arose.
//!
//! Invariant: nothing here knows Kubernetes, a service or the programs; each module stands alone.

#![forbid(unsafe_code)]

pub mod clock;
pub mod error_origin;
pub mod exempt;
pub mod headroom;
pub mod idle_evictor;
pub mod logging;
pub mod small_file;
pub mod ticker;
