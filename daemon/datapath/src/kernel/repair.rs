//! Puts back what was taken away from outside: programs, pins, bits that lead to frontends.
//!
//! Invariant: clients are served by the old programs until the new ones are in place. What cannot be put back keeps
//! nothing else from it. Whatever else the maps hold is compared by the engine.

use super::{Attached, KernelMaps};
use crate::error::StartError;
use crate::{load, map};

/// What was put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Hooks with a program that was detached, with a link that was unpinned, or with a program that had stayed behind
    /// when the maps grew.
    pub hooks: Vec<&'static str>,
    /// Whether maps were unpinned.
    pub pins: bool,
    /// Whether bits were missing, so that programs would not have looked for every frontend.
    pub bits: bool,
    /// Devices and directions from which the program of packets had been taken away. They are put back step by step, so
    /// the next look tells of them.
    pub devices: Vec<String>,
    /// Why maps stay pinned that no program uses; told once.
    pub leftover: Option<String>,
}

/// Something could not be put back.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct RepairError {
    /// What was put back all the same.
    pub repaired: Box<Repaired>,
    /// Why the first of what was not stays as it is.
    pub cause: StartError,
}

impl KernelMaps {
    /// Looks whether all programs and pins are in place, puts back what is not, and does what had to wait.
    pub fn repair(&mut self) -> Result<Repaired, RepairError> {
        let mut repaired = Repaired::default();
        if !self.is_serving() {
            return Ok(repaired);
        }
        let steps = [Self::repair_shared, Self::repair_pins, Self::repair_hooks, Self::repair_packets];
        let failures = steps.map(|step| step(self, &mut repaired).err());
        match self.noted(failures.into_iter().flatten().next()) {
            Some(cause) => Err(RepairError { repaired: Box::new(repaired), cause }),
            None => Ok(repaired),
        }
    }

    /// Keeps for readers why something was not put back.
    fn noted(&mut self, met: Option<StartError>) -> Option<StartError> {
        let attached = self.attached.as_mut()?;
        let cause = met.map(|met| attached.pins.explained(met));
        attached.failure = cause.as_ref().map(ToString::to_string);
        cause
    }

    fn repair_shared(&mut self, repaired: &mut Repaired) -> Result<(), StartError> {
        repaired.bits = self.shared.repair();
        self.cluster_ips.settle();
        if let Some(Attached { pins, .. }) = &mut self.attached {
            pins.forget_leftover();
            repaired.leftover = pins.leftover_to_tell();
        }
        self.exempt.follow()
    }

    fn repair_pins(&mut self, repaired: &mut Repaired) -> Result<(), StartError> {
        let Some(Attached { pins, .. }) = self.attached.as_ref().filter(|it| it.pins.are_broken()) else {
            return Ok(());
        };
        let maps = self.shared.handles().iter().chain(self.generation.handles());
        pins.repair(&mut map::copies(maps)?)?;
        repaired.pins = true;
        Ok(())
    }

    /// Puts programs back at the hooks of sockets, then takes larger maps that are whole.
    fn repair_hooks(&mut self, repaired: &mut Repaired) -> Result<(), StartError> {
        let mended = self.mend_hooks(&mut repaired.hooks);
        self.take_finished();
        mended
    }

    fn mend_hooks(&mut self, mended: &mut Vec<&'static str>) -> Result<(), StartError> {
        let Self { generation, shared, attached: Some(attached), features, .. } = self else { return Ok(()) };
        let Attached { pins, links, seen, put_back, .. } = attached;
        let before = links.look(pins);
        // Noted before anything is tried: where the file system of the pins is gone, nothing can be put back, and no
        // program is loaded for it in vain.
        *seen = Some(before.clone());
        if before.broken.is_empty() && links.behind().is_empty() {
            return Ok(());
        }
        pins.make_links()?;
        let maps = map::copies(shared.handles().iter().chain(generation.handles()))?;
        let outcome = load::load(generation.shape, *features, &maps, |programs, _| {
            links.repair(programs, pins, &before.broken, mended)
        });
        let after = links.look(pins);
        let is_back = |hook: &&&str| !after.broken.contains(hook);
        *put_back += u64::try_from(before.broken.iter().filter(is_back).count()).unwrap_or(u64::MAX);
        // Noted also if something could not be put back: that is what an operator looks for.
        *seen = Some(after);
        outcome
    }
}
