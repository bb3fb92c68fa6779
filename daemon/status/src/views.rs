//! What the parts of the daemon say of themselves, to be judged and shown.
//!
//! Invariant: plain data. The part that a view is of makes it; a reader cannot reach that part by the view.

pub mod announcements;
pub mod apiserver;
pub mod checks;
pub mod clients;
pub mod datapath;
pub mod devices;
pub mod names;
pub mod proxies;
pub mod refusals;
