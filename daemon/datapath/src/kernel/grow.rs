//! Growth: larger maps are built beside, filled, and the programs moved over.
//!
//! Invariant: nothing is written between the copy and the move, because the engine is the only writer and does both; so
//! a client meets the same answer in the old maps and in the new ones. From the moment that a program reads the new
//! maps they are the ones that are written, whatever fails afterwards; before that moment nothing has changed. A crash
//! at any point leaves links on whole maps. Maps never shrink. Larger maps are made on a thread beside the engine while
//! there is room left (`ahead`), and an op waits for them only where there is none.

use std::sync::Arc;

use holdfast_core::keys::Family;
use holdfast_core::op::{MapGrowth, PortIndex, SlotRange};

use super::ahead::Larger;
use super::refused::RefusedGrowths;
use super::{Attached, BACKENDS, FRONTENDS, KernelMaps, growth_refused};
use crate::error::StartError;
use crate::load::{self, LoadedPrograms};
use crate::map::{self, Handles};
use crate::shape::{Growth, grown, index, is_filling, is_full, is_hash_filling};
use holdfast_core::maps::MapError;
use holdfast_status::datapath::{Features, Shape};

impl KernelMaps {
    pub(super) fn make_room_for_frontend(&mut self, family: Family) -> Result<(), MapError> {
        let at = index(family);
        let shape = self.generation.shape;
        let used = self.generation.frontends(family).used();
        let entries = nth(shape.frontends, at);
        let Some(next) = grown(entries, 0, nth(self.limits.frontends, at)) else { return Ok(()) };
        let larger = Shape { frontends: with_nth(shape.frontends, at, next), ..shape };
        self.see_to_room("insert frontend", (used, entries), larger)
    }

    pub(super) fn make_room_for_member(&mut self) -> Result<(), MapError> {
        let shape = self.generation.shape;
        let Some(members) = grown(shape.members, 0, self.limits.members) else { return Ok(()) };
        let used = self.generation.members.used();
        self.see_to_room("insert member", (used, shape.members), Shape { members, ..shape })
    }

    /// Sees to room in a hash map. A larger map that is being made is taken as soon as it is ready; no op waits before
    /// the present one is full.
    fn see_to_room(
        &mut self,
        op: &'static str,
        (used, entries): (u32, u32),
        larger: Shape,
    ) -> Result<(), MapError> {
        if is_full(used, entries) {
            return self.grow(larger).map_err(growth_refused(op));
        }
        if is_hash_filling(used, entries) {
            self.grow_soon(larger);
        }
        Ok(())
    }

    pub(super) fn make_room_for_port(&mut self, op: &'static str, index: PortIndex) -> Result<(), MapError> {
        let shape = self.generation.shape;
        let needed = index.0.saturating_add(1);
        if needed <= shape.ports {
            self.reached.ports = self.reached.ports.max(needed);
            let next = grown(shape.ports, 0, self.limits.ports).filter(|_| is_filling(needed, shape.ports));
            next.into_iter().for_each(|ports| self.grow_soon(Shape { ports, ..shape }));
            return Ok(());
        }
        let full = MapError::Full { op, setting: FRONTENDS };
        let ports = grown(shape.ports, needed, self.limits.ports).ok_or(full)?;
        self.grow(Shape { ports, ..shape }).map_err(growth_refused(op))
    }

    pub(super) fn make_room_for_range(&mut self, range: SlotRange) -> Result<(), MapError> {
        let at = index(range.family);
        let shape = self.generation.shape;
        let entries = nth(shape.slots, at);
        let limit = nth(self.limits.slots, at);
        let needed = range.base.saturating_add(range.count);
        let larger = |next| Shape { slots: with_nth(shape.slots, at, next), ..shape };
        if needed <= entries {
            let reached = nth(self.reached.slots, at).max(needed);
            self.reached.slots = with_nth(self.reached.slots, at, reached);
            let next = grown(entries, 0, limit).filter(|_| is_filling(reached, entries));
            next.into_iter().for_each(|next| self.grow_soon(larger(next)));
            return Ok(());
        }
        let full = MapError::Full { op: "write range", setting: BACKENDS };
        let next = grown(entries, needed, limit).ok_or(full)?;
        self.grow(larger(next)).map_err(growth_refused("write range"))
    }

    pub(super) fn make_room_for(&mut self, coming: &MapGrowth) -> Result<(), MapError> {
        let used = self.used().and(coming);
        let holds = |shape: &Shape| shape.holding(&used, &self.limits) == *shape;
        if holds(&self.generation.shape) {
            return Ok(());
        }
        let made = self.ahead.shape().filter(holds);
        let shape = made.unwrap_or_else(|| self.generation.shape.holding(&used, &self.limits));
        self.build(shape).map_err(growth_refused("make room"))
    }

    /// Begins to make room for what is about to come. A failure is told where that room is needed.
    pub(super) fn expect_room_for(&mut self, coming: &MapGrowth) {
        let shape = self.generation.shape.holding(&self.used().and(coming), &self.limits);
        if shape != self.generation.shape {
            self.begin_larger(shape);
        }
    }

    fn used(&self) -> Shape {
        Shape {
            frontends: Family::ALL.map(|family| self.generation.frontends(family).used()),
            members: self.generation.members.used(),
            ..self.reached
        }
    }

    /// The same shape, with whatever else is half full in its next size: so the programs are moved once and not again
    /// soon.
    fn with_what_grows_along(&self, shape: Shape) -> Shape {
        shape.or_larger(self.generation.shape.with_room_for(&self.used(), &self.limits))
    }

    /// Has larger maps made, and takes those that are ready. A failure is not told here: where no room is left, it
    /// happens again and is told then.
    fn grow_soon(&mut self, shape: Shape) {
        self.begin_larger(self.with_what_grows_along(shape));
        self.take_finished();
    }

    /// Takes larger maps that have been made.
    pub(super) fn take_finished(&mut self) {
        if let Some(larger) = self.finished_larger()
            && self.take(larger).is_err()
        {
            self.give_up_larger();
        }
    }

    fn grow(&mut self, shape: Shape) -> Result<(), Arc<StartError>> {
        self.build(self.with_what_grows_along(shape))
    }

    /// Grows now. What has just failed is not tried again: each op would wait for it anew, and with it every change
    /// that needs no room.
    fn build(&mut self, shape: Shape) -> Result<(), Arc<StartError>> {
        if let Some(why) = self.refused.standing(&shape) {
            return Err(why);
        }
        let grown = self.await_larger(shape).and_then(|larger| self.take(larger));
        grown.map_err(|error| self.refused.note(shape, error))
    }

    fn take(&mut self, larger: Larger) -> Result<(), StartError> {
        let Self { generation, attached, features, growths, refused, .. } = self;
        let Larger { generation: mut next, mut maps, programs, packets } = larger;
        let mut attached = attached.as_mut().filter(|attached| attached.links.are_attached());
        generation.set_outgrown(true);
        let moved = generation.copy_to(&mut next).and_then(|()| match &mut attached {
            Some(attached) => attached.move_to((next.shape, *features), &programs, &mut maps),
            None => Ok(()),
        });
        generation.set_outgrown(moved.is_ok());
        moved?;
        *generation = next;
        *growths += 1;
        *refused = RefusedGrowths::default();
        if let Some(attached) = attached {
            attached.pins.forget_older();
        }
        self.move_packets_to(packets);
        Ok(())
    }
}

impl Attached {
    /// Moves the programs to these maps. An error: no program reads them.
    fn move_to(
        &mut self,
        (shape, features): (Shape, Features),
        programs: &LoadedPrograms,
        maps: &mut Handles,
    ) -> Result<(), StartError> {
        let before = self.pins.generation();
        self.pins.pin_generation(maps)?;
        if self.links.move_to(programs) {
            return Ok(());
        }
        let Self { pins, links, .. } = self;
        let given = map::copies(&*maps)?;
        let moved = load::load(shape, features, &given, |programs, _| links.update(programs, pins));
        if moved.is_err() {
            self.pins.go_back_to(before);
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
