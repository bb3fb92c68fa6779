//! Where ops become what a client's connect meets.
//!
//! One narrow trait, [`Maps`], with an implementation for the kernel, one in memory and a wrapper that fails on purpose.
//! Invariant: an op is either executed whole or refused; two readers never see one op half done. This is the only crate
//! where `unsafe` is legal. Deliberately absent: deciding what to write.

// The bed of the tests names this crate as its other users do.
#[cfg(test)]
extern crate self as holdfast_datapath;

mod abi;
mod bitmap;
mod cgroup;
mod counts;
mod error;
mod faulty;
mod foreign;
mod generation;
mod grace;
mod kernel;
mod links;
mod load;
mod maps;
mod memory;
mod pins;
mod probe;
mod publish;
mod refusals;
mod shape;
mod shared;
mod skeleton;
mod sys;
mod table;
mod view;

pub use counts::{Counted, Counts};
pub use error::StartError;
pub use faulty::{Faults, FaultyMaps};
pub use kernel::{
    KernelMaps, Namespaces, Options, Repaired, SelfTestError, Served, StaleSockets, Status, Swept,
    TakeOverError,
};
pub use maps::{MapError, Maps};
pub use memory::{Answer, Client, MemoryMaps, Reading};
pub use pins::{VERSION as PINS_VERSION, cleanup};
pub use probe::Features;
pub use refusals::{Denial, Refusal, Refusals};
pub use shape::Shape;
