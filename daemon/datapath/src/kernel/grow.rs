//! Growth: larger maps are built beside, filled, and the programs moved over.
//!
//! Invariant: nothing is written between the copy and the move, because the engine is the only writer and waits here;
//! so a client meets the same answer in both. From the moment that a program reads the new maps they are the ones that
//! are written, whatever fails afterwards; before it nothing has changed. A crash at any point leaves links on whole
//! maps. Maps never shrink.

use holdfast_core::keys::Family;
use holdfast_core::op::{Coming, PortIndex, Range};

use super::{Attached, BACKENDS, FRONTENDS, KernelMaps, growth_refused};
use crate::error::StartError;
use crate::generation::Generation;
use crate::load::{self, Programs};
use crate::map::Handles;
use crate::shape::{Shape, grown, index, is_crowded};
use holdfast_core::maps::MapError;

impl KernelMaps {
    pub(super) fn make_room_for_frontend(&mut self, family: Family) -> Result<(), MapError> {
        let at = index(family);
        let entries = nth(self.generation.shape.frontends, at);
        let limit = nth(self.limits.frontends, at);
        if !is_crowded(self.generation.frontends(family).used(), entries) {
            return Ok(());
        }
        let Some(next) = grown(entries, 0, limit) else { return Ok(()) };
        let shape =
            Shape { frontends: with_nth(self.generation.shape.frontends, at, next), ..self.generation.shape };
        self.grow(shape).map_err(growth_refused("insert frontend"))
    }

    pub(super) fn make_room_for_member(&mut self) -> Result<(), MapError> {
        let entries = self.generation.shape.members;
        if !is_crowded(self.generation.members.used(), entries) {
            return Ok(());
        }
        let Some(members) = grown(entries, 0, self.limits.members) else { return Ok(()) };
        self.grow(Shape { members, ..self.generation.shape }).map_err(growth_refused("insert member"))
    }

    pub(super) fn make_room_for_port(&mut self, op: &'static str, index: PortIndex) -> Result<(), MapError> {
        let entries = self.generation.shape.ports;
        let needed = index.0.saturating_add(1);
        if needed <= entries {
            self.reached.ports = self.reached.ports.max(needed);
            return Ok(());
        }
        let full = MapError::Full { op, setting: FRONTENDS };
        let ports = grown(entries, needed, self.limits.ports).ok_or(full)?;
        self.grow(Shape { ports, ..self.generation.shape }).map_err(growth_refused(op))
    }

    pub(super) fn make_room_for_range(&mut self, range: Range) -> Result<(), MapError> {
        let at = index(range.family);
        let entries = nth(self.generation.shape.slots, at);
        let limit = nth(self.limits.slots, at);
        let needed = range.base.saturating_add(range.count);
        if needed <= entries {
            let reached = nth(self.reached.slots, at).max(needed);
            self.reached.slots = with_nth(self.reached.slots, at, reached);
            return Ok(());
        }
        let full = MapError::Full { op: "write range", setting: BACKENDS };
        let next = grown(entries, needed, limit).ok_or(full)?;
        let shape = Shape { slots: with_nth(self.generation.shape.slots, at, next), ..self.generation.shape };
        self.grow(shape).map_err(growth_refused("write range"))
    }

    pub(super) fn make_room_for(&mut self, coming: &Coming) -> Result<(), MapError> {
        let used = self.used().and(coming);
        let shape = self.generation.shape.holding(&used, &self.limits);
        if shape == self.generation.shape {
            return Ok(());
        }
        self.build(shape).map_err(growth_refused("make room"))
    }

    fn used(&self) -> Shape {
        Shape {
            frontends: Family::ALL.map(|family| self.generation.frontends(family).used()),
            members: self.generation.members.used(),
            ..self.reached
        }
    }

    fn grow(&mut self, shape: Shape) -> Result<(), StartError> {
        // What grows already is not to grow twice.
        let along = self.generation.shape.with_room_for(&self.used(), &self.limits);
        self.build(shape.or_larger(along))
    }

    fn build(&mut self, shape: Shape) -> Result<(), StartError> {
        let Self { generation, shared, attached, features, growths, .. } = self;
        generation.set_outgrown(true);
        let grown = load::load(shape, *features, shared.handles(), |programs, mut maps| {
            let mut next = Generation::new(&maps)?;
            generation.copy_to(&mut next)?;
            if let Some(attached) = attached.as_mut().filter(|attached| attached.links.are_attached()) {
                attached.move_to(programs, &mut maps)?;
            }
            Ok(next)
        });
        generation.set_outgrown(grown.is_ok());
        *generation = grown?;
        *growths += 1;
        if let Some(attached) = attached.as_mut().filter(|attached| attached.links.are_attached()) {
            attached.pins.forget_older();
        }
        self.move_packets();
        Ok(())
    }
}

impl Attached {
    /// The programs read these maps from now on. An error: none of them does.
    fn move_to(&mut self, programs: &Programs<'_>, maps: &mut Handles) -> Result<(), StartError> {
        let before = self.pins.generation();
        self.pins.pin_generation(maps)?;
        let moved = self.links.update(programs, &self.pins);
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
