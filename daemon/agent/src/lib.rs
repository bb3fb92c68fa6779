//! The parts that serve besides the sources: the engine's task and its maps, the state that survives a restart, the
//! history, devices, drains, probes, routes, kube-proxy's own ports, and the daemon's readings.
//!
//! Invariant: only the engine's thread changes the table and the maps. No part here depends on the parts that show
//! it.

#![forbid(unsafe_code)]

pub mod datapath;
pub mod descriptors;
pub mod devices;
pub mod drains;
pub mod engine;
pub mod engine_thread;
pub mod error;
pub mod exposition;
pub mod failing_backends;
pub mod host_routes;
pub mod hostname_watch;
pub mod kube_proxy;
pub mod listeners;
pub mod lock_wait;
pub mod maps;
pub mod netlink_monitor;
pub mod node;
pub mod node_port_listeners;
pub mod paced_receiver;
pub mod packet_log;
pub mod probes;
pub mod proxies;
pub mod readings;
pub mod recorder;
pub mod rejections;
pub mod state;
pub mod systemd;

pub use error::AppError;
pub(crate) mod sources {}
