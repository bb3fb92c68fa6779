//! The rules of holdfast: from facts to ops, pure.
//!
//! Invariant: no I/O, no clock, no hash order. The compiler enforces the first two (`no_std`), [`index`] the third.
//! Time is an argument. Core logs nothing: it returns events as values, and the agent logs them.

#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address_policy;
pub mod affinity;
pub mod change;
pub mod claims;
pub mod digest;
pub mod drains;
pub mod engine;
pub mod event;
pub mod facts;
pub mod health;
pub mod hold;
pub mod index;
pub mod keys;
pub mod lifecycle;
pub mod limits;
pub mod list;
pub mod maglev;
pub mod maps;
pub mod op;
pub mod resolve;
pub mod rfc3339;
#[cfg(feature = "serde")]
mod serde_impls;
mod service;
mod service_view;
mod shared_names;
mod shared_set;
pub mod shared_vec;
mod siphash;
pub mod slot_allocator;
mod small_set;
pub mod snapshot;
pub mod source_ranges;
mod split_name;
pub mod str_enum;
mod tables;
pub mod time;
pub mod totals;
pub mod weights;
mod work;
mod world;
