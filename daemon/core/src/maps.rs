//! The interface between the engine and the maps, in the kernel or in memory.
//!
//! Invariant: an op is executed whole or refused, and no reader sees one half done.

mod memory;

use alloc::boxed::Box;
use alloc::string::String;

use crate::keys::{Family, FrontendKey};
use crate::limits;
use crate::op::{Action, Dump, DumpPort, FrontendEntry, FrontendValue, Grace, MapGrowth, Op, PortIndex};

pub use memory::{Client, DialOutcome, MemoryMaps, UnfinishedRead};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Slots of each family, rounded down to a power of two.
    pub slots: u32,
    pub ports: u32,
    /// Services in the tables, programmed or not.
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Nothing more fits until something is deleted or the limit is raised.
    #[error("cannot {op}: the map is full; raise `{setting}` in the configuration")]
    Full {
        /// The failed op, as a verb and its object.
        op: &'static str,
        /// The setting that limits the map.
        setting: &'static str,
    },
    /// There is space, but the namespace has used its quota.
    #[error("cannot {op}: {cause}")]
    Quota {
        /// The failed op, as a verb and its object.
        op: &'static str,
        cause: String,
    },
    /// The kernel, or other maps, refused the op.
    #[error("cannot {op}: {cause}")]
    Refused {
        /// The failed op, as a verb and its object.
        op: &'static str,
        cause: String,
    },
}

impl MapError {
    /// Whether the namespace's quota is the reason, so that only its own services can free space.
    pub(crate) const fn is_quota_error(&self) -> bool {
        matches!(self, Self::Quota { .. })
    }
}

/// Executes ops. The engine is the only caller.
pub trait Maps: Send {
    /// Executes one op. It may have taken effect despite an error.
    fn execute(&mut self, action: &Action) -> Result<(), MapError>;

    /// Executes the first of these ops, as many as suit the maps in one step. All insert missing frontends, or all
    /// remove frontends, so their order does not matter. Returns how many were accepted, or why the first was refused.
    fn execute_batch(&mut self, ops: &[Op]) -> Result<usize, MapError> {
        ops.first().map_or(Ok(0), |op| self.execute(&op.action).map(|()| 1))
    }

    /// Announces growth during the decision, so that the maps can begin to grow. It does not block, and affects only
    /// timing.
    fn prepare(&mut self, _: &MapGrowth) {}

    /// Reserves space for many ops, so that the maps grow in one step. Clients see no change, and an op that does not
    /// fit fails on its own. Maps of fixed size do nothing.
    fn reserve_capacity(&mut self, _: &MapGrowth) -> Result<(), MapError> {
        Ok(())
    }

    /// Begins a grace period, which ends when all current readers have left.
    fn begin_grace(&mut self) -> Grace;

    fn is_grace_over(&self, grace: Grace) -> bool;

    /// Reads everything in the maps.
    fn dump(&mut self) -> Result<Dump, MapError>;

    /// Reads the maps in pieces of at most a millisecond: the first piece if `anew`, otherwise the next one. It may
    /// leave out ports. An entry that stays in the maps is in one of the pieces, whatever is written in between.
    /// `None`: the end. Maps in memory have one piece.
    fn read_piece(&mut self, anew: bool) -> Result<Option<Dump>, MapError> {
        if anew { self.dump().map(Some) } else { Ok(None) }
    }

    /// Reads the value of a frontend. Maps that can look up one entry override this.
    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        let found = self.dump()?.frontends.into_iter().find(|(other, _)| other == key);
        Ok(found.map(|(_, value)| value))
    }

    /// Reads one port; `None`: no frontend leads to it, as far as these maps can tell. Maps that can look up one entry
    /// override this.
    fn read_port(&mut self, index: PortIndex, _: Family) -> Result<Option<DumpPort>, MapError> {
        Ok(self.dump()?.ports.into_iter().find(|port| port.index == index))
    }

    /// Reads one frontend with its port.
    fn read(&mut self, key: &FrontendKey) -> Result<Option<FrontendEntry>, MapError> {
        let Some(value) = self.read_value(key)? else { return Ok(None) };
        let port = self.read_port(value.port, Family::from_address(key.address))?;
        Ok(port.map(|port| FrontendEntry { value, port }))
    }

    /// The capacity at the configured limits.
    fn capacity(&self) -> Capacity;

    /// Whether another daemon's maps still serve clients, whatever these maps hold.
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
