//! Reports of the daemon's parts about themselves.
//!
//! Invariant: plain data. Each part makes its own view; a reader cannot reach that part through it.

pub mod announcements;
pub mod apiserver;
pub mod checks;
pub mod clients;
pub mod datapath;
pub mod devices;
pub mod names;
pub mod node_ports;
pub mod proxies;
pub mod refusals;
