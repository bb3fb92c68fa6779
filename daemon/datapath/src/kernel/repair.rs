//! Repairs programs, pins and bits that something else removed.
//!
//! Invariant: the old programs serve clients until the new ones are attached. A failure stops no other repair. The
//! engine compares all other map content.

use super::{Attachment, KernelMaps};
use crate::error::StartError;
use crate::map;

/// What was repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Hooks with a detached program, an unpinned link, or a program that was behind after a growth.
    pub hooks: Vec<&'static str>,
    /// Whether maps were unpinned.
    pub pins: bool,
    /// Whether bits were missing, so that programs would have missed frontends.
    pub bits: bool,
    /// Devices and directions that lost their packet program. They are repaired in steps, so the next look reports
    /// them.
    pub devices: Vec<String>,
    /// Why maps stay pinned that no program uses; reported once.
    pub leftover: Option<String>,
}

/// A repair failed.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct RepairError {
    /// What was repaired nevertheless.
    pub repaired: Box<RepairReport>,
    /// The first error.
    pub cause: StartError,
}

impl KernelMaps {
    /// Checks all programs and pins, repairs what is missing, and runs deferred work.
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

    /// Stores a repair's error for the status.
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

    /// Attaches missing socket programs, then adopts larger maps that are finished.
    fn repair_hooks(&mut self, repaired: &mut RepairReport) -> Result<(), StartError> {
        let outcome = self.reattach_hooks(&mut repaired.hooks);
        self.adopt_prebuilt();
        outcome
    }

    fn reattach_hooks(&mut self, repaired: &mut Vec<&'static str>) -> Result<(), StartError> {
        let Self { generation, shared, attached: Some(attached), features, .. } = self else { return Ok(()) };
        let before = attached.links.inspect_hooks(&attached.pins);
        // Stored before any attempt: without the pins' file system nothing can be repaired, so no program is loaded.
        attached.last_look = Some(before.clone());
        if before.broken.is_empty() && attached.links.behind_hooks().is_empty() {
            return Ok(());
        }
        attached.pins.make_link_folder()?;
        let maps = map::clone_handles(shared.handles().iter().chain(generation.handles()))?;
        let programs = attached.find_or_load(generation.shape, *features, &maps);
        let Attachment { pins, links, last_look, put_back, .. } = attached;
        let outcome = programs.and_then(|programs| links.repair(&programs, pins, &before.broken, repaired));
        let after = links.inspect_hooks(pins);
        let is_repaired = |hook: &&&str| !after.broken.contains(hook);
        *put_back += u64::try_from(before.broken.iter().filter(is_repaired).count()).unwrap_or(u64::MAX);
        // Stored also after a failure, for operators.
        *last_look = Some(after);
        outcome
    }
}
