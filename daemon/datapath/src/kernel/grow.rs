//! Growth: larger maps are created next to the old ones and filled, then the programs move to them.
//!
//! Invariant: nothing is written between copy and move, because the engine, the only writer, does both. So old and new
//! maps give a client the same result. Once a program reads the new maps, they are the ones written, whatever fails
//! afterwards; before that, nothing has changed. A crash at any point leaves links on complete maps. Maps never shrink.
//! A thread creates larger maps in advance (`prebuild`); an op waits for them only if the present ones are full.

use std::sync::Arc;

use holdfast_core::keys::Family;
use holdfast_core::op::{MapGrowth, PortIndex, SlotRange};

use super::growth_failures::GrowthFailures;
use super::prebuild::LargerMaps;
use super::{Attachment, BACKENDS_SETTING, FRONTENDS_SETTING, KernelMaps, growth_error};
use crate::error::StartError;
use crate::load::{self, LoadedPrograms};
use crate::map::MapHandles;
use crate::shape::{ShapeGrowth, family_index, is_filling, is_full, is_hash_filling, next_size};
use holdfast_core::maps::MapError;
use holdfast_status::datapath::{Features, MapSizes};

impl KernelMaps {
    pub(super) fn ensure_frontend_capacity(&mut self, family: Family) -> Result<(), MapError> {
        let at = family_index(family);
        let shape = self.generation.shape;
        let used = self.generation.frontends(family).used();
        let entries = nth(shape.frontends, at);
        let Some(next) = next_size(entries, 0, nth(self.limits.frontends, at)) else { return Ok(()) };
        let larger = MapSizes { frontends: with_nth(shape.frontends, at, next), ..shape };
        self.ensure_hash_capacity("insert frontend", (used, entries), larger)
    }

    pub(super) fn ensure_member_capacity(&mut self) -> Result<(), MapError> {
        let shape = self.generation.shape;
        let Some(members) = next_size(shape.members, 0, self.limits.members) else { return Ok(()) };
        let used = self.generation.members.used();
        self.ensure_hash_capacity("insert member", (used, shape.members), MapSizes { members, ..shape })
    }

    /// Ensures space in a hash map. A finished prebuild is adopted at once; no op waits before the present map is full.
    fn ensure_hash_capacity(
        &mut self,
        op: &'static str,
        (used, entries): (u32, u32),
        larger: MapSizes,
    ) -> Result<(), MapError> {
        if is_full(used, entries) {
            return self.grow_now(larger).map_err(growth_error(op));
        }
        if is_hash_filling(used, entries) {
            self.grow_ahead(larger);
        }
        Ok(())
    }

    pub(super) fn ensure_port_capacity(
        &mut self,
        op: &'static str,
        index: PortIndex,
    ) -> Result<(), MapError> {
        let shape = self.generation.shape;
        let needed = index.0.saturating_add(1);
        if needed <= shape.ports {
            self.high_water.ports = self.high_water.ports.max(needed);
            let next =
                next_size(shape.ports, 0, self.limits.ports).filter(|_| is_filling(needed, shape.ports));
            next.into_iter().for_each(|ports| self.grow_ahead(MapSizes { ports, ..shape }));
            return Ok(());
        }
        let full = MapError::Full { op, setting: FRONTENDS_SETTING };
        let ports = next_size(shape.ports, needed, self.limits.ports).ok_or(full)?;
        self.grow_now(MapSizes { ports, ..shape }).map_err(growth_error(op))
    }

    pub(super) fn ensure_range_capacity(&mut self, range: SlotRange) -> Result<(), MapError> {
        let at = family_index(range.family);
        let shape = self.generation.shape;
        let entries = nth(shape.slots, at);
        let limit = nth(self.limits.slots, at);
        let needed = range.base.saturating_add(range.count);
        let larger = |next| MapSizes { slots: with_nth(shape.slots, at, next), ..shape };
        if needed <= entries {
            let reached = nth(self.high_water.slots, at).max(needed);
            self.high_water.slots = with_nth(self.high_water.slots, at, reached);
            let next = next_size(entries, 0, limit).filter(|_| is_filling(reached, entries));
            next.into_iter().for_each(|next| self.grow_ahead(larger(next)));
            return Ok(());
        }
        let full = MapError::Full { op: "write range", setting: BACKENDS_SETTING };
        let next = next_size(entries, needed, limit).ok_or(full)?;
        self.grow_now(larger(next)).map_err(growth_error("write range"))
    }

    pub(super) fn ensure_capacity(&mut self, coming: &MapGrowth) -> Result<(), MapError> {
        let used = self.used_shape().with_planned(coming);
        let holds = |shape: &MapSizes| shape.grow_to_hold(&used, &self.limits) == *shape;
        if holds(&self.generation.shape) {
            return Ok(());
        }
        let made = self.prebuild.shape().filter(holds);
        let shape = made.unwrap_or_else(|| self.generation.shape.grow_to_hold(&used, &self.limits));
        self.grow_to(shape).map_err(growth_error("make room"))
    }

    /// Begins to create space for planned entries. Errors appear when that space is needed.
    pub(super) fn prebuild_capacity(&mut self, coming: &MapGrowth) {
        let shape = self.generation.shape.grow_to_hold(&self.used_shape().with_planned(coming), &self.limits);
        if shape != self.generation.shape {
            self.begin_prebuild(shape);
        }
    }

    fn used_shape(&self) -> MapSizes {
        MapSizes {
            frontends: Family::ALL.map(|family| self.generation.frontends(family).used()),
            members: self.generation.members.used(),
            ..self.high_water
        }
    }

    /// Also enlarges all maps that are half full, so that the programs do not move again soon.
    fn with_half_full(&self, shape: MapSizes) -> MapSizes {
        shape.max_with(self.generation.shape.grow_half_full(&self.used_shape(), &self.limits))
    }

    /// Prebuilds larger maps, and adopts finished ones. An error here is not reported: it recurs once the maps are
    /// full.
    fn grow_ahead(&mut self, shape: MapSizes) {
        self.begin_prebuild(self.with_half_full(shape));
        self.adopt_prebuilt();
    }

    /// Adopts larger maps that are finished.
    pub(super) fn adopt_prebuilt(&mut self) {
        if let Some(larger) = self.poll_prebuild()
            && self.switch_to(larger).is_err()
        {
            self.abandon_prebuild();
        }
    }

    fn grow_now(&mut self, shape: MapSizes) -> Result<(), Arc<StartError>> {
        self.grow_to(self.with_half_full(shape))
    }

    /// Grows now. A growth that has just failed is not retried: each op, and all changes behind it, would wait again.
    fn grow_to(&mut self, shape: MapSizes) -> Result<(), Arc<StartError>> {
        if let Some(why) = self.growth_failures.recent_failure(&shape) {
            return Err(why);
        }
        let grown = self.await_prebuild(shape).and_then(|larger| self.switch_to(larger));
        grown.map_err(|error| self.growth_failures.record_failure(shape, error))
    }

    fn switch_to(&mut self, larger: LargerMaps) -> Result<(), StartError> {
        let Self { generation, attached, features, growths, growth_failures, .. } = self;
        let LargerMaps { generation: mut next, mut maps, programs, packets } = larger;
        let mut attached = attached.as_mut().filter(|attached| attached.links.are_attached());
        generation.set_outgrown(true);
        let moved = generation.copy_to(&mut next).and_then(|()| match &mut attached {
            Some(attached) => attached.move_programs((next.shape, *features), &programs, &mut maps),
            None => Ok(()),
        });
        generation.set_outgrown(moved.is_ok());
        moved?;
        *generation = next;
        *growths += 1;
        *growth_failures = GrowthFailures::default();
        if let Some(attached) = attached {
            attached.pins.prune_generations();
        }
        self.replace_packets(packets);
        Ok(())
    }
}

impl Attachment {
    /// Moves the programs to these maps. After an error, no program reads them.
    fn move_programs(
        &mut self,
        (shape, features): (MapSizes, Features),
        programs: &LoadedPrograms,
        maps: &mut MapHandles,
    ) -> Result<(), StartError> {
        let before = self.pins.generation();
        self.pins.pin_generation(maps)?;
        if self.links.move_to_programs(programs) {
            self.pin_programs(programs, maps, features);
            return Ok(());
        }
        let moved = load::load_programs(shape, features, maps).and_then(|(programs, _)| {
            self.links.update(&programs, &self.pins)?;
            self.pin_programs(&programs, maps, features);
            Ok(())
        });
        if moved.is_err() {
            self.pins.revert_generation(before);
        }
        moved
    }
}

fn nth(pair: [u32; 2], at: usize) -> u32 {
    let [v4, v6] = pair;
    if at == 0 { v4 } else { v6 }
}

fn with_nth(pair: [u32; 2], at: usize, value: u32) -> [u32; 2] {
    let [v4, v6] = pair;
    if at == 0 { [value, v6] } else { [v4, value] }
}
