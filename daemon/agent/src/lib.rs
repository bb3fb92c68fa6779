//! What serves beside the sources: the engine's task and its maps, the state that survives a restart, the record of
//! every change, devices, drains, probes, routes, kube-proxy's own ports, and what the daemon can tell of itself.
//!
//! Invariant: only the engine's thread changes the table and the maps. No part here knows who explains, shows or asks.

#![forbid(unsafe_code)]

pub mod datapath;
pub mod descriptors;
pub mod devices;
pub mod drains;
pub mod engine;
pub mod engine_thread;
pub mod error;
pub mod exposition;
pub mod host_routes;
pub mod kube_proxy;
pub mod listeners;
pub mod maps;
pub mod node;
pub mod notices;
pub mod paced;
pub mod packets;
pub mod patience;
pub mod probes;
pub mod proxies;
pub mod readings;
pub mod recorder;
pub mod rejections;
pub mod renamed;
pub mod state;
pub mod systemd;

pub use error::AppError;
pub(crate) mod sources {}
