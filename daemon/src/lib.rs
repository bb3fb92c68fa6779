//! The shell of holdfast: sources, engine, admin API, command line.
//!
//! Invariant: the shell talks, the core decides; no rule about endpoints is here.
#![forbid(unsafe_code)]

pub mod admin;
pub mod announce;
pub mod apiserver;
pub mod app;
mod beat;
pub mod cli;
pub mod clock;
pub mod config;
pub mod datapath;
pub mod devices;
pub mod diagnose;
pub mod dns;
pub mod drains;
pub mod engine;
mod error_origin;
mod exempt;
mod exposition;
mod guests;
pub mod host_routes;
pub mod import;
pub mod knowledge;
pub mod kube_proxy;
mod listeners;
pub mod logging;
pub mod node;
mod notices;
pub mod overheard;
pub mod own_node;
mod page;
pub mod pod_lookup;
pub mod probes;
pub mod proxies;
pub mod readings;
pub mod recorder;
pub mod rejections;
mod renamed;
pub mod room;
mod small_file;
pub mod sources;
pub mod state;
pub mod systemd;
mod why;
