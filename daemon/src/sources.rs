//! Where objects come from: every source turns what it reads into the same closed set of events.
//!
//! Invariant: an object that cannot be understood rejects itself only. Deliberately absent: any decision about traffic.

pub mod manifests;
pub mod objects;
