//! Puts back what was taken away from outside: programs, pins, bits that lead to frontends.
//!
//! Invariant: clients are served by the old programs until the new ones are in place. Whatever else the maps hold is
//! compared by the engine.

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
    /// Devices and directions from which the program of packets had been taken away.
    pub devices: Vec<String>,
    /// Why maps stay pinned that no program uses; told once.
    pub leftover: Option<String>,
}

impl KernelMaps {
    /// Looks whether all programs and pins are in place, puts back what is not, and does what had to wait.
    pub fn repair(&mut self) -> Result<Repaired, StartError> {
        let Self { generation, shared, attached, features, exempt, .. } = self;
        let Some(Attached { pins, links, seen, put_back, .. }) =
            attached.as_mut().filter(|it| it.links.are_attached())
        else {
            return Ok(Repaired::default());
        };
        let followed = exempt.follow();
        pins.forget_leftover();
        let mut repaired =
            Repaired { leftover: pins.leftover_to_tell(), bits: shared.repair(), ..Repaired::default() };
        let maps = || map::copies(shared.handles().iter().chain(generation.handles()));
        if pins.are_broken() {
            // Noted before anything is tried: where the file system of the pins is gone, nothing can be put back.
            *seen = Some(links.look(pins));
            pins.repair(&mut maps()?)?;
            repaired.pins = true;
        }
        let before = links.look(pins);
        if !before.broken.is_empty() || !links.behind().is_empty() {
            let mended = load::load(generation.shape, *features, &maps()?, |programs, _| {
                links.repair(programs, pins, &before.broken)
            });
            let after = links.look(pins);
            let is_back = |hook: &&&str| !after.broken.contains(hook);
            *put_back += u64::try_from(before.broken.iter().filter(is_back).count()).unwrap_or(u64::MAX);
            // Noted also if something could not be put back: that is what an operator looks for.
            *seen = Some(after);
            repaired.hooks = mended?;
        } else {
            *seen = Some(before);
        }
        self.take_finished();
        followed?;
        let mended = self.repair_packets()?;
        repaired.pins |= mended.pins;
        repaired.bits |= mended.bits;
        repaired.devices = mended.hooks;
        Ok(repaired)
    }
}
