//! Where ops become what a client's connect meets.
//!
//! One narrow trait, [`Maps`], with a memory implementation and a wrapper that fails on purpose. Invariant: an op is either
//! executed whole or refused; two readers never see one op half done. Deliberately absent: deciding what to write.

mod faulty;
mod maps;
mod memory;

pub use faulty::{Faults, FaultyMaps};
pub use maps::{MapError, Maps};
pub use memory::{Answer, Client, MemoryMaps, Reading};
