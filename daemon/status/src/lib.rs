//! Reports of the daemon's parts about themselves, which others judge, show and store.
//!
//! Invariant: plain data, and how it is written. No file, no socket, no clock. The part that a struct describes fills
//! it; a reader cannot reach that part through it.

#![forbid(unsafe_code)]

pub mod age;
pub mod datapath;
pub mod errno;
pub mod frontend_text;
pub mod printable;
pub mod record;
pub mod rfc3339;
pub mod schema_types;
pub mod views;
