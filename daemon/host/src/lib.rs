//! The machine under the daemon: the journal, exempt sockets, one timer for all, small files that are replaced in one
//! step, where a socket's error arose, and whose a socket is.
//!
//! Invariant: nothing here depends on Kubernetes, services or the programs; each module stands alone.

#![forbid(unsafe_code)]

pub mod clock;
pub mod error_origin;
pub mod exempt;
pub mod headroom;
pub mod idle_evictor;
pub mod logging;
pub mod small_file;
pub mod socket_owners;
pub mod ticker;
