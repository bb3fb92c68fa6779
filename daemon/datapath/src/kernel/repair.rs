//! Puts back what was taken away from outside: programs, pins, bits that lead to frontends.
//!
//! Invariant: clients are served by the old programs until the new ones are in place. What cannot be put back keeps
//! nothing else from it. Whatever else the maps hold is compared by the engine.

use super::{Attachment, KernelMaps};
use crate::error::StartError;
use crate::{load, map};

/// What was put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
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
    pub repaired: Box<RepairReport>,
    /// Why the first of what was not stays as it is.
    pub cause: StartError,
}

impl KernelMaps {
    /// Looks whether all programs and pins are in place, puts back what is not, and does what had to wait.
    pub fn repair(&mut self) -> Result<RepairReport, RepairError> {
        let mut repaired = RepairReport::default();
        if !self.is_serving() {
            return Ok(repaired);
        }
        let steps = [Self::repair_shared, Self::repair_pins, Self::repair_hooks, Self::repair_packets];
        let failures = steps.map(|step| step(self, &mut repaired).err());
        match self.record_failure(failures.into_iter().flatten().next()) {
            Some(cause) => Err(RepairError { repaired: Box::new(repaired), cause }),
            None => Ok(repaired),
        }
    }

    /// Keeps for readers why something was not put back.
    fn record_failure(&mut self, met: Option<StartError>) -> Option<StartError> {
        let attached = self.attached.as_mut()?;
        let cause = met.map(|met| attached.pins.explain_error(met));
        attached.failure = cause.as_ref().map(ToString::to_string);
        cause
    }

    fn repair_shared(&mut self, repaired: &mut RepairReport) -> Result<(), StartError> {
        repaired.bits = self.shared.repair();
        self.cluster_ips.publish_fresh();
        if let Some(Attachment { pins, .. }) = &mut self.attached {
            pins.retry_leftover();
            repaired.leftover = pins.take_leftover_report();
        }
        self.exempt.refresh()
    }

    fn repair_pins(&mut self, repaired: &mut RepairReport) -> Result<(), StartError> {
        let Some(Attachment { pins, .. }) = self.attached.as_ref().filter(|it| it.pins.is_map_pin_missing())
        else {
            return Ok(());
        };
        let maps = self.shared.handles().iter().chain(self.generation.handles());
        pins.repair(&mut map::clone_handles(maps)?)?;
        repaired.pins = true;
        Ok(())
    }

    /// Puts programs back at the hooks of sockets, then takes larger maps that are whole.
    fn repair_hooks(&mut self, repaired: &mut RepairReport) -> Result<(), StartError> {
        let mended = self.reattach_hooks(&mut repaired.hooks);
        self.adopt_prebuilt();
        mended
    }

    fn reattach_hooks(&mut self, mended: &mut Vec<&'static str>) -> Result<(), StartError> {
        let Self { generation, shared, attached: Some(attached), features, .. } = self else { return Ok(()) };
        let Attachment { pins, links, last_look: seen, put_back, .. } = attached;
        let before = links.inspect_hooks(pins);
        // Noted before anything is tried: where the file system of the pins is gone, nothing can be put back, and no
        // program is loaded for it in vain.
        *seen = Some(before.clone());
        if before.broken.is_empty() && links.behind_hooks().is_empty() {
            return Ok(());
        }
        pins.make_link_folder()?;
        let maps = map::clone_handles(shared.handles().iter().chain(generation.handles()))?;
        let outcome = load::load_programs(generation.shape, *features, &maps, |programs, _| {
            links.repair(programs, pins, &before.broken, mended)
        });
        let after = links.inspect_hooks(pins);
        let is_back = |hook: &&&str| !after.broken.contains(hook);
        *put_back += u64::try_from(before.broken.iter().filter(is_back).count()).unwrap_or(u64::MAX);
        // Noted also if something could not be put back: that is what an operator looks for.
        *seen = Some(after);
        outcome
    }
}
