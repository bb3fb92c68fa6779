//! The interface between the engine and the maps, be they the kernel's or in memory.
//!
//! Invariant: an op is executed whole or refused, and two readers never see one half done.

mod memory;

use alloc::boxed::Box;
use alloc::string::String;

use crate::keys::{Family, FrontendKey};
use crate::limits;
use crate::op::{Action, Dump, DumpPort, FrontendEntry, FrontendValue, Grace, MapGrowth, Op, PortIndex};

pub use memory::{Client, DialOutcome, MemoryMaps, UnfinishedRead};

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
    /// There is room, but the namespace has its part.
    #[error("cannot {op}: {cause}")]
    Quota {
        /// What failed, as a verb and its object.
        op: &'static str,
        /// What the namespace has.
        cause: String,
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

impl MapError {
    /// Whether the namespace has its part, so that nothing but its own services keeps room from it.
    pub(crate) const fn is_quota_error(&self) -> bool {
        matches!(self, Self::Quota { .. })
    }
}

/// Executes ops. The engine is the only caller.
pub trait Maps: Send {
    /// Executes one op. An error does not promise that it had no effect.
    fn execute(&mut self, action: &Action) -> Result<(), MapError>;

    /// Executes as many of these ops, from the first on, as suits the maps in one step. They insert frontends that the
    /// maps do not have, or they remove frontends, so their order does not matter. Gives how many were accepted, or why
    /// the first was not.
    fn execute_batch(&mut self, ops: &[Op]) -> Result<usize, MapError> {
        ops.first().map_or(Ok(0), |op| self.execute(&op.action).map(|()| 1))
    }

    /// Tells the maps what is about to come while it is still being decided, so that they can begin to make room. It
    /// does not wait, and nothing but time depends on it.
    fn prepare(&mut self, _: &MapGrowth) {}

    /// Makes room for many ops at once, so that the maps need not grow in several steps. It changes nothing that a
    /// client meets, and what does not fit shows in the ops. Maps that are as large as they get have nothing to do.
    fn reserve_capacity(&mut self, _: &MapGrowth) -> Result<(), MapError> {
        Ok(())
    }

    /// Begins a grace period: it is over when every reader has left that is under way now.
    fn begin_grace(&mut self) -> Grace;

    /// Whether that grace period is over.
    fn is_grace_over(&self, grace: Grace) -> bool;

    /// Reads back all that the maps hold.
    fn dump(&mut self) -> Result<Dump, MapError>;

    /// Reads back what the maps hold, in pieces that take a millisecond at most: the first piece if `anew`, or else the
    /// next one. Ports may be left out. What is there all the while is in one of the pieces, whatever is written
    /// between two of them. `None`: there are no more. Maps without a kernel have one piece.
    fn read_piece(&mut self, anew: bool) -> Result<Option<Dump>, MapError> {
        if anew { self.dump().map(Some) } else { Ok(None) }
    }

    /// Reads back what a frontend leads to. Maps that can look one up alone do so.
    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        let found = self.dump()?.frontends.into_iter().find(|(other, _)| other == key);
        Ok(found.map(|(_, value)| value))
    }

    /// Reads one port back; `None`: no frontend leads to it, as far as these maps can tell. Maps that can read one
    /// alone do so.
    fn read_port(&mut self, index: PortIndex, _: Family) -> Result<Option<DumpPort>, MapError> {
        Ok(self.dump()?.ports.into_iter().find(|port| port.index == index))
    }

    /// Reads one frontend back, with its port.
    fn read(&mut self, key: &FrontendKey) -> Result<Option<FrontendEntry>, MapError> {
        let Some(value) = self.read_value(key)? else { return Ok(None) };
        let port = self.read_port(value.port, Family::from_address(key.address))?;
        Ok(port.map(|port| FrontendEntry { value, port }))
    }

    /// How much fits, at the limits of the configuration.
    fn capacity(&self) -> Capacity;

    /// Whether clients are still served by what another daemon left, whatever these maps hold.
    fn is_predecessor_serving(&self) -> bool {
        false
    }
}

impl<M: Maps + ?Sized> Maps for Box<M> {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        (**self).execute(action)
    }

    fn execute_batch(&mut self, inserts: &[Op]) -> Result<usize, MapError> {
        (**self).execute_batch(inserts)
    }

    fn prepare(&mut self, coming: &MapGrowth) {
        (**self).prepare(coming);
    }

    fn reserve_capacity(&mut self, coming: &MapGrowth) -> Result<(), MapError> {
        (**self).reserve_capacity(coming)
    }

    fn begin_grace(&mut self) -> Grace {
        (**self).begin_grace()
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        (**self).is_grace_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        (**self).dump()
    }

    fn read_piece(&mut self, anew: bool) -> Result<Option<Dump>, MapError> {
        (**self).read_piece(anew)
    }

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        (**self).read_value(key)
    }

    fn read_port(&mut self, index: PortIndex, family: Family) -> Result<Option<DumpPort>, MapError> {
        (**self).read_port(index, family)
    }

    fn capacity(&self) -> Capacity {
        (**self).capacity()
    }

    fn is_predecessor_serving(&self) -> bool {
        (**self).is_predecessor_serving()
    }
}
