//! The generated skeleton of `bpf/socket.bpf.c`. Only [`crate::abi`] names its types; only [`crate::load`] its programs.

// Generated code keeps no house rules.
#![allow(unsafe_code, missing_docs, missing_debug_implementations, unreachable_pub, dead_code, clippy::all)]
#![allow(clippy::pedantic, clippy::restriction, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/socket.skel.rs"));
