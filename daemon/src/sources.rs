//! Where objects come from. Each source turns what it reads into the one closed `Event` and sends it in groups.
//!
//! Invariant: a source ends its first whole list with `Event::Synced`, once, and never before. A source does not know
//! which endpoint gets traffic.

pub mod config;
pub mod folder;
pub mod kubernetes;
pub mod manifests;
pub mod names;
mod protobuf;
