//! Maps that fail on purpose, at a given rate, from a seed.
//!
//! Invariant: the same seed fails the same ops. Half of the failed ops take effect nevertheless, as an interrupted
//! system call may. Reads never fail here, because a start treats a failed read as fatal.

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::maps::{Capacity, MapError, Maps};
use holdfast_core::op::{Action, Dump, DumpPort, FrontendValue, Grace, MapGrowth, PortIndex};

/// How often ops fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The seed of the sequence of faults.
    pub seed: u64,
    /// How many of a thousand ops fail.
    pub per_mille: u16,
}

/// A wrapper around real or memory maps.
#[derive(Debug)]
pub struct FaultyMaps<M> {
    inner: M,
    state: u64,
    per_mille: u16,
    hears: fn(&mut M, &Action),
}

impl<M> FaultyMaps<M> {
    pub fn new(inner: M, faults: Faults) -> Self {
        Self { inner, state: faults.seed | 1, per_mille: faults.per_mille, hears: |_, _| () }
    }

    /// The same maps; `hears` is called for each op that fails.
    #[must_use]
    pub fn hearing(self, hears: fn(&mut M, &Action)) -> Self {
        Self { hears, ..self }
    }

    /// Sets how many of a thousand ops fail from now on.
    pub fn set_per_mille(&mut self, per_mille: u16) {
        self.per_mille = per_mille;
    }

    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// The inner maps, for readers that hold a ticket.
    pub fn inner_mut(&mut self) -> &mut M {
        &mut self.inner
    }

    // xorshift64*: enough to spread faults, and the same everywhere.
    fn roll(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
    }
}

impl<M: Maps> Maps for FaultyMaps<M> {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        let fails = self.roll() % 1000 < u64::from(self.per_mille);
        let takes_effect = !fails || self.roll().is_multiple_of(2);
        if takes_effect {
            self.inner.execute(action)?;
        }
        if fails {
            (self.hears)(&mut self.inner, action);
            return Err(MapError::Refused { op: action.name(), cause: "a fault on purpose".to_owned() });
        }
        Ok(())
    }

    fn prepare(&mut self, coming: &MapGrowth) {
        self.inner.prepare(coming);
    }

    fn reserve_capacity(&mut self, coming: &MapGrowth) -> Result<(), MapError> {
        self.inner.reserve_capacity(coming)
    }

    fn begin_grace(&mut self) -> Grace {
        self.inner.begin_grace()
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        self.inner.is_grace_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        self.inner.dump()
    }

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        self.inner.read_value(key)
    }

    fn read_port(&mut self, index: PortIndex, family: Family) -> Result<Option<DumpPort>, MapError> {
        self.inner.read_port(index, family)
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn is_predecessor_serving(&self) -> bool {
        self.inner.is_predecessor_serving()
    }
}
