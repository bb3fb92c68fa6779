//! Where objects come from. Each source turns what it reads into the one closed `Event` and sends it in groups.
//!
//! Invariant: a source ends its first whole list with `Event::Synced`, once, and never before. A source does not know
//! which endpoint gets traffic.

pub use holdfast_kubernetes::source as kubernetes;
pub use holdfast_objects::protobuf;
pub use holdfast_standalone::{blocks as config, folder, manifests, names};
