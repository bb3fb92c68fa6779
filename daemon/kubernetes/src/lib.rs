//! Everything that talks to the apiserver: connections, list and watch, the own Node, the Pod at an address, and
//! Events.
//!
//! Invariant: nothing here decides how clients are served. Objects reach the rules as the rules' own events only. No
//! connection depends on the cluster's own Services.

#![forbid(unsafe_code)]

pub mod apiserver;
pub mod event_recorder;
pub mod own_node;
pub mod pod_lookup;
pub mod source;

pub(crate) mod sources {}
