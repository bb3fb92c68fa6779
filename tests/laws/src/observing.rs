//! Maps with a witness that looks before and after each op with an effect.
//!
//! Invariant: the witness sees the maps exactly as a client would between two ops. For faults, wrap these maps in
//! [`crate::faulty::FaultyMaps`]; the witness then sees only ops that took effect.

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::maps::{Capacity, MapError, Maps};
use holdfast_core::op::{Action, Dump, DumpPort, FrontendValue, Grace, PortIndex};

/// Looks at maps between ops.
pub trait Witness<M>: Send {
    /// Called before the op is executed.
    fn before(&mut self, maps: &M, action: &Action);
    /// Called after the op was executed.
    fn after(&mut self, maps: &M, action: &Action);
}

/// Maps with a witness.
#[derive(Debug)]
pub struct ObservingMaps<M, W> {
    maps: M,
    witness: W,
    left: Option<u32>,
}

impl<M, W> ObservingMaps<M, W> {
    pub fn new(maps: M, witness: W) -> Self {
        Self { maps, witness, left: None }
    }

    /// After so many more ops, every op is refused without effect, as if the process had died there.
    pub fn stop_after(&mut self, ops: Option<u32>) {
        self.left = ops;
    }

    pub fn maps(&self) -> &M {
        &self.maps
    }

    pub fn witness(&self) -> &W {
        &self.witness
    }

    pub fn both_mut(&mut self) -> (&mut M, &mut W) {
        (&mut self.maps, &mut self.witness)
    }

    fn is_stopped(&mut self) -> bool {
        match &mut self.left {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }
}

impl<M: Maps, W: Witness<M>> Maps for ObservingMaps<M, W> {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        if self.is_stopped() {
            return Err(MapError::Refused { op: action.name(), cause: "the process died".to_owned() });
        }
        self.witness.before(&self.maps, action);
        self.maps.execute(action)?;
        self.witness.after(&self.maps, action);
        Ok(())
    }

    fn begin_grace(&mut self) -> Grace {
        self.maps.begin_grace()
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        self.maps.is_grace_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        self.maps.dump()
    }

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        self.maps.read_value(key)
    }

    fn read_port(&mut self, index: PortIndex, family: Family) -> Result<Option<DumpPort>, MapError> {
        self.maps.read_port(index, family)
    }

    fn capacity(&self) -> Capacity {
        self.maps.capacity()
    }

    fn is_predecessor_serving(&self) -> bool {
        self.maps.is_predecessor_serving()
    }
}
