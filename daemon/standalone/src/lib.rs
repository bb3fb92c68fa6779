//! Services without a cluster: blocks of the configuration, folders of files and of manifests, health checks of
//! backends, and the name servers that are asked for backends.
//!
//! Invariant: a source ends its first whole list once, and never before it is whole. A source does not know which
//! endpoint gets traffic.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod dns;
pub mod folder;
pub mod manifests;
pub mod names;

pub(crate) mod sources {}
