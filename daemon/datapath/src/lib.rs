//! Where ops become what a client's connect meets.
//!
//! The kernel's side of [`holdfast_core::maps::Maps`]: maps, pins, programs, links. Invariant: an op is executed whole
//! or refused; two readers never see one half done. This is the only crate where `unsafe` is legal, and it decides
//! nothing.

// The bed of the tests names this crate as its other users do.
#[cfg(test)]
extern crate self as holdfast_datapath;

mod abi;
mod bitmap;
mod cgroup;
mod counts;
mod error;
mod foreign;
mod generation;
mod grace;
mod kernel;
mod links;
mod load;
mod map;
mod pins;
mod probe;
mod publish;
mod refusals;
mod shape;
mod shared;
mod site;
mod skeleton;
mod sys;
mod table;
mod view;

pub use counts::{Counted, Counts};
pub use error::StartError;
pub use kernel::{
    KernelMaps, Namespaces, Options, Repaired, SelfTestError, Served, StaleSockets, Status, Swept,
    TakeOverError,
};
pub use pins::{VERSION as PINS_VERSION, cleanup};
pub use probe::Features;
pub use refusals::{Denial, Refusal, Refusals};
pub use shape::Shape;
