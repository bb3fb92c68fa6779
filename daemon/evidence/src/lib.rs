//! What an explanation and a diagnosis rest on: read from the running daemon, asked of the apiserver, this host,
//! backends and name servers, and heard as Events.
//!
//! Invariant: it asks, and changes nothing. It judges nothing either: a crate that asks nobody judges what came of it.

#![forbid(unsafe_code)]

pub mod diagnose;
pub mod event_watcher;
pub mod explain;
pub mod knowledge;

pub(crate) mod sources {}
