//! The apiserver: the way to it, what is listed and watched there, the own Node, the pod at an address, and the Events
//! that this daemon writes.
//!
//! Invariant: nothing here decides what clients meet. Objects become the rules' own events, and nothing else goes from
//! here to the rules. No connection depends on the cluster's own services.

#![forbid(unsafe_code)]

pub mod apiserver;
pub mod event_recorder;
pub mod own_node;
pub mod pod_lookup;
pub mod source;

pub(crate) mod sources {}
