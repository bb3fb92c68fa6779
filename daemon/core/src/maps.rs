//! The interface between the engine and the maps, be they the kernel's or in memory.
//!
//! Invariant: an op is executed whole or refused, and two readers never see one half done.

mod memory;

use alloc::boxed::Box;
use alloc::string::String;

use crate::keys::FrontendKey;
use crate::limits;
use crate::op::{Action, Coming, Dump, Entry, FrontendValue, Grace, Op};

pub use memory::{Answer, Client, MemoryMaps, UnfinishedRead};

/// How much the maps may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Slots of each family, rounded down to a power of two.
    pub slots: u32,
    pub ports: u32,
    /// Services that may be known, programmed or not.
    pub services: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            slots: limits::SLOTS_PER_FAMILY_MAX,
            ports: limits::PORT_INDICES_MAX,
            services: limits::SERVICES_MAX,
        }
    }
}

/// The maps refused an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Nothing more fits until something is deleted or the limit is raised.
    #[error("cannot {op}: the map is full; raise `{setting}` in the configuration")]
    Full {
        /// What failed, as a verb and its object.
        op: &'static str,
        /// The setting that bounds the map.
        setting: &'static str,
    },
    /// The kernel, or whatever holds the maps, did not do it.
    #[error("cannot {op}: {cause}")]
    Refused {
        /// What failed, as a verb and its object.
        op: &'static str,
        /// What the maps said.
        cause: String,
    },
}

/// Executes ops. The engine is the only caller.
pub trait Maps: Send {
    /// Executes one op. An error does not promise that it had no effect.
    fn execute(&mut self, action: &Action) -> Result<(), MapError>;

    /// Executes as many of these ops, from the first on, as suits the maps in one step. They insert frontends that the
    /// maps do not have, or they remove frontends, so their order does not matter. Gives how many were accepted, or why
    /// the first was not.
    fn execute_some(&mut self, ops: &[Op]) -> Result<usize, MapError> {
        ops.first().map_or(Ok(0), |op| self.execute(&op.action).map(|()| 1))
    }

    /// Tells the maps what is about to come while it is still being decided, so that they can begin to make room. It
    /// does not wait, and nothing but time depends on it.
    fn prepare(&mut self, _: &Coming) {}

    /// Makes room for many ops at once, so that the maps need not grow in several steps. It changes nothing that a
    /// client meets, and what does not fit shows in the ops. Maps that are as large as they get have nothing to do.
    fn make_room(&mut self, _: &Coming) -> Result<(), MapError> {
        Ok(())
    }

    /// Begins a grace period: it is over when every reader has left that is under way now.
    fn begin_grace(&mut self) -> Grace;

    /// Whether that grace period is over.
    fn is_over(&self, grace: Grace) -> bool;

    /// Reads back all that the maps hold.
    fn dump(&mut self) -> Result<Dump, MapError>;

    /// Reads one frontend back. Maps that can look one up alone do so.
    fn read(&mut self, key: &FrontendKey) -> Result<Option<Entry>, MapError> {
        let dump = self.dump()?;
        let value = dump.frontends.iter().find(|(other, _)| other == key).map(|(_, value)| *value);
        let port = |value: FrontendValue| dump.ports.into_iter().find(|port| port.index == value.port);
        Ok(value.and_then(|value| Some(Entry { value, port: port(value)? })))
    }

    /// How much fits, at the limits of the configuration.
    fn capacity(&self) -> Capacity;

    /// Whether clients are still served by what another daemon left, whatever these maps hold.
    fn is_waiting(&self) -> bool {
        false
    }
}

impl<M: Maps + ?Sized> Maps for Box<M> {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        (**self).execute(action)
    }

    fn execute_some(&mut self, inserts: &[Op]) -> Result<usize, MapError> {
        (**self).execute_some(inserts)
    }

    fn prepare(&mut self, coming: &Coming) {
        (**self).prepare(coming);
    }

    fn make_room(&mut self, coming: &Coming) -> Result<(), MapError> {
        (**self).make_room(coming)
    }

    fn begin_grace(&mut self) -> Grace {
        (**self).begin_grace()
    }

    fn is_over(&self, grace: Grace) -> bool {
        (**self).is_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        (**self).dump()
    }

    fn read(&mut self, key: &FrontendKey) -> Result<Option<Entry>, MapError> {
        (**self).read(key)
    }

    fn capacity(&self) -> Capacity {
        (**self).capacity()
    }

    fn is_waiting(&self) -> bool {
        (**self).is_waiting()
    }
}
