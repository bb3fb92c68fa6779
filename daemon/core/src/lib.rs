//! The rules of holdfast: from facts to ops, pure.
//!
//! Invariant: no I/O, no clock, no hash order. The compiler enforces the first two (`no_std`), [`index`] the third.
//! Time is an argument. Nothing is logged: what happened is returned as a value, and the shell tells it.

#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod affinity;
pub mod change;
mod claims;
pub mod dialable;
pub mod digest;
pub mod drains;
pub mod engine;
pub mod event;
pub mod facts;
mod few;
pub mod hold;
pub mod index;
pub mod keys;
pub mod lifecycle;
pub mod limits;
pub mod list;
pub mod maglev;
pub mod maps;
pub mod op;
mod parted;
pub mod ranges;
pub mod resolve;
pub mod rfc3339;
mod service;
mod service_view;
mod shared_names;
mod shared_set;
pub mod shared_vec;
mod siphash;
pub mod snapshot;
pub mod sources;
pub mod spelled;
mod tables;
pub mod time;
pub mod totals;
pub mod weights;
mod work;
mod world;
#[cfg(feature = "serde")]
mod written;
