//! Gathers the evidence of explanations and diagnoses: from the running daemon, the apiserver, this host, backends and
//! name servers, and from watched Events.
//!
//! Invariant: this crate reads and changes nothing. It judges nothing either: `holdfast_diagnose` judges the evidence.

#![forbid(unsafe_code)]

pub mod diagnose;
pub mod event_watcher;
pub mod explain;
pub mod knowledge;

pub(crate) mod sources {}
