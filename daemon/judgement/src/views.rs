//! What the parts of the daemon say of themselves, for whoever judges or shows it.
//!
//! Invariant: plain data. The part that a view is of makes it; nobody who reads it reaches that part by it.

pub mod apiserver;
pub mod clients;
pub mod datapath;
pub mod devices;
pub mod proxies;
pub mod refusals;
