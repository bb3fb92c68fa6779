//! Services without a cluster: configuration blocks, folders of files and manifests, health checks, and DNS backends.
//!
//! Invariant: a source completes its first list once, and only when it is whole. A source does not decide which
//! endpoint gets traffic.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod dns;
pub mod folder;
pub mod manifests;
pub mod names;

pub(crate) mod sources {}
