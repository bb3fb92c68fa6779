//! The attached programs: one link per hook.
//!
//! Invariant: a hook that has a program has one at every moment; a new program takes the place of the old one in one step.
//! Programs of others on the same hooks are left alone. Deliberately absent: what the programs do.

use std::io;
use std::path::Path;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Object, ProgramMut};

use crate::cgroup::Cgroup;
use crate::error::StartError;
use crate::foreign;
use crate::load::HOOKS;
use crate::pins::Pins;

/// All links.
#[derive(Debug)]
pub(crate) struct Links {
    cgroup: Cgroup,
    links: Vec<(&'static str, Link)>,
}

impl Links {
    /// Attaches the programs, or puts them in the place of those that a former daemon left attached.
    pub(crate) fn attach(object: &Object, cgroup: Cgroup, pins: &Pins) -> Result<Self, StartError> {
        let mut links = Vec::new();
        for (hook, program) in programs(object) {
            links.push((hook, attach_hook(hook, &program, &cgroup, &pins.link(hook))?));
        }
        Ok(Self { cgroup, links })
    }

    /// Puts other programs in place. A link that cannot be moved is replaced, so that no hook stays behind.
    pub(crate) fn update(&mut self, object: &Object, pins: &Pins) -> Result<(), StartError> {
        let mut result = Ok(());
        for (hook, program) in programs(object) {
            for (_, link) in self.links.iter_mut().filter(|(name, _)| *name == hook) {
                if link.update_prog(&program).is_err() {
                    match attach_hook(hook, &program, &self.cgroup, &pins.link(hook)) {
                        Ok(anew) => *link = anew,
                        Err(error) => result = Err(error),
                    }
                }
            }
        }
        result
    }

    /// The hooks whose link no longer holds: their pin is gone, or their cgroup.
    pub(crate) fn broken(&self, pins: &Pins) -> Vec<&'static str> {
        let holds = |hook: &str, link: &Link| pins.link(hook).exists() && is_on(link, &self.cgroup);
        self.links.iter().filter(|(hook, link)| !holds(hook, link)).map(|(hook, _)| *hook).collect()
    }

    /// Attaches anew what no longer holds. Both programs run for a moment; the second finds nothing left to translate.
    pub(crate) fn repair(&mut self, object: &Object, pins: &Pins) -> Result<Vec<&'static str>, StartError> {
        let broken = self.broken(pins);
        for (hook, program) in programs(object).filter(|(hook, _)| broken.contains(hook)) {
            for (_, link) in self.links.iter_mut().filter(|(name, _)| *name == hook) {
                *link = attach_hook(hook, &program, &self.cgroup, &pins.link(hook))?;
            }
        }
        Ok(broken)
    }

    /// Hooks where others have programs too, and how many. A hook that cannot be asked is left out.
    pub(crate) fn shared(&self) -> Vec<(&'static str, usize)> {
        let others = |(hook, link): &(&'static str, Link)| {
            let own = link.info().ok()?.prog_id;
            let attached = foreign::attached(&self.cgroup, hook).ok()?;
            Some((*hook, attached.iter().filter(|id| **id != own).count()))
        };
        self.links.iter().filter_map(others).filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }
}

fn programs(object: &Object) -> impl Iterator<Item = (&'static str, ProgramMut<'_>)> {
    object.progs_mut().filter_map(|program| {
        let hook = HOOKS.into_iter().find(|hook| program.name() == *hook)?;
        Some((hook, program))
    })
}

fn attach_error(hook: &'static str, cgroup: &Cgroup, source: libbpf_rs::Error) -> StartError {
    StartError::Attach { hook, cgroup: cgroup.path().to_owned(), source }
}

fn attach_hook(
    hook: &'static str,
    program: &ProgramMut<'_>,
    cgroup: &Cgroup,
    pin: &Path,
) -> Result<Link, StartError> {
    let left = if pin.exists() { Some(open(pin)?) } else { None };
    let Some(mut link) = left else {
        return attach_anew(hook, program, cgroup, pin);
    };
    // A link whose cgroup was removed, or that belongs to another one, cannot be moved.
    if is_on(&link, cgroup) && link.update_prog(program).is_ok() {
        return Ok(link);
    }
    let removed = std::fs::remove_file(pin);
    removed.map_err(|source| StartError::Pin { attempt: "remove", path: pin.to_owned(), source })?;
    // The old one is let go of only when the new one is there.
    let anew = attach_anew(hook, program, cgroup, pin)?;
    drop(link);
    Ok(anew)
}

fn open(pin: &Path) -> Result<Link, StartError> {
    Link::open(pin).map_err(|source| StartError::ForeignPin { path: pin.to_owned(), source })
}

fn attach_anew(
    hook: &'static str,
    program: &ProgramMut<'_>,
    cgroup: &Cgroup,
    pin: &Path,
) -> Result<Link, StartError> {
    let mut link = program.attach_cgroup(cgroup.fd()).map_err(|source| attach_error(hook, cgroup, source))?;
    link.pin(pin).map_err(|error| {
        let source = io::Error::other(format!("{error:#}"));
        StartError::Pin { attempt: "pin", path: pin.to_owned(), source }
    })?;
    Ok(link)
}

fn is_on(link: &Link, cgroup: &Cgroup) -> bool {
    let Ok(known) = link.info() else { return false };
    matches!(known.info, LinkTypeInfo::Cgroup(found) if found.cgroup_id == cgroup.id().0)
}
